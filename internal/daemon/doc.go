// Package daemon implements pullgated from its parts: it opens the state, connects to the runtime, listens for the
// kubelet and runs until it is stopped. Run is the list of its steps.
package daemon
