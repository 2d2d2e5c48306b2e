// Package report reads what a kubelet and a credential provider said to each other, and returns which credentials the node
// offers to every pod: IDs, never a credential.
//
// An exchange that is not understood as a whole is an error: a field of a newer version may bind the answer to less than the
// node.
package report
