// Package credential turns the credentials of a pull into IDs that may be stored and shown.
//
// An ID is the HMAC-SHA256 of the credential under a random key of the node. Without the key nobody
// can try passwords against it, and two nodes give one credential two IDs. The canonical form that is
// hashed is the credential as the runtime would use it, so that the forms in which one credential
// can be sent give one ID.
//
// Docker configurations, as pull secrets and the node's own files hold them, are parsed and matched to
// images as kubelets do: a [Keyring] tells which credentials a kubelet would send and in which order, a
// [SealedKeyring] does the same with nothing but IDs in memory.
//
// Nothing in this package prints a credential, a key or a configuration: they are types that format, log
// and marshal as "[redacted]", and no error tells of their content.
package credential
