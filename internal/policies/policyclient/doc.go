// Package policyclient implements what pullgated asks pullgate-policyd: the client, and the two validators of the
// admission chain whose answers come from it.
//
// # Trust
//
// An answer can admit a container, so root must own the socket and listen on it; or the user of this process, in tests.
// Only an answer for the policy files, images, trusted root and requirements of the request is returned.
//
// # Image reviews
//
// A [Reviewer] expects exactly one answer of each backend of the namespace about each image of a container. If a
// backend did not answer pullgate-policyd, or no connection to it can be made, defaultAllow in pullgated's policy file
// decides. Every other failure denies, because an image can cause it. So does what is not known.
//
// # Signatures
//
// An image that needs signatures needs an endorsement: a record that the pair of image ID and repository meets the
// requirement. [Endorser.Validate] looks it up. [Endorser.PullVerifier] asks pullgate-policyd after a pull, writes the
// endorsement, and then answers. After a failure the next pull tries again.
package policyclient
