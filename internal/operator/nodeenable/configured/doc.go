// Package configured determines the daemon that the kubelet has to dial: the running pullgated of a node. It returns an error if
// pullgated runs with another configuration than its file has, because a restart would change where it listens or what it
// forwards to.
package configured
