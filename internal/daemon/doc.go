// Package daemon puts the parts of pullgated together: it opens the state, dials the runtime,
// listens for the kubelet and runs until it is stopped. Run reads as the list of its steps.
package daemon
