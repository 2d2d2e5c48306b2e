// Package tracker implements the record of which credentials proved access to which image, and the judgement of who may use it.
//
// A program that pulls images for several tenants, like a kubelet or a proxy before a container runtime, calls:
//
//	Check      may this pod use this image under this name?      evidence → verdict
//	BeginPull  a pull is about to be sent to the runtime          intent on disk
//	  Proved   … it succeeded                                     record on disk, then grant
//	  Denied   … the registry denied it, nothing was pulled       intent dropped, no grace
//	  Refused  … it failed otherwise, nothing was pulled          intent dropped
//	  Lost     … its answer was lost, the runtime may complete it intent stays
//	EndPod     the pod is gone                                    grants end
//	Revoke     proofs are taken back                              record on disk, then grants end
//	BeginRemoval, Prune  images were removed                      records go with them
//
// The verdict is policy.Reverify unless a fact on disk or a grant allows the use: after an error, a crash or a lost answer an image
// needs proof (KEP-2535 leaves open when records are written; here an intent is on disk before the runtime is called, and
// a record before the caller learns of the success).
//
// # Order of writes
//
// Disk, then memory, then the answer. Proved returns after the record is on disk and the grant is in memory; only then may the
// caller answer its client.
//
// # Preloaded images
//
// In the KEP an image that is present without any record was there before. Absence of evidence is weak, so only a scan sets the
// durable mark that an image is preloaded: on a full image list of the runtime that no pull and no removal overlapped (see
// scan in preload.go), under the conditions that records.Store.MarkPreloaded checks in its transaction.
//
// # Revocations
//
// A judgement or a pull may have begun before a revocation and end after it. It must leave no grant that depends on what was revoked.
//
//  1. Tracker.revocations goes up under mu inside the transaction of the revocation, and again when the grants end.
//  2. A judgement reads the number first and the store after it. Its grant is refused if the number has changed, and it judges again.
//  3. A pull reads no store. It is given the scope of each revocation since its start, and proves nothing that is in one.
//
// # Locks
//
// Tracker.mu guards the memory of the tracker. It is never held across a call to the store or
// to the runtime; the store may take it inside its write transaction, in the functions that Scan, Result and
// Revoke are given. Lock order: the store's write transaction, then mu.
package tracker
