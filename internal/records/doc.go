// Package records implements the store of pull records, pull intents, preloaded marks and endorsements, one bbolt file.
// It states facts and does not judge; its only rule is which pairs a scan may mark, because the transaction that writes
// the mark must decide that.
//
// When a call returns nil, its change is on disk: after a crash at any instant, the store contains the facts of every
// call that returned, and may contain the fact of a call in progress.
//
// # Format
//
//	meta
//	  format            1, 2 while the store has endorsements, or 3 from the first one by an attestation on
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
//	creations           one per creation of a container from an image that may be a checkpoint; absent until the first
//	  <sequence, 8 bytes>                      Creation
//	endorsements        one per image ID, repository and requirement; absent while there is none
//	  <image ID> 00 <repository> 00 <requirement>    Endorsement
//
// A version that reads only format 1 refuses a store of format 2 or 3, and leaves it as it is. The first endorsement
// raises the number, and the deletion of the last one lowers it to 1 again, each in the transaction that makes the
// change. So a node that verifies no signatures, or whose endorsements were revoked, can go back to such a version.
//
// Every value is a CRC-32C of its bucket, its key and its payload (4 bytes, big endian), then the payload as JSON. A
// value with a wrong checksum is unreadable: a flipped bit, or a value under another key.
//
// # Damage
//
// Open checks the whole file. If the tree is damaged, Open sets the file aside and creates a new store in distrust. The
// first transaction writes the distrust, so that a crash cannot lose it. If only values are unreadable, Open keeps the
// others: it copies the file aside, then removes the unreadable values and distrusts the store in one transaction.
// Without distrust, an image whose record has a damaged key would look untracked, and a scan would mark it.
//
// A value that becomes unreadable in an open store has no effect before the next Open. A read that fails is not damage:
// Open returns an error, and leaves the file.
//
// # Memory
//
// All facts are in memory (docs/design/0034). A write transaction replaces values after they are on disk. After a write
// that fails the store reads its facts from the file again; until that succeeds, every call fails.
//
// A Store may be used concurrently. Lock order: Store.writing, then Store.mu. Neither calls out, except for
// Scan.Brought and Settlement.Brought, which must be pure.
package records
