// Package report implements reading of a request from a kubelet to a credential provider and of the answer. It returns
// which credentials the node offers to every pod: IDs, never a credential.
//
// An exchange with any unknown part is an error: a field of a newer version may restrict the answer to less than the
// node.
package report
