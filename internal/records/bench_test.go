package records_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
)

func BenchmarkLookup(b *testing.B) {
	all := fill(b)
	path := filepath.Join(b.TempDir(), "records.db")
	writeFile(b, path, all.content)
	s, _ := open(b, path, records.Options{})
	for i := 0; b.Loop(); i++ {
		if _, err := s.Lookup(all.pairs[i%len(all.pairs)]); err != nil {
			b.Fatal(err)
		}
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
		must(b, s.Settle(settlement(all...)))
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
		must(b, s.Drop(in))
	}
}
