// Package tracker records which credentials proved access to which image, and decides which pods may use an image.
//
// It is for a program that pulls images for several tenants, like a kubelet or a proxy before a container runtime.
// docs/examples/library is a complete one. It calls:
//
//	method                when                                               effect
//	Open, Close           at the start and at the end                        opens or makes the store and the key
//	Sync                  the runtime was reached, at the start and after    prunes, and marks preloaded images
//	                      each of its restarts
//	Run                   in a goroutine, from start to end                  upkeep once a minute: Flush, Settle,
//	                                                                         SettleCreates, Prune, marks
//	Check                 a pod wants to use an image                        evidence → verdict; an Allow adds a grant
//	CheckID               the runtime has no image of that name              verdict: may the caller see that error?
//	Explain               an operator asks why                               the verdict of Check, without effect
//	BeginPull             before the runtime receives a pull                 intent on disk; no pull after an error
//	Pull.Proved           the pull succeeded                                 record on disk, then grant
//	Pull.Denied           the registry denied it                             intent deleted, no grace for the credential
//	Pull.Refused          it failed otherwise and brought nothing            intent deleted
//	Pull.Lost             its answer was lost                                intent stays; Run settles it after an hour
//	BeginCreate, Create.* around a call that creates a container, if the     images of a restored checkpoint need proof
//	                      runtime can restore checkpoints
//	BeginRemoval, Removed before and after the removal of an image           no marks meanwhile; records deleted
//	EndPod                the last sandbox of a pod is gone                  its grants end
//	Restore               at the start, for each container that is running   a grant, unless something was revoked since
//	HandOver, TakeOver    as the last and the first call, at an orderly      the grants move to the next process
//	                      restart
//	Revoke, ForgetMarks,  an operator corrects                               on disk, then grants end
//	AcceptMarks,
//	EndDistrust
//	SetRules              the configuration changed                          for judgements that begin afterwards
//
// A caller without checkpoints, restarts that keep grants, and operators needs Open, Sync, Run, Check, BeginPull with
// the four ends, EndPod, BeginRemoval, Removed and Close.
//
// The tracker fails closed: the verdict is policy.Reverify unless a fact on disk or a grant allows the use. After an
// error, a crash or a lost answer an image needs proof. KEP-2535 does not define when records are written; this package
// writes an intent to disk before the caller calls the runtime, and a record before the caller gets the result.
//
// The order is disk, then memory, then the answer. Proved returns after the record is on disk and the grant is in
// memory; only then may the caller answer its client.
//
// In the KEP an image without a record is preloaded. A missing record is weak evidence, so only a scan sets the durable
// mark that an image is preloaded, from a full image list of the runtime that no pull and no removal overlapped.
//
// # Locks
//
// An operation that writes holds Tracker.turn from before it reads the facts that it decides by until its effects are
// in memory. So a revocation, the end of a pull, a scan and the restoration of a grant never overlap. A pull that began
// before a revocation receives its scope, and proves nothing that is in it.
//
// Tracker.mu guards grants. A judgement reads facts and grants under it; one that adds a grant evaluates again
// under the write lock. A revocation removes the proofs first and then ends the grants under the write lock, so that no
// grant outlives the proof on which it depends.
//
// Lock order: turn, mu, then usesMu and the lock of the store's facts. Except for turn, none is held during a write to
// disk or a call to the runtime.
package tracker
