// Package node builds a small node out of real parts for tests and for the demo: containerd, a
// registry that asks for credentials, images, pullgated, and a client that asks for containers
// exactly as a kubelet does.
//
// Everything is below one temporary directory, with sockets and ports of its own; nothing of the
// machine's own runtime is touched. Every process is ended by its own ID, and what a part has printed
// last is part of the error if it does not come up.
package node
