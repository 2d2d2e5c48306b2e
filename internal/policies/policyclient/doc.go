// Package policyclient implements what pullgated asks pullgate-policyd: the client, and the two validators of the
// admission chain whose answers come from it.
//
// # Trust
//
// An answer can admit a container, so the client uses a socket only if root owns it and listens on it, as systemd does
// for pullgate-policyd.socket. If this process is not root, as in tests, its own user counts as root does.
//
// Only an answer for the policy files, images, trusted root and requirements of the request is returned.
//
// # Image reviews
//
// A [Reviewer] has the images of a container, and those that it mounts, reviewed by all backends of its namespace. It
// expects exactly one answer of each backend about each image. If a backend did not answer pullgate-policyd, or no
// connection to pullgate-policyd can be made, defaultAllow in pullgated's policy file decides. Every other failure
// denies, because an image can cause it: a lost connection, a time-out, an invalid answer. So does what is not known.
//
// # Signatures
//
// An image that a policy requires signatures for needs an endorsement: a record that the pair of image ID and
// repository meets the requirement. [Endorser.Validate] only looks it up. [Endorser.PullVerifier] asks pullgate-policyd
// after a pull, writes the endorsement, and then answers. After a failure the next pull tries again.
package policyclient
