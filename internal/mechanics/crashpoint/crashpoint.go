package crashpoint

// Env names the environment variable that holds the point to die at: its name, or name#N for the
// N-th time that it is passed.
const Env = "PULLGATE_CRASHPOINT"

// The points, in the order of a pull's life. Those of a write to the store are in Writes.
const (
	StoreTemporary = "records.create.temporary" // the new store is whole, under its temporary name
	StoreRenamed   = "records.create.renamed"   // it has its name, the directory is not synced
	SetAside       = "records.damaged.aside"    // a damaged store has been renamed
	KeyMissing     = "daemon.key.missing"       // the store is there, the node's key is not
	Pulled         = "criproxy.pull.answered"   // the runtime has pulled, nothing is recorded
	Verified       = "endorse.verified"         // signatures are verified, no endorsement is written
	Recorded       = "criproxy.pull.recorded"   // record and grant exist, the kubelet has no answer
	Endorsed       = "criproxy.pull.endorsed"   // the endorsements exist too, the kubelet has no answer
	CompactWritten = "offline.compact.written"  // the compacted store is whole, under its temporary name
	CompactRenamed = "offline.compact.renamed"  // it has its name, the directory is not synced
	Created        = "criproxy.create.created"  // the runtime has created a container, it is not read back
	AccessAdded    = "imageaccess.added"        // new rights are noted, they are not in force
	AccessEnded    = "imageaccess.ended"        // old rights have ended, they are still noted
)

// The writes to the store. Each has the points Before and After.
const (
	Begin    = "records.begin"
	Prove    = "records.prove"
	Endorse  = "records.endorse"
	Drop     = "records.drop"
	End      = "records.end"
	Mark     = "records.mark"
	Settle   = "records.settle"
	Prune    = "records.prune"
	Rotate   = "records.rotate"
	Revoke   = "records.revoke"
	Accept   = "records.accept"
	Forget   = "records.forget"
	Withdraw = "records.withdraw" // endorsements are revoked
)

// Before returns the point before a write.
func Before(write string) string { return write + ".before" }

// After returns the point after a write: it is on disk, and not yet in memory.
func After(write string) string { return write + ".after" }

// All returns every point.
func All() []string {
	all := []string{
		StoreTemporary, StoreRenamed, SetAside, KeyMissing, Pulled, Verified, Recorded, Endorsed, CompactWritten,
		CompactRenamed, Created, AccessAdded, AccessEnded,
	}
	for _, w := range []string{
		Begin, Prove, Endorse, Drop, End, Mark, Settle, Prune, Rotate, Revoke, Accept, Forget, Withdraw,
	} {
		all = append(all, Before(w), After(w))
	}
	return all
}
