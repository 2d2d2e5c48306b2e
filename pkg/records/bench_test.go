package records_test

import (
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/pkg/records"
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

// BenchmarkBeginAndProve is what a pull costs: two transactions, each synced.
func BenchmarkBeginAndProve(b *testing.B) {
	all := fill(b)
	path := filepath.Join(b.TempDir(), "records.db")
	writeFile(b, path, all.content)
	s, _ := open(b, path, records.Options{})
	for i := 0; b.Loop(); i++ {
		prove(b, s, records.Result{Pair: all.pairs[i%len(all.pairs)], Credential: alice})
	}
}
