// Package endorse implements the validator of the admission chain for image signatures, and the verification that a pull causes.
//
// An image that a policy requires signatures for needs an endorsement: a record that the pair of image ID and repository meets the requirement.
// [Endorser.Validate] only looks for it, in the store or in the cache of the store. [Endorser.PullVerifier] asks pullgate-policyd after a pull,
// writes the endorsement, and then answers.
//
//	pull answered by the runtime ──▶ record of the pull ──▶ PullVerifier: verify ──▶ endorsement on disk ──▶ answer to the kubelet
//
// What cannot be verified leaves no endorsement, whatever the cause, and the next pull tries again.
package endorse
