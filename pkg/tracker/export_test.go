package tracker

import "github.com/pullgate/pullgate/internal/records"

// Uses returns the times of use in memory.
func (t *Tracker) Uses() map[records.Pair]records.Use {
	t.mu.Lock()
	defer t.mu.Unlock()
	uses := map[records.Pair]records.Use{}
	for p, u := range t.uses {
		uses[p] = u.taken()
	}
	return uses
}

// Holds returns the number of holds on scans so far.
func (t *Tracker) Holds() uint64 {
	holds, _ := t.scansHeld()
	return holds
}

// TakeUses and KeepUses are the steps of Flush before and after a failed write.
func (t *Tracker) TakeUses() map[records.Pair]records.Use { return t.takeUses() }

func (t *Tracker) KeepUses(uses map[records.Pair]records.Use) { t.keepUses(uses) }
