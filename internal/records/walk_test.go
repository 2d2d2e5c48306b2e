package records_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

func compare(a, b records.Pair) int {
	return strings.Compare(a.ImageID+"\x00"+a.Repository, b.ImageID+"\x00"+b.Repository)
}

// listsAreTheModel compares the lists of a store with a model.
func listsAreTheModel(t *testing.T, s *records.Store, m *model) {
	t.Helper()
	var found, marked, listed []records.Pair
	for _, i := range testkit.Value(s.Images())(t) {
		for _, r := range i.Records {
			found = append(found, r.Pair)
		}
		for _, mark := range i.Marks {
			marked = append(marked, mark.Pair)
		}
	}
	wantPairs(t, "records of Images", found, slices.SortedFunc(maps.Keys(m.records), compare))
	marks := slices.SortedFunc(maps.Keys(m.marks), compare)
	wantPairs(t, "marks of Images", marked, marks)
	for _, mark := range testkit.Value(s.Marks())(t) {
		listed = append(listed, mark.Pair)
	}
	wantPairs(t, "Marks", listed, marks)
	intents := map[uint64]records.Intent{}
	for _, in := range testkit.Value(s.Intents())(t) {
		intents[in.ID] = in
	}
	if !cmp.Equal(intents, m.intents) {
		t.Fatalf("Intents = %v; want %v", intents, m.intents)
	}
	var want []records.Endorsement
	for _, p := range slices.SortedFunc(maps.Keys(m.endorsed), compare) {
		want = append(want, m.ofPair(p)...)
	}
	if got := endorsed(t, s); !cmp.Equal(got, want) {
		t.Fatalf("endorsements = %v; want %v", got, want)
	}
}

func wantPairs(t *testing.T, what string, got, want []records.Pair) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s = %v; want %v", what, got, want)
	}
}
