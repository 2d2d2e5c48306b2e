// Package tracker implements the record of which credentials proved access to which image, and decides which pods may use an image.
//
// A program that pulls images for several tenants, like a kubelet or a proxy before a container runtime, calls:
//
//	Check      may this pod use this image under this name?      evidence → verdict
//	BeginPull  a pull is about to be sent to the runtime          intent on disk
//	  Proved   the pull succeeded                                 record on disk, then grant
//	  Denied   the registry denied the pull, nothing was pulled   intent deleted, no grace
//	  Refused  the pull failed otherwise, nothing was pulled      intent deleted
//	  Lost     the answer was lost, the runtime may complete it   intent stays
//	EndPod     the pod is gone                                    grants end
//	Revoke     an operator revokes proofs                         record on disk, then grants end
//	BeginRemoval, Prune  images were removed                      their records are deleted
//
// The verdict is policy.Reverify unless a fact on disk or a grant allows the use: after an error, a crash or a lost answer an image needs proof.
// KEP-2535 does not define when records are written; this package writes an intent to disk before the caller calls the runtime, and a record
// before the caller gets the result.
//
// # Order of writes
//
// Disk, then memory, then the answer. Proved returns after the record is on disk and the grant is in memory; only then may the
// caller answer its client.
//
// # Preloaded images
//
// In the KEP an image without a record is preloaded. A missing record is weak evidence, so only a scan sets the durable mark that an image is
// preloaded. A scan uses a full image list of the runtime that no pull and no removal overlapped (see scan in preload.go), and marks under the
// conditions that records.Store.MarkPreloaded checks in its transaction.
//
// # Revocations
//
// A judgement or a pull may begin before a revocation and end after it. It must not leave a grant that depends on a revoked proof.
//
//  1. A revocation increments Tracker.revocations under mu inside its transaction, and again when the grants end.
//  2. A judgement reads the counter first and the store after it. If the counter has changed, the grant is refused and the tracker judges again.
//  3. A pull does not read the store. It receives the scope of each revocation since its start, and proves nothing that is in one of these
//     scopes.
//
// # Locks
//
// Tracker.mu guards the memory of the tracker. A judgement that repeats an earlier Allow only reads under it. The tracker never holds it across a call to the store or to the runtime. The store may acquire it
// inside its write transaction, in the functions that Scan, Result and Revoke receive. Lock order: the store's write transaction, then mu.
package tracker
