package tracker

import (
	"maps"

	"github.com/pullgate/pullgate/internal/records"
)

// Uses returns the times of use in memory.
func (t *Tracker) Uses() map[records.Pair]records.Use {
	t.usesMu.Lock()
	defer t.usesMu.Unlock()
	return maps.Clone(t.uses)
}

// Holds returns the number of holds on scans so far.
func (t *Tracker) Holds() uint64 {
	holds, _ := t.scansHeld()
	return holds
}

// TakeUses and KeepUses are the steps of Flush before and after a failed write.
func (t *Tracker) TakeUses() map[records.Pair]records.Use { return t.takeUses() }

func (t *Tracker) KeepUses(uses map[records.Pair]records.Use) { t.keepUses(uses) }
