package records_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/pkg/records"
)

func TestIntentLivesUntilItIsProvedDroppedOrSettled(t *testing.T) {
	p := pair(id1, app)
	for name, tc := range map[string]struct {
		end  func(s *records.Store, id uint64) error
		want int
	}{
		"nothing": {func(*records.Store, uint64) error { return nil }, 1},
		"Prove": {func(s *records.Store, id uint64) error {
			return s.Prove(id, records.Result{Pair: p, Open: true, At: noon()})
		}, 0},
		"Drop":           {func(s *records.Store, id uint64) error { return s.Drop(id) }, 0},
		"Drop twice":     {func(s *records.Store, id uint64) error { return errors.Join(s.Drop(id), s.Drop(id)) }, 0},
		"Drop of none":   {func(s *records.Store, id uint64) error { return s.Drop(id + 1) }, 1},
		"End":            {func(s *records.Store, id uint64) error { return s.End(id, at(1)) }, 1},
		"End of none":    {func(s *records.Store, id uint64) error { return s.End(id+256, at(1)) }, 1},
		"End, then Drop": {func(s *records.Store, id uint64) error { return errors.Join(s.End(id, at(1)), s.Drop(id)) }, 0},
		"Settle":         {func(s *records.Store, id uint64) error { return s.Settle([]uint64{id}, nil, at(1)) }, 0},
		"Settle of none": {func(s *records.Store, id uint64) error { return s.Settle([]uint64{id + 1}, nil, at(1)) }, 1},
	} {
		s := newStore(t)
		if err := tc.end(s, begin(t, s, app)); err != nil {
			t.Errorf("%s = %v; want nil", name, err)
		}
		if got := lookup(t, s, p).Intents; got != tc.want {
			t.Errorf("%s leaves %d intents; want %d", name, got, tc.want)
		}
	}
}

func TestEndNotesWhenThePullWasLost(t *testing.T) {
	s := newStore(t)
	id := begin(t, s, app)
	if err := s.End(id, at(3)); err != nil {
		t.Fatal(err)
	}
	got, err := s.Intents()
	want := []records.Intent{{ID: id, Name: app + ":v1", Repository: app, Begun: noon(), Ended: at(3)}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("Intents() error %v (-want +got):\n%s", err, diff)
	}
}

func TestIntentIDsAreNeverUsedTwice(t *testing.T) {
	path := newPath(t)
	seen := map[uint64]bool{}
	for range 3 {
		s, _ := open(t, path, records.Options{})
		for range 3 {
			id := begin(t, s, app)
			if seen[id] {
				t.Errorf("Begin returned %d again", id)
			}
			seen[id] = true
			if err := s.Drop(id); err != nil {
				t.Error(err)
			}
		}
		closeStore(t, s)
	}
}

func TestIntentsOfOneRepositoryAreNotOfAnother(t *testing.T) {
	repositories := []string{
		"a", "a/b", "ab", "", "\x00", "a\x00", "a\x00b", "a\x00\x00\x00\x00\x00\x00\x00\x00\x01", "a\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00",
		strings.Repeat("a", 500),
	}
	for _, one := range repositories {
		s := newStore(t)
		begin(t, s, one)
		begin(t, s, one)
		for _, r := range repositories {
			want := 0
			if r == one {
				want = 2
			}
			if got := lookup(t, s, pair(id1, r)).Intents; got != want {
				t.Errorf("%d intents of %q after two pulls of %q; want %d", got, r, one, want)
			}
		}
	}
}

func TestDropEndsOnlyItsIntent(t *testing.T) {
	s := newStore(t)
	// IDs from 1 to 300, so that one is the end of another.
	ids := make([]uint64, 300)
	for i := range ids {
		ids[i] = begin(t, s, fmt.Sprintf("r%d", i%7))
	}
	if err := s.Drop(ids[0]); err != nil {
		t.Fatal(err)
	}
	all, err := s.Intents()
	if err != nil || len(all) != 299 || slices.ContainsFunc(all, func(in records.Intent) bool { return in.ID == ids[0] }) {
		t.Errorf("%d intents, %v; want all but the first", len(all), err)
	}
}

func TestUnreadableIntentStillCounts(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	id, sound := begin(t, s, app), begin(t, s, other)
	closeStore(t, s)
	inFile(t, path, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("intents"))
		k, _ := b.Cursor().First()
		// Keys that Begin never wrote tell nothing, and hide nothing.
		return errors.Join(b.Put(slices.Clone(k), []byte("?")), b.Put([]byte("short"), nil), b.Put([]byte("12345678"), nil))
	})
	s, _ = open(t, path, records.Options{})
	if got := lookup(t, s, pair(id1, app)).Intents; got != 1 {
		t.Errorf("%d intents; want 1", got)
	}
	all, err := s.Intents()
	has := func(id uint64, repository string) bool {
		return slices.ContainsFunc(all, func(in records.Intent) bool { return in.ID == id && in.Repository == repository })
	}
	if !errors.Is(err, records.ErrUnreadable) || !has(id, app) || !has(sound, other) {
		t.Errorf("Intents() = %v, %v; want both and ErrUnreadable", all, err)
	}
	if got := mark(t, s, pair(id1, app)); got != nil {
		t.Errorf("MarkPreloaded = %v; want none", got)
	}
	// End mends it.
	if err := s.End(id, at(2)); err != nil {
		t.Fatal(err)
	}
	if all, _ := s.Intents(); !slices.Contains(all, records.Intent{ID: id, Repository: app, Ended: at(2)}) {
		t.Errorf("Intents() after End = %v; want it ended", all)
	}
	if err := s.Drop(id); err != nil || lookup(t, s, pair(id1, app)).Intents != 0 {
		t.Errorf("Drop = %v; want no intent left", err)
	}
}

func TestSettleRecordsWhatIsPresentAsNobodys(t *testing.T) {
	s := newStore(t)
	known, marked, unknown, elsewhere := pair(id1, app), pair(id1, app+"/marked"), pair(id2, app), pair(id2, other)
	prove(t, s, records.Result{Pair: known, Credential: alice})
	if got := mark(t, s, pair("sha256:5", app+"/marked")); len(got) != 1 {
		t.Fatal("no mark")
	}
	marked.ImageID = "sha256:5"
	one, two := begin(t, s, app), begin(t, s, app+"/marked")
	begin(t, s, other)
	want := lookup(t, s, known).Record
	if err := s.Settle([]uint64{one, two, 999}, []records.Pair{known, marked, unknown, elsewhere}, at(5)); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[records.Pair]records.Facts{
		known:     {Record: want, Rivals: false},
		marked:    {Marked: true},
		unknown:   {Record: &records.Record{Pair: unknown, Created: at(5)}},
		elsewhere: {Intents: 1, Rivals: true},
	} {
		if diff := cmp.Diff(want, lookup(t, s, p)); diff != "" {
			t.Errorf("facts of %v (-want +got):\n%s", p, diff)
		}
	}
}
