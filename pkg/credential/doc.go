// Package credential implements IDs of credentials, which may be stored and shown, and the matching of docker
// configurations to images.
//
// An ID is the HMAC-SHA256 of the credential under a random key of the node, so that without the key nobody can test
// passwords against it. The hash is of a canonical form: all forms in which one credential can be sent have one ID.
//
// Docker configurations, as in pull secrets and the node's own files, are parsed and matched to images as kubelets do:
// a [SealedKeyring] returns the IDs of the credentials that a kubelet would send, in its order. It keeps no credential
// in memory.
//
// Nothing in this package prints a credential, a key or a configuration: these types format, log and marshal as
// "[redacted]", and no error contains any of their content.
package credential
