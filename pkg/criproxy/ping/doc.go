// Package ping checks whether pullgated answers on a CRI socket. A ping does not reach the runtime and is not counted in metrics.
package ping
