package crashpoint

// Env names the environment variable that holds the point to die at: its name, or name#N for the
// N-th time that it is passed.
const Env = "PULLGATE_CRASHPOINT"

// The points, in the order of a pull's life.
const (
	StoreTemporary = "records.create.temporary" // the new store is whole, under its temporary name
	StoreRenamed   = "records.create.renamed"   // it has its name, the directory is not synced
	SetAside       = "records.damaged.aside"    // a damaged store has been renamed
	KeyMissing     = "daemon.key.missing"       // the store is there, the node's key is not
	BeginBefore    = "records.begin.before"     // a pull is about to get its intent
	BeginAfter     = "records.begin.after"      // the intent is on disk, the runtime has no call
	Pulled         = "criproxy.pull.answered"   // the runtime has pulled, nothing is recorded
	ProveBefore    = "records.prove.before"     // the record is about to be written
	ProveAfter     = "records.prove.after"      // the record is on disk, and not yet in memory
	Verified       = "endorse.verified"         // signatures are verified, no endorsement is written
	EndorseBefore  = "records.endorse.before"   // signatures are verified, endorsements are about to be written
	EndorseAfter   = "records.endorse.after"    // they are on disk, the kubelet has no answer
	Recorded       = "criproxy.pull.recorded"   // record and grant exist, the kubelet has no answer
	Endorsed       = "criproxy.pull.endorsed"   // the endorsements exist too, the kubelet has no answer
	DropBefore     = "records.drop.before"
	DropAfter      = "records.drop.after"
	EndBefore      = "records.end.before"
	EndAfter       = "records.end.after"
	MarkBefore     = "records.mark.before"
	MarkAfter      = "records.mark.after"
	SettleBefore   = "records.settle.before"
	SettleAfter    = "records.settle.after"
	PruneBefore    = "records.prune.before"
	PruneAfter     = "records.prune.after"
	RotateBefore   = "records.rotate.before" // a Secret's new credential is about to replace its old one
	RotateAfter    = "records.rotate.after"
	RevokeBefore   = "records.revoke.before" // what was proved is about to be proved no more
	RevokeAfter    = "records.revoke.after"  // it is so on disk, grants still rest on it
	AcceptBefore   = "records.accept.before" // an operator's marks are about to be set
	AcceptAfter    = "records.accept.after"
	ForgetBefore   = "records.forget.before"   // marks are about to give way to records with nothing proved
	ForgetAfter    = "records.forget.after"    // they have on disk, grants still rest on them
	WithdrawBefore = "records.withdraw.before" // endorsements are about to be revoked
	WithdrawAfter  = "records.withdraw.after"
	CompactWritten = "offline.compact.written" // the compacted store is whole, under its temporary name
	CompactRenamed = "offline.compact.renamed" // it has its name, the directory is not synced
	Created        = "criproxy.create.created" // the runtime has created a container, it is not read back
)

// All returns every point.
func All() []string {
	return []string{
		StoreTemporary, StoreRenamed, SetAside, KeyMissing, BeginBefore, BeginAfter, Pulled, ProveBefore,
		ProveAfter, Verified, EndorseBefore, EndorseAfter, Recorded, Endorsed, DropBefore, DropAfter, EndBefore, EndAfter, MarkBefore, MarkAfter, SettleBefore,
		SettleAfter, PruneBefore, PruneAfter, RotateBefore, RotateAfter, RevokeBefore, RevokeAfter,
		AcceptBefore, AcceptAfter, ForgetBefore, ForgetAfter, WithdrawBefore, WithdrawAfter, CompactWritten, CompactRenamed, Created,
	}
}
