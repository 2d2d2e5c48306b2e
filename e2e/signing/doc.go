// Package signing signs images in the two forms that cosign writes, with static keys, and stores the signatures in the
// repositories of the images.
package signing
