package records_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
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
	const pairs, readers = 3, 64
	steps := 200
	if testkit.Raced || testing.Short() {
		steps = 40
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
