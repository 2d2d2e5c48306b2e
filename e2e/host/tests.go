package host

import (
	"slices"
	"testing"
	"time"
)

// AtEnd calls f at the end of a test, which fails if f does.
func AtEnd(tb testing.TB, f func() error) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := f(); err != nil {
			tb.Error(err)
		}
	})
}

// Step runs a part of a test as a subtest, which *t is meanwhile, and logs how long it took. If it fails, the test
// ends, and no part after it runs.
func Step(t **testing.T, name string, run func()) {
	outer := *t
	outer.Helper()
	if !outer.Run(name, func(part *testing.T) {
		*t = part
		defer func() { *t = outer }()
		began := time.Now()
		run()
		part.Logf("%v", time.Since(began).Round(time.Millisecond))
	}) {
		outer.FailNow()
	}
}

// Within reports whether a condition holds within a time. It asks five times a second: others run beside it.
func Within(limit time.Duration, holds func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// WantAlike wants that the medians of the times of several kinds of tries differ by at most half of the least one. The
// tries have to be mixed, so that what else the machine does concerns each kind.
func WantAlike(tb testing.TB, what string, took map[string][]time.Duration) {
	tb.Helper()
	var medians []time.Duration
	for kind, d := range took {
		slices.Sort(d)
		median := d[len(d)/2]
		medians = append(medians, median)
		tb.Logf("%s, %s: %d tries, median %v, quartiles %v and %v", what, kind, len(d), median, d[len(d)/4], d[len(d)*3/4])
	}
	if slices.Max(medians)*2 > slices.Min(medians)*3 {
		tb.Errorf("%s: medians %v; want them to differ by at most half", what, medians)
	}
}
