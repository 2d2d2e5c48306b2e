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
