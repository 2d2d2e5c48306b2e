package records_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/records"
)

func compare(a, b records.Pair) int {
	return strings.Compare(a.ImageID+"\x00"+a.Repository, b.ImageID+"\x00"+b.Repository)
}

// pagesAreTheModel walks everything page by page.
func pagesAreTheModel(t *testing.T, s *records.Store, m *model, size int) {
	t.Helper()
	var found, marked []records.Pair
	for from, more := "", true; more; {
		page, err := s.Images(from, size)
		must(t, err)
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
		page, err := s.MarksAfter(after, size)
		must(t, err)
		for _, mark := range page {
			after = mark.Key
			marked = append(marked, mark.Value.Pair)
		}
		more = len(page) == size
	}
	wantPairs(t, "MarksAfter", marked, marks)
	intents := map[uint64]records.Intent{}
	for after, more := "", true; more; {
		page, err := s.IntentsAfter(after, size)
		must(t, err)
		for _, in := range page {
			intents[in.Value.ID], after = in.Value, in.Key
		}
		more = len(page) == size
	}
	var endorsed, wantEndorsed []records.Endorsement
	for after, more := "", true; more; {
		page, err := s.EndorsementsAfter(after, size)
		must(t, err)
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

// A value that cannot be read is reported by its key, and a forgotten mark is deleted whether it can be read or not.
func TestPagesTellWhatCannotBeRead(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	marked, recorded := pair(id1, app), pair(id2, app)
	if _, err := s.AcceptMarks([]records.Pair{marked}, "operator", noon(), nil); err != nil {
		t.Fatal(err)
	}
	prove(t, s, records.Result{Pair: recorded, Credential: alice})
	if _, err := s.Begin("name", app, noon()); err != nil {
		t.Fatal(err)
	}
	damageInPlace(t, path, key(marked), key(recorded), []byte(app+"\x00\x00\x00\x00\x00\x00\x00\x00\x02"))
	images, err := s.Images("", 10)
	if err != nil || len(images) != 2 || !slices.Equal(images[0].Unreadable, []string{app}) || !slices.Equal(images[1].Unreadable, []string{app}) {
		t.Errorf("Images = %+v, %v; want both repositories unreadable", images, err)
	}
	marks, err := s.MarksAfter("", 10)
	if err != nil || len(marks) != 1 || marks[0].Value != (records.Mark{Pair: marked}) {
		t.Errorf("MarksAfter = %+v, %v; want the pair alone", marks, err)
	}
	intents, err := s.IntentsAfter(app, 10)
	if err != nil || len(intents) != 1 || intents[0].Value.Repository != app || intents[0].Value.Name != "" {
		t.Errorf("IntentsAfter = %+v, %v; want the repository alone", intents, err)
	}
	if d, err := s.Describe(marked); !errors.Is(err, records.ErrUnreadable) || d.Mark != nil || len(d.OfIntents) != 1 {
		t.Errorf("Describe = %+v, %v; want ErrUnreadable, and the intent by its key", d, err)
	}
	if gone, err := s.ForgetMarks(records.Selection{All: true}, noon()); err != nil || len(gone.Marks) != 1 {
		t.Errorf("ForgetMarks = %v, %v; want the mark gone", gone, err)
	}
	if f := lookup(t, s, marked); f.Marked || f.Record == nil || !f.Record.Revoked.Equal(noon()) {
		t.Errorf("facts = %+v; want a record with nothing proved", f)
	}
}

func TestMarksThatAreNotAgreedToAreNotAccepted(t *testing.T) {
	s, _ := open(t, newPath(t), records.Options{KeyExists: true})
	refused := errors.New("refused")
	got, err := s.AcceptMarks([]records.Pair{pair(id1, app)}, "operator", noon(), func(records.Acceptable) error { return refused })
	if !errors.Is(err, refused) || got.Pairs != nil {
		t.Errorf("AcceptMarks = %v, %v; want the error of agree", got, err)
	}
	if lookup(t, s, pair(id1, app)).Marked {
		t.Error("the pair is marked")
	}
	if due, err := s.Due([]records.Pair{pair(id1, app)}, nil); err != nil || len(due) != 1 {
		t.Errorf("Due = %v, %v; want the pair, whatever the distrust", due, err)
	}
}
