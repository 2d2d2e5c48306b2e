// Package tracker is the front door of the library: it knows which credentials proved access to
// which image and judges who may use it.
//
// A program that pulls images for several tenants, like a kubelet or a proxy before a container
// runtime, asks and tells it these things:
//
//	Check      may this pod use this image under this name?      evidence → verdict
//	BeginPull  a pull is about to be sent to the runtime          intent on disk
//	  Proved   … it succeeded                                     record on disk, then grant
//	  Denied   … the registry denied it, nothing was pulled       intent dropped, no grace
//	  Refused  … it failed otherwise, nothing was pulled          intent dropped
//	  Lost     … its answer was lost, the runtime may complete it intent stays
//	EndPod     the pod is gone                                    grants end
//	Revoke     what was proved is to be proved anew               record on disk, then grants end
//	BeginRemoval, Prune  images were removed                      records go with them
//
// The verdict is policy.Reverify unless something on disk or a grant says otherwise: an error, a
// crash or a lost answer leaves an image needing proof (KEP-2535 leaves open when records are
// written; here an intent is on disk before the runtime is asked, and a record before the
// caller learns of the success).
//
// # Order of writes
//
// Disk, then memory, then the answer. Proved returns after the record is on disk and the grant
// is in memory; only then may the caller tell anybody.
//
// # What is taken for preloaded
//
// An image that is present though nothing is known about it was there before, says the KEP.
// Absence of evidence is weak, so a durable mark is set by one thing alone: a scan on a full
// image list of the runtime that no pull and no removal overlapped (see scan in preload.go),
// under the conditions that records.Store.MarkPreloaded checks in its transaction.
//
// # Locks
//
// Tracker.mu guards the memory of the tracker. It is never held across a call to the store or
// to the runtime; the store may take it inside its write transaction, through what Scan, Result and
// Revoke are given to ask. Lock order: the store's write transaction, then mu.
package tracker
