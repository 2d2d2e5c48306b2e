// Package release implements the verification of a release without a network: signatures of files, and a whole
// directory that make release has written.
//
// A file is signed by a bundle of sigstore beside it, FILE.sigstore.json, in version 0.3 of the format and with an
// ECDSA key on P-256, as cosign sign-blob --key --bundle writes it. Certificates and transparency logs are not used.
//
// All input but the public key is untrusted, and is bounded before it is decoded.
package release
