// Package configured tells what the kubelet is to be pointed at: the pullgated of a node as it runs. A pullgated
// that runs with another configuration than its file says is found out, since a restart would change where it
// listens or what it forwards to.
package configured
