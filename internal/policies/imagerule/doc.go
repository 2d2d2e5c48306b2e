// Package imagerule implements what rules about signatures say about an image without its signatures: required digests, static authorities, and
// defaults for images without a rule. The gate and the webhook decide by it, and use its sentences, so that both give the same answer.
package imagerule
