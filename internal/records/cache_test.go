package records_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

// unsynced disables the syncs of a store, which the tests of its memory do not need.
func unsynced(s *records.Store) {
	s.OnWrite(func(write records.WriteAt, b []byte, at int64) (int, error) { return write(b, at) })
}

// TestLookupSeesEveryWriteThatHasReturned has one writer for each pair, and many readers. Step n of a writer proves access if n is odd, and revokes
// that if n is even; the times in the record show the last step that a reader sees.
func TestLookupSeesEveryWriteThatHasReturned(t *testing.T) {
	const pairs, readers = 3, 64
	steps := 200
	if raced || testing.Short() {
		steps = 40
	}
	s := newStore(t)
	unsynced(s)
	var done [pairs]atomic.Int64 // steps whose call has returned
	var writers, reading sync.WaitGroup
	var ended atomic.Bool
	for i := range pairs {
		p := pair(id1, fmt.Sprintf("%s%d", app, i)) // one image, so that each write also changes facts of the other pairs
		writers.Go(func() {
			for n := 1; n <= steps; n++ {
				if n%2 == 1 {
					prove(t, s, records.Result{Pair: p, Credential: alice, At: at(n)})
				} else if _, err := s.Revoke(records.Revocation{Repository: p.Repository}, at(n), nil); err != nil {
					t.Error(err)
				}
				done[i].Store(int64(n))
			}
		})
		for range readers / pairs {
			reading.Go(func() {
				last := int64(0)
				for !ended.Load() {
					returned := done[i].Load()
					f, err := s.Lookup(p, alice)
					if err != nil {
						t.Error(err)
						return
					}
					seen, proved := int64(0), false
					if r := f.Record; r != nil {
						seen, proved = int64(max(r.LastUsed.Sub(noon()), r.Revoked.Sub(noon()))/time.Minute), len(r.Proofs) > 0
					}
					if seen < returned || seen < last || proved != (seen%2 == 1) {
						t.Errorf("Lookup sees step %d with proofs %v; step %d had returned, and step %d was seen before", seen, proved, returned, last)
						return
					}
					last = seen
				}
			})
		}
	}
	writers.Wait()
	ended.Store(true)
	reading.Wait()
}

func TestFactsInMemoryAreOfTheLastWrite(t *testing.T) {
	p, other := pair(id1, app), pair(id2, app+"/other")
	for name, write := range map[string]func(s *records.Store) error{
		"of another pair": func(s *records.Store) error {
			_, err := s.Begin("name", other.Repository, noon())
			return err
		},
		"of the key": func(s *records.Store) error { return s.SetKeyFingerprint("f") },
		"that fails on the disk": func(s *records.Store) error {
			s.OnWrite(func(records.WriteAt, []byte, int64) (int, error) { return 0, errors.New("disk") })
			if err := s.SetKeyFingerprint("f"); err == nil {
				return errors.New("the write has succeeded")
			}
			return nil
		},
	} {
		s := newStore(t)
		prove(t, s, records.Result{Pair: p, Credential: alice, At: noon()})
		if lookup(t, s, p); !s.Cached(p) {
			t.Errorf("%s: not in memory after Lookup", name)
		}
		if err := write(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s.Cached(p) {
			t.Errorf("%s: in memory after a write", name)
		}
	}
}

func TestNoFactsAreInMemoryDuringACommit(t *testing.T) {
	p := pair(id1, app)
	s := newStore(t)
	prove(t, s, records.Result{Pair: p, Credential: alice, At: noon()})
	lookup(t, s, p)
	during := 0
	s.OnWrite(func(write records.WriteAt, b []byte, at int64) (int, error) {
		if during++; at >= int64(2*os.Getpagesize()) { // while bbolt writes a meta page, readers wait
			lookup(t, s, p)
		}
		if s.Cached(p) {
			t.Error("in memory during a commit")
		}
		return write(b, at)
	})
	if err := s.SetKeyFingerprint("f"); err != nil || during < 2 {
		t.Fatalf("SetKeyFingerprint = %v after %d writes to the file", err, during)
	}
	if s.Cached(p) {
		t.Error("facts that were read during a commit are in memory after it")
	}
}

func TestUnchangedFactsStayInMemory(t *testing.T) {
	p := pair(id1, app)
	s := newStore(t)
	prove(t, s, records.Result{Pair: p, Credential: alice, At: noon()})
	lookup(t, s, p)
	if _, err := s.Prune(records.Pruning{Images: map[string]struct{}{id1: {}}, Before: s.Written()}); err != nil { // lists the image for the first time
		t.Fatal(err)
	}
	lookup(t, s, p)
	if _, err := s.Prune(records.Pruning{Images: map[string]struct{}{id1: {}}, Before: s.Written()}); err != nil || !s.Cached(p) {
		t.Errorf("Prune without changes = %v, in memory %v", err, s.Cached(p))
	}
	if _, _, err := s.BeginListed("name", app, noon(), nil); err != nil || s.Cached(p) {
		t.Errorf("BeginListed = %v, in memory %v; want an intent, which the facts count", err, s.Cached(p))
	}
	if got := lookup(t, s, p); got.Intents != 1 {
		t.Errorf("%d intents; want 1", got.Intents)
	}
}

func TestUnreadableFactsAreNotKeptInMemory(t *testing.T) {
	p := pair(id1, app)
	path := filepath.Join(t.TempDir(), "records.db")
	s, _ := open(t, path, records.Options{})
	prove(t, s, records.Result{Pair: p, Credential: alice, At: noon()})
	damageInPlace(t, path, key(p))
	for range 2 {
		if f, err := s.Lookup(p, alice); !errors.Is(err, records.ErrUnreadable) || f.Record != nil || s.Cached(p) {
			t.Errorf("Lookup = %v, %v, in memory %v; want ErrUnreadable", f, err, s.Cached(p))
		}
	}
	prove(t, s, records.Result{Pair: p, Credential: bob, At: noon()})
	if f := lookup(t, s, p); len(f.Record.Proofs) != 1 || f.Record.Proofs[0].Credential != bob {
		t.Errorf("Lookup = %v after the record was replaced", f.Record)
	}
}

// TestFactsForOneCredentialAreNotTheAnswerForAnother lets tenants that use one image ask in turns.
func TestFactsForOneCredentialAreNotTheAnswerForAnother(t *testing.T) {
	p := pair(id1, app)
	s := newStore(t)
	for i := range records.MaxProofs {
		prove(t, s, records.Result{Pair: p, Credential: numbered(i), At: at(i)})
	}
	for i := range 2 * records.MaxProofs { // the second half proved nothing
		if s.Cached(p, numbered(i)) {
			t.Errorf("credential %d: in memory before it was looked up", i)
		}
		f, err := s.Lookup(p, numbered(i))
		if err != nil || !f.Proved || (len(only(f.Record, []credential.ID{numbered(i)}).Proofs) == 1) != (i < records.MaxProofs) {
			t.Errorf("Lookup for credential %d = %+v, %v", i, f.Record, err)
		}
		if i > 0 && i < records.MaxProofs && !s.Cached(p, numbered(i), numbered(i-1)) {
			t.Errorf("credentials %d and %d: not in memory", i-1, i)
		}
		if _, bytes, _ := s.CachedFacts(); bytes > 200<<10 {
			t.Fatalf("%d bytes for one pair", bytes)
		}
	}
	if s.Cached(p, numbered(0)) {
		t.Errorf("the first of %d credentials is in memory; want at most the last %d", 2*records.MaxProofs, records.MaxProofs+1)
	}
}

func numbered(i int) credential.ID { return credential.ID(fmt.Sprintf("credential %d", i)) }

func TestClosedStoreHasNoFactsInMemory(t *testing.T) {
	p := pair(id1, app)
	s, _ := open(t, filepath.Join(t.TempDir(), "records.db"), records.Options{})
	prove(t, s, records.Result{Pair: p, Credential: alice, At: noon()})
	lookup(t, s, p)
	closeStore(t, s)
	if f, err := s.Lookup(p); err == nil {
		t.Errorf("Lookup in a closed store = %v", f)
	}
}

func TestMemoryOfFactsIsBounded(t *testing.T) {
	s := newStore(t)
	bounded := func(what string) (pairs int) {
		t.Helper()
		pairs, bytes, noted := s.CachedFacts()
		if pairs > records.MaxCachedPairs || bytes > records.MaxCached || bytes != noted {
			t.Errorf("%s: %d pairs of %d bytes, noted %d; want at most %d of %d", what, pairs, bytes, noted, records.MaxCachedPairs, records.MaxCached)
		}
		return pairs
	}
	var readers sync.WaitGroup
	all := 2 * records.MaxCachedPairs
	if raced { // still twice too many: the readers look up pairs of two repositories
		all /= 2
	}
	for i := range 8 {
		readers.Go(func() {
			for j := range all {
				lookup(t, s, pair(fmt.Sprintf("sha256:%d", j), fmt.Sprintf("repo%d", i%2)))
			}
		})
	}
	readers.Wait()
	if pairs := bounded("unknown pairs"); pairs < records.MaxCachedPairs/2 {
		t.Errorf("%d pairs in memory; want most of %d", pairs, records.MaxCachedPairs)
	}

	path := filepath.Join(t.TempDir(), "records.db")
	s, _ = open(t, path, records.Options{})
	closeStore(t, s)
	const large = 300
	inFile(t, path, func(tx *bolt.Tx) error {
		for i := range large {
			p := pair(fmt.Sprintf("sha256:%d", i), app)
			value, err := records.Encode("records", key(p), manyProofs(p))
			if err == nil {
				err = tx.Bucket([]byte("records")).Put(key(p), value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	s, _ = open(t, path, records.Options{})
	var every []credential.ID
	for _, proof := range manyProofs(records.Pair{}).Proofs {
		every = append(every, proof.Credential)
	}
	for range 4 {
		readers.Go(func() {
			for i := range large {
				if f, err := s.Lookup(pair(fmt.Sprintf("sha256:%d", i), app), every...); err != nil || len(f.Record.Proofs) != len(every) {
					t.Errorf("Lookup = %+v, %v", f, err)
				}
			}
		})
	}
	readers.Wait()
	bounded("large records")
}

func TestLookupFromMemoryAllocatesNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates")
	}
	p := pair(id1, app)
	s := newStore(t)
	prove(t, s, records.Result{Pair: p, Credential: alice, At: noon()})
	lookup(t, s, p)
	n := testing.AllocsPerRun(100, func() {
		if f, err := s.Lookup(p, alice); err != nil || len(f.Record.Proofs) != 1 {
			t.Errorf("Lookup = %+v, %v", f, err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}
