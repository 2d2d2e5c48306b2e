// Package kyverno implements the reading of image verification rules of Kyverno: ClusterPolicy of kyverno.io/v1 with verifyImages.
//
// The spelling of the proposal of these rules is read too: imageVerify, which can be a mapping or a list, for verifyImages; images for
// imageReferences; digestVerify and digestMutate for verifyDigest and mutateDigest; staticKey.key for keys.publicKeys; attestors for a nested attestor.
//
// Reading is strict. A field that Kyverno has and this package does not support is an error that says what to write instead. Differences from
// Kyverno that do not show as errors are:
//
//   - A policy without validationFailureAction enforces.
//   - verifyDigest is false if it is absent, because a signature is bound to the image that runs.
//   - Patterns match normalised names, and a pattern without a tag matches all tags. See [requirement.Pattern].
//   - keyless needs both an issuer and a subject.
//   - A static key without rekor needs no log entry. Logs, roots and authorities without a key or certificate are those of the trusted root.
package kyverno
