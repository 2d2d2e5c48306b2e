// Package credential turns the credentials of a pull into IDs that may be stored and shown.
//
// An ID is the HMAC-SHA256 of the credential under a random key of the node. Without the key nobody
// can try passwords against it, and two nodes give one credential two IDs. The canonical form that is
// hashed is the credential as the runtime would use it, so that the forms in which one credential
// can be sent give one ID.
//
// Nothing in this package prints a credential or a key: both are types that format, log and marshal
// as "[redacted]".
package credential
