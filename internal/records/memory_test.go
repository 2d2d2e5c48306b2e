package records_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

// Disk, then memory: while a write is being committed, look-ups neither wait for it nor see what it writes.
func TestLookupDuringACommitSeesTheFactsFromBefore(t *testing.T) {
	p, s := pair(id1, app), newStore(t)
	in := begin(t, s, app)
	during := 0
	s.OnWrite(func(write records.WriteAt, b []byte, at int64) (int, error) {
		during++
		if f := lookup(t, s, p); f.Record != nil || f.Intents != 1 {
			t.Errorf("facts during the commit = %+v; want the intent alone", f)
		}
		return write(b, at)
	})
	testkit.Must(t, s.Prove(in, records.Result{Pair: p, Credential: alice, At: noon()}))
	if f := lookup(t, s, p); during == 0 || f.Record == nil || f.Intents != 0 {
		t.Errorf("facts after %d writes to the file = %+v; want the record alone", during, f)
	}
}

// There is one writer for each pair, and there are many readers. Step n of a writer proves access if n is odd, and
// revokes that if n is even; the times in the record show the last step that a reader sees.
// Shows: 001-25
func TestLookupSeesEveryWriteThatHasReturned(t *testing.T) {
	const pairs = 3
	readers, steps := 63, 200
	if sampling() { // readers that never pause keep a writer waiting, and with the detector each of them for longer
		readers, steps = 6, 40
	}
	s := newStore(t)
	s.OnWrite(func(write records.WriteAt, b []byte, at int64) (int, error) { return write(b, at) }) // without syncs
	// steps whose call has returned
	var done [pairs]atomic.Int64
	var writers, reading sync.WaitGroup
	var ended atomic.Bool
	for i := range pairs {
		p := pair(id1, fmt.Sprintf("%s%d", app, i)) // one image, so that each write also changes facts of the other pairs
		writers.Go(func() {
			for n := 1; n <= steps; n++ {
				if n%2 == 1 {
					prove(t, s, records.Result{Pair: p, Credential: alice, At: at(n)})
				} else if _, err := s.Revoke(records.Revocation{Repository: p.Repository}, at(n), nil, false); err != nil {
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
					f, err := s.Lookup(p)
					if err != nil {
						t.Error(err)
						return
					}
					seen, proved := int64(0), false
					if r := f.Record; r != nil {
						seen, proved = int64(max(r.LastUsed.Sub(noon()), r.Revoked.Sub(noon()))/time.Minute), len(r.Proofs) > 0
					}
					if seen < returned || seen < last || proved != (seen%2 == 1) {
						t.Errorf("Lookup sees step %d with proofs %v; step %d had returned, and step %d was seen before", seen, proved,
							returned, last)
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

// 500 pairs with 20 proofs each take at most 5 MB of memory.
func TestMemoryOfFactsIsBounded(t *testing.T) {
	path := newPath(t)
	s, _ := open(t, path, records.Options{})
	closeStore(t, s)
	manyRecords(t, path, 500, 20)
	before := heap()
	s, _ = open(t, path, records.Options{})
	loaded := heap() - before
	uses := map[records.Pair]records.Use{} // every record is written again
	for i := range 500 {
		uses[numbered(i)] = records.Use{At: time.Now()}
	}
	testkit.Must(t, s.Touch(uses))
	if written := heap() - before; loaded > 5<<20 || written > 5<<20 {
		t.Errorf("%d bytes after the load, %d after every record was written; want at most 5 MB", loaded, written)
	} else {
		t.Logf("%d bytes after the load, %d after every record was written", loaded, written)
	}
	runtime.KeepAlive(s)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func numbered(i int) records.Pair {
	return pair(fmt.Sprintf("sha256:%064x", i), fmt.Sprintf("registry.example/team/app-%d", i))
}

// manyRecords writes records with proofs by as many credentials into the file of a closed store.
func manyRecords(tb testing.TB, path string, n, proofs int) {
	tb.Helper()
	inFile(tb, path, func(tx *bolt.Tx) error {
		for i := range n {
			r := records.Record{Pair: numbered(i), Created: noon(), LastUsed: noon()}
			for j := range proofs {
				r.Proofs = append(r.Proofs, records.Proof{
					Credential: credential.ID(fmt.Sprintf("%064x", j)), FirstProved: noon(), LastProved: noon(), LastUsed: noon(),
					Namespace: fmt.Sprintf("team-%d", j),
					Secrets: []records.SecretRef{{
						UID:       fmt.Sprintf("7f1d3c52-0000-4000-8000-%012d", j),
						Namespace: fmt.Sprintf("team-%d", j), Name: "registry",
					}},
				})
			}
			stored, err := records.Encode("records", key(r.Pair), r)
			if err == nil {
				err = tx.Bucket([]byte("records")).Put(key(r.Pair), stored)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
