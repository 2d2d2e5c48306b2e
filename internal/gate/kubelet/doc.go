// Package kubelet knows in what kubelets differ on the wire.
//
// A kubelet does not say its version. The version of gRPC in its user agent tells its age, roughly; an
// operator can tell it exactly.
package kubelet
