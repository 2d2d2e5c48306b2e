package imageref_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// New returns the same for a name however often and by whomever it is called, and for more names than are kept.
func TestNewIsTheSameEachTime(t *testing.T) {
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for i := range 5000 {
				s := fmt.Sprintf("repo.test/team/app-%d:1", i%3000)
				if i%7 == 0 {
					s += strings.Repeat(" ", i%300) // does not parse unless it is 0, and may be too long to be kept
				}
				want, err := imageref.Parse(s)
				if r := imageref.New(s); r.String() != s || r.Name() != want || r.Parsed() != (err == nil) {
					t.Errorf("New(%q) = %q, %v; want %v", s, r, r.Name(), want)
				}
			}
		})
	}
	callers.Wait()
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		imageref.New("repo.test/team/app:1")
	}
}
