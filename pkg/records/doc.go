// Package records implements the store of pull records, pull intents and preloaded marks, one bbolt file. It states
// facts and judges nothing; its only rule is what a scan may mark, because that must be
// decided in the transaction that writes the mark.
//
// A call that returns nil has reached the disk: after a crash at any instant the store holds every
// fact whose call returned, and may hold the one of a call in progress.
//
// # Format 1
//
//	meta
//	  format            1
//	  distrust          Distrust, while the store is distrusted; a copy is from the moment that it is made
//	  scanned           the time of the first scan
//	  key               fingerprint of the node's key
//	  revoked           the time at which something was last revoked or a mark forgotten, absent until then
//	intents             one per pull in progress or with unknown result
//	  <repository> 00 <sequence, 8 bytes>      Intent
//	records             one per image ID and repository
//	  <image ID> 00 <repository>               Record
//	marks               one per image ID and repository that is preloaded
//	  <image ID> 00 <repository>               Mark
//	creations           one per container that is or was created from an image that may be a checkpoint; absent until there is one
//	  <sequence, 8 bytes>                      Creation
//
// Every value is a CRC-32C of its bucket, its key and its payload (4 bytes, big endian), then the
// payload as JSON. A value whose sum is wrong cannot be read, and a pair whose value cannot be read needs proof: a
// flipped bit, or a value under another key, never opens an image.
//
// # Damage
//
// Open checks the whole file. If the tree is damaged, the file is set aside and a new store begins in
// distrust, which is written in the first transaction, so that no crash can lose it. A single
// value that cannot be read does not affect the others.
//
// A Store may be used concurrently. Lock order: bbolt's write lock, then Store.mu.
package records
