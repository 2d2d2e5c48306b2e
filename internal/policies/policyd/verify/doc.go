// Package verify implements the verification of image signatures.
//
// [Verifier.Verify] proves each step from a signature to the image by digest: the signature is about a manifest or an index, the index has the
// manifest for a platform of this node, and the manifest has the configuration whose digest is the ID of the image. Names, annotations and what
// the runtime says about digests only help to find things; they prove nothing.
//
// It looks for signatures at the repository of the image, and at the repositories that requirements name: attached by the referrers API or by
// its fallback tag, and in the image with the tag sha256-<digest>.sig. A bundle counts as a signature by its predicate type alone; an
// attestation by the same key does not count. Certificates, transparency logs and timestamps are verified without network, with what the
// requirement has or with a trusted root.
//
// All input is untrusted. What it costs is limited, see [Limits]; input that exceeds a limit denies, and so does input that no part of this
// package can read.
package verify
