// Package kubelet implements the differences between versions of the kubelet in the calls that it sends.
//
// A kubelet does not report its version. The version of gRPC in its user agent shows its age roughly; an operator can
// configure the version exactly.
package kubelet
