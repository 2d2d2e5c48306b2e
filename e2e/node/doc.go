// Package node starts a small node of real programs for tests and for the demo: containerd, a
// registry that requires credentials, images, pullgated, and a client that sends the same calls as a kubelet.
//
// All files are below one temporary directory, with sockets and ports of its own; the machine's own runtime is not
// used. Every process is ended by its own ID. If a program does not start, the error contains the last lines of its
// output.
package node
