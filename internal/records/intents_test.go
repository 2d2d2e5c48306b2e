package records_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

func settlement(intents ...records.Intent) records.Settlement {
	return records.Settlement{Intents: intents, Now: at(5)}
}

func TestIntentIDsAreNeverUsedTwice(t *testing.T) {
	path := newPath(t)
	seen := map[uint64]bool{}
	for range 3 {
		s, _ := open(t, path, records.Options{})
		for range 3 {
			in := begin(t, s, app)
			if seen[in.ID] {
				t.Errorf("Begin returned %d again", in.ID)
			}
			seen[in.ID] = true
			if err := s.Drop(in); err != nil {
				t.Error(err)
			}
		}
		closeStore(t, s)
	}
}

func namesOf(t *testing.T, s *records.Store) (names []string) {
	t.Helper()
	all, err := s.Intents()
	if err != nil {
		t.Error(err)
	}
	for _, in := range all {
		names = append(names, in.Name)
	}
	return names
}

// A tenant may make up many names; the store still keeps few intents of a repository. If it does not know the names,
// every image of the repository needs proof.
func TestEndBoundsTheIntentsOfOneRepository(t *testing.T) {
	s := newStore(t)
	most := 0
	for n := range 4 * records.MaxUnresolved {
		in, err := s.Begin(fmt.Sprintf("%s:%d", app, n), app, noon())
		if err = errors.Join(err, s.End(in, at(n))); err != nil {
			t.Fatal(err)
		}
		most = max(most, lookup(t, s, pair(id1, app)).Intents)
	}
	if most > records.MaxUnresolved {
		t.Errorf("%d intents of one repository; want at most %d", most, records.MaxUnresolved)
	}
	if names := namesOf(t, s); !slices.Contains(names, "") {
		t.Errorf("names %q; want one intent without a name", names)
	}
}

// lostPulls fills a store with ended intents, each of its own repository.
func lostPulls(tb testing.TB, s *records.Store, n int) []records.Intent {
	tb.Helper()
	for i := range n {
		repository := fmt.Sprintf("tenant.test/%05d/%0200d", i, i)
		testkit.Value(s.Begin(repository+":1", repository, noon()))(tb)
	}
	begun, err := s.Intents()
	if err = errors.Join(err, s.EndAll(begun, at(1))); err != nil {
		tb.Fatal(err)
	}
	ended, err := s.Intents()
	if err != nil || len(ended) != n {
		tb.Fatalf("Intents = %d, %v; want %d", len(ended), err, n)
	}
	return ended
}

// The work of a settlement grows linearly with the number of intents, and no transaction is longer than one batch.
func TestSettleIsLinearAndInBatches(t *testing.T) {
	for _, n := range []int{1, 1000, 4000} {
		if n > 1000 && sampling() {
			continue
		}
		transactions := 0
		s, _ := open(t, newPath(t), records.Options{OnSync: func(time.Duration) { transactions++ }})
		s.OnWrite(func(write records.WriteAt, b []byte, at int64) (int, error) { return write(b, at) }) // without syncs
		of := settlement(lostPulls(t, s, n)...)
		for i := range 100 { // only images of the first repository
			of.Present = append(of.Present, pair(fmt.Sprintf("sha256:%d", i), of.Intents[0].Repository))
		}
		asked := 0
		of.Brought = func(records.Intent, records.Pair) bool { asked++; return true }
		transactions = 0
		testkit.Must(t, s.Settle(of))
		if want := (n + records.MaxBatch - 1) / records.MaxBatch; transactions != want || asked != len(of.Present) {
			t.Errorf("settling %d intents took %d transactions and looked at %d pairs; want %d and %d", n, transactions, asked,
				want, len(of.Present))
		}
		if left := namesOf(t, s); len(left) > 0 {
			t.Errorf("%d of %d intents left; want none", len(left), n)
		}
		closeStore(t, s)
	}
}
