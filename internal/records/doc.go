// Package records implements the store of pull records, pull intents, preloaded marks and endorsements, one bbolt file.
// It states facts and does not judge; its only rule is which pairs a scan may mark.
//
// When a call returns nil, its change is on disk. After a crash the store may also contain that of a call in progress.
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
// A version that reads only format 1 refuses a store of format 2 or 3. The first endorsement raises the number, and the
// deletion of the last one lowers it to 1 again, so that the node can go back to such a version.
//
// Every value is a CRC-32C of its bucket, its key and its payload (4 bytes, big endian), then the payload as JSON.
//
// # Damage
//
// Open checks the whole file. If the tree is damaged, Open sets the file aside and creates a new store in distrust. If
// only values are unreadable, Open copies the file aside, then removes these values and distrusts the store in one
// transaction: an image whose record has a damaged key looks untracked, and a scan would mark it. A read that fails is
// not damage: Open returns an error, and leaves the file.
//
// # Memory
//
// All facts are in memory (docs/design/0034), replaced after they are on disk. After a write that fails the store reads
// its facts from the file again; until that succeeds, every call fails. A Store may be used concurrently.
package records
