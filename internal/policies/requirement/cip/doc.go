// Package cip implements the reading of sigstore's ClusterImagePolicy: policy.sigstore.dev/v1alpha1 and v1beta1.
//
// Reading is strict. A field that policy-controller has and this package does not support is an error that says what to write instead.
// Differences from policy-controller that do not show as errors are:
//
//   - Globs match normalised names, and one without a tag matches all tags. See [requirement.Pattern].
//   - Regular expressions match the whole issuer or subject.
//   - Signatures are found in each form that cosign writes, whatever signatureFormat says.
//   - Certificates, logs and timestamp authorities are those of the trusted root, unless ca-cert is given. URLs are not asked.
package cip
