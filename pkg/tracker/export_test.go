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

// Moves returns how many pulls and removals ever began.
func (t *Tracker) Moves() uint64 {
	moves, _ := t.still()
	return moves
}
