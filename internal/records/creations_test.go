package records_test

import (
	"slices"
	"testing"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

// scan marks those of the pairs that are due.
func scan(t *testing.T, s *records.Store, pairs ...records.Pair) []records.Pair {
	t.Helper()
	marked := testkit.Value(s.MarkPreloaded(records.Scan{Pairs: pairs, Now: at(9)}))(t)
	return marked
}

func beginCreation(t *testing.T, s *records.Store, image string, listed ...records.Pair) uint64 {
	t.Helper()
	id := testkit.Value(s.BeginCreation(records.Creation{Image: image, Listed: listed, Begun: noon()}))(t)
	return id
}

func TestNothingIsMarkedThatWasNotListedBeforeEveryCreation(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	before, between, after := pair(id1, app), pair(id1, other), pair(id2, app)
	one := beginCreation(t, s, "a", before)
	two := beginCreation(t, s, "b", before, between)
	closeStore(t, s) // as after a crash
	s, _ = open(t, path, records.Options{KeyExists: true})
	if got := scan(t, s, before, between, after); !slices.Equal(got, []records.Pair{before}) {
		t.Errorf("marked %v; want %v alone", got, before)
	}
	testkit.Must(t, s.DropCreation(one, ""))
	if got := scan(t, s, between, after); !slices.Equal(got, []records.Pair{between}) {
		t.Errorf("marked %v; want %v alone", got, between)
	}
	closed, err := s.SettleCreations([]uint64{two}, []records.Pair{before, between, after}, at(1))
	if err != nil || !slices.Equal(closed, []records.Pair{after}) {
		t.Errorf("SettleCreations = %v, %v; want %v, the one that was not listed before", closed, err, after)
	}
	if f := lookup(t, s, after); f.Record == nil || f.Record.Open || len(f.Record.Proofs) > 0 {
		t.Errorf("record = %+v; want one with nothing proved", f.Record)
	}
	if left, err := s.Creations(); err != nil || len(left) > 0 {
		t.Errorf("Creations = %v, %v; want none", left, err)
	}
}

// If a creation brought no image, neither did the earlier creations of its image whose answer was lost.
func TestDropCreationDropsLostOnesOfTheSameImage(t *testing.T) {
	s, _ := open(t, newPath(t), records.Options{})
	lost, again, another := beginCreation(t, s, "a"), beginCreation(t, s, "a"), beginCreation(t, s, "b")
	for _, id := range []uint64{lost, another} {
		testkit.Must(t, s.EndCreation(id, at(1)))
	}
	running := beginCreation(t, s, "a")
	testkit.Must(t, s.DropCreation(again, "a"))
	left, err := s.Creations()
	if err != nil || len(left) != 2 || left[0].ID != another || left[1].ID != running {
		t.Errorf("Creations = %v, %v; want %d of another image and %d, which is in progress", left, err, another, running)
	}
}

// However often the answer is lost, the store has one creation of an image. It lists the pairs that all of them listed.
func TestLostCreationsOfAnImageAreOne(t *testing.T) {
	s, _ := open(t, newPath(t), records.Options{})
	both, first := pair(id1, app), pair(id2, app)
	for _, listed := range [][]records.Pair{{both, first}, {both}, {both, first}} {
		testkit.Must(t, s.EndCreation(beginCreation(t, s, "a", listed...), at(1)))
	}
	left, err := s.Creations()
	if err != nil || len(left) != 1 || !slices.Equal(left[0].Listed, []records.Pair{both}) {
		t.Errorf("Creations = %v, %v; want one that lists %v", left, err, both)
	}
}
