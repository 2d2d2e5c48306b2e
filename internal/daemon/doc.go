// Package daemon puts the parts of pullgated together: it opens the state, dials the runtime,
// listens for the kubelet and runs until it is told to stop. Run reads as the list of its steps.
package daemon
