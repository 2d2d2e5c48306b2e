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

// pagesAreTheModel walks everything page by page.
func pagesAreTheModel(t *testing.T, s *records.Store, m *model, size int) {
	t.Helper()
	var found, marked []records.Pair
	for from, more := "", true; more; {
		page := testkit.Value(s.Images(from, size))(t)
		for _, i := range page {
			from = records.After(i.ImageID)
			for _, r := range i.Records {
				found = append(found, r.Pair)
			}
			for _, mark := range i.Marks {
				marked = append(marked, mark.Pair)
			}
		}
		more = len(page) == size
	}
	wantPairs(t, "records of Images", found, slices.SortedFunc(maps.Keys(m.records), compare))
	marks := slices.SortedFunc(maps.Keys(m.marks), compare)
	wantPairs(t, "marks of Images", marked, marks)
	marked = nil
	for after, more := "", true; more; {
		page := testkit.Value(s.MarksAfter(after, size))(t)
		for _, mark := range page {
			after = mark.Key
			marked = append(marked, mark.Value.Pair)
		}
		more = len(page) == size
	}
	wantPairs(t, "MarksAfter", marked, marks)
	intents := map[uint64]records.Intent{}
	for after, more := "", true; more; {
		page := testkit.Value(s.IntentsAfter(after, size))(t)
		for _, in := range page {
			intents[in.Value.ID], after = in.Value, in.Key
		}
		more = len(page) == size
	}
	var endorsed, wantEndorsed []records.Endorsement
	for after, more := "", true; more; {
		page := testkit.Value(s.EndorsementsAfter(after, size))(t)
		for _, e := range page {
			endorsed, after = append(endorsed, e.Value), e.Key
		}
		more = len(page) == size
	}
	for _, p := range slices.SortedFunc(maps.Keys(m.endorsed), compare) {
		wantEndorsed = append(wantEndorsed, m.ofPair(p)...)
	}
	if !cmp.Equal(endorsed, wantEndorsed) {
		t.Fatalf("EndorsementsAfter = %v; want %v", endorsed, wantEndorsed)
	}
	if !cmp.Equal(intents, m.intents) {
		t.Fatalf("IntentsAfter = %v; want %v", intents, m.intents)
	}
}

func wantPairs(t *testing.T, what string, got, want []records.Pair) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s = %v; want %v", what, got, want)
	}
}
