package host

import (
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

// Within reports whether a condition holds within a time. It asks ten times a second.
func Within(limit time.Duration, holds func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}
