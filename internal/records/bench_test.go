package records_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

// BenchmarkSettle settles 20,000 intents while pulls begin, and reports the longest duration of one Begin.
func BenchmarkLookup(b *testing.B) {
	all := fill(b)
	path := filepath.Join(b.TempDir(), "records.db")
	writeFile(b, path, all.content)
	s, _ := open(b, path, records.Options{})
	for i := 0; b.Loop(); i++ {
		testkit.Value(s.Lookup(all.pairs[i%len(all.pairs)]))(b)
	}
}

// BenchmarkBeginAndProve measures a pull: two transactions, each synced.
func BenchmarkBeginAndProve(b *testing.B) {
	all := fill(b)
	path := filepath.Join(b.TempDir(), "records.db")
	writeFile(b, path, all.content)
	s, _ := open(b, path, records.Options{})
	for i := 0; b.Loop(); i++ {
		prove(b, s, records.Result{Pair: all.pairs[i%len(all.pairs)], Credential: alice})
	}
}

// BenchmarkSettle settles 20,000 intents while pulls begin, and reports the longest duration of one Begin.
func BenchmarkSettle(b *testing.B) {
	var longest time.Duration
	for b.Loop() {
		b.StopTimer()
		s, _ := open(b, filepath.Join(b.TempDir(), "records.db"), records.Options{})
		all := lostPulls(b, s, 20000)
		done := make(chan struct{})
		var pulls sync.WaitGroup
		pulls.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				began := time.Now()
				in := begin(b, s, app)
				longest = max(longest, time.Since(began))
				if err := s.Drop(in); err != nil {
					b.Error(err)
				}
			}
		})
		b.StartTimer()
		testkit.Must(b, s.Settle(settlement(all...)))
		b.StopTimer()
		close(done)
		pulls.Wait()
		closeStore(b, s)
		b.StartTimer()
	}
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest-begin")
}

// BenchmarkBeginListed begins pulls of a repository with a mark, while other repositories have 10,000 marks.
func BenchmarkBeginListed(b *testing.B) {
	s, _ := open(b, filepath.Join(b.TempDir(), "records.db"), records.Options{})
	var pairs []records.Pair
	for i := range 10000 {
		pairs = append(pairs, pair(fmt.Sprintf("sha256:%064x", i), fmt.Sprintf("repo.test/%d", i)))
	}
	mark(b, s, pairs...)
	present := map[string]struct{}{pairs[5000].ImageID: {}}
	for b.Loop() {
		in, gone, err := s.BeginListed("name", pairs[5000].Repository, noon(), present)
		if err != nil || len(gone) > 0 {
			b.Fatal(gone, err)
		}
		testkit.Must(b, s.Drop(in))
	}
}

// BenchmarkOpen opens a store of 10,000 records.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "records.db")
	s, _ := open(b, path, records.Options{})
	closeStore(b, s)
	manyRecords(b, path, 10_000, 1)
	for b.Loop() {
		s, _, err := records.Open(path, records.Options{})
		testkit.Must(b, err)
		b.StopTimer()
		testkit.Must(b, s.Close())
		b.StartTimer()
	}
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
