package tracker

import (
	"maps"

	"github.com/pullgate/pullgate/pkg/records"
)

// Uses returns what is in memory of the times of use.
func (t *Tracker) Uses() map[records.Pair]records.Use {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.uses)
}

// Holds returns how often scans have been held.
func (t *Tracker) Holds() uint64 {
	holds, _ := t.scansHeld()
	return holds
}

// TakeUses and KeepUses are what Flush does before and after a write that fails.
func (t *Tracker) TakeUses() map[records.Pair]records.Use { return t.takeUses() }

func (t *Tracker) KeepUses(uses map[records.Pair]records.Use) { t.keepUses(uses) }
