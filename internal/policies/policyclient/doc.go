// Package policyclient implements what pullgated asks pullgate-policyd: the client, and the two validators of the
// admission chain whose answers come from it.
//
// # Trust
//
// An answer can admit a container, so the client uses a socket only if root owns it and the process that listens on it
// is root's: with pullgate-policyd.socket that is systemd, which passes the socket on to pullgate-policyd. If this
// process is not root, as in tests, its own user counts as root does.
//
// Every error of [Client.Review] means that no backend has answered, and every error of [Client.Verify] that nothing is
// known about the image, so that it still needs its signatures. The sentinel errors say why. Only an answer for the
// policy files, and the images, or the trusted root and the requirements, of the request is returned without an error.
//
// # Image reviews
//
// A [Reviewer] has the images of a container, and those that it mounts, reviewed by backends when the container is
// created. All backends of its namespace must allow all of them. Backends see the images as the pod has them, the
// namespace, and the annotations that are meant for them.
//
// The reviewer expects exactly one answer of each backend about each image. A backend that did not answer
// pullgate-policyd, and every backend if no connection to pullgate-policyd can be made, has failed: the image is then
// admitted or denied as defaultAllow in the policy file says that pullgated has read, whatever pullgate-policyd says of
// it. Every other failure denies, because an image can cause it: a connection that is lost after the question was sent,
// a time-out of pullgate-policyd, an invalid answer, other policy files. So does a denial of a backend, an image, an
// annotation or a namespace that is not known, and a caller that ends the call.
//
// # Signatures
//
// An image that a policy requires signatures for needs an endorsement: a record that the pair of image ID and
// repository meets the requirement. [Endorser.Validate] only looks it up. [Endorser.PullVerifier] asks pullgate-policyd
// after a pull, writes the endorsement, and then answers.
//
//	pull answered by the runtime ──▶ record ──▶ PullVerifier: verify ──▶ endorsement on disk ──▶ answer to the kubelet
//
// What cannot be verified leaves no endorsement, whatever the cause, and the next pull tries again.
package policyclient
