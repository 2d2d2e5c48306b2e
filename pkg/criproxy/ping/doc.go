// Package ping asks a server of the CRI whether it is pullgated and answers. No runtime is asked, nothing is counted.
package ping
