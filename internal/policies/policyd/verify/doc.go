// Package verify implements the verification of image signatures, and the service that verifies for pullgated and for
// the webhook.
//
//	node server ──Verify──▶ Service ──turn of the registry──▶ Verifier ──▶ registries, bundles
//	webhook ──────Judge───▶    └─ cache of results (webhook only)
//
// [Verifier.Verify] proves each step from a signature to the image by digest: the signature is about a manifest or an
// index, the index contains the manifest for a platform of this node, and the manifest contains the digest of the
// configuration, which is the ID of the image. Names, annotations and what the runtime says about digests only help to
// find things; they prove nothing.
//
// It looks for signatures at the repository of the image, and at the repositories that requirements name: attached by
// the referrers API or by its fallback tag, and in the image with the tag sha256-<digest>.sig. A bundle counts as a
// signature by its predicate type alone; an attestation by the same key does not count. Certificates, transparency
// logs and timestamps are verified offline, with what the requirement contains or with a trusted root.
//
// All input is untrusted. The limits of the configuration bound what it costs. Input that exceeds a limit denies, and
// so does input that no part of this package can read.
//
// pullgated asks a [Service] about an image on its node, with the credential of the pull; nothing is kept. The webhook
// asks about the image that the registry has under a name, and results are cached, because it only reports early what
// the nodes enforce. What it cannot determine is not denied there. A slow registry delays only its own images.
package verify
