package daemon

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever the connection to the runtime does, each state is logged at most once a second, and the final state is
// logged.
func TestStatesAreLoggedOnceASecond(t *testing.T) {
	for name, tc := range map[string]struct {
		every   time.Duration // between changes, the first is down
		changes int
		want    int // lines at most
		last    bool
	}{
		"a start":                     {every: time.Millisecond, changes: 2, want: 1, last: true},
		"a start without a runtime":   {every: time.Millisecond, changes: 1, want: 1, last: false},
		"up":                          {every: time.Hour, changes: 2, want: 2, last: true},
		"a restart":                   {every: 300 * time.Millisecond, changes: 4, want: 4, last: true},
		"a minute of changes":         {every: time.Millisecond, changes: 60_000, want: 122, last: true},
		"a minute that ends with one": {every: time.Millisecond, changes: 60_001, want: 122, last: false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				changes, ended := make(chan bool), make(chan struct{})
				var lines []string
				var at []time.Time
				total, last := 0, false
				go func() {
					defer close(ended)
					logStates(ctx, changes, func(up bool, unlogged int) {
						lines, at = append(lines, fmt.Sprint(up)), append(at, time.Now())
						total += 1 + unlogged
						last = up
					})
				}()
				for i := range tc.changes {
					changes <- i%2 == 1
					time.Sleep(tc.every)
				}
				time.Sleep(2 * stateLogInterval)
				cancel()
				<-ended
				if len(lines) > tc.want || len(lines) == 0 || last != tc.last {
					t.Errorf("%d lines, the last %v; want %d at most, and %v", len(lines), last, tc.want, tc.last)
				}
				for i, l := range lines {
					if before := slices.Index(lines[i+1:], l); before >= 0 && at[i+1+before].Sub(at[i]) < stateLogInterval {
						t.Errorf("%q is logged twice within %v", l, at[i+1+before].Sub(at[i]))
					}
				}
				want := tc.changes
				if lines[0] == "true" {
					want-- // the initial state, down, is not a change
				}
				if total != want {
					t.Errorf("the lines account for %d changes; want all %d", total, want)
				}
			})
		})
	}
}
