package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

// testWatchdog runs a watchdog of 30 s, and returns the number of its notifications.
func testWatchdog(t *testing.T, log klog.Logger, parts ...part) *atomic.Int32 {
	t.Helper()
	var notified atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		newWatchdog(log, 30*time.Second, func() { notified.Add(1) }, parts...).run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return &notified
}

func TestWatchdogIsNotifiedWhileAllPartsRespond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, logged := recorder(t)
		notified := testWatchdog(t, log,
			part{"healthy", func(context.Context) error { return nil }},
			part{"slow", func(context.Context) error { time.Sleep(9 * time.Second); return nil }},
			part{"failing", func(context.Context) error { return errors.New("it fails") }})
		time.Sleep(time.Minute + time.Second)
		if got := notified.Load(); got != 6 {
			t.Errorf("notified %d times in a minute; want 6, each third of its patience", got)
		}
		if n := strings.Count(logged(), "it fails"); n != 1 {
			t.Errorf("the failure is logged %d times; want once: %s", n, logged())
		}
	})
}

func TestWatchdogIsNotNotifiedWhileAPartHangs(t *testing.T) {
	for name, unresponsive := range map[string]func(ctx context.Context, goOn <-chan struct{}) error{
		"it hangs": func(_ context.Context, goOn <-chan struct{}) error { <-goOn; return nil },
		"it gives up with the time": func(ctx context.Context, goOn <-chan struct{}) error {
			select {
			case <-goOn:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, logged := recorder(t)
				goOn := make(chan struct{})
				notified := testWatchdog(t, log,
					part{"healthy", func(context.Context) error { return nil }},
					part{"unresponsive", func(ctx context.Context) error { return unresponsive(ctx, goOn) }})
				time.Sleep(10 * time.Minute)
				if got := notified.Load(); got != 0 || !strings.Contains(logged(), "unresponsive") ||
					strings.Contains(logged(), "healthy") {
					t.Errorf("notified %d times, logged %q; want never, and the name of the part", got, logged())
				}
				close(goOn)
				time.Sleep(time.Minute)
				if got := notified.Load(); got < 5 {
					t.Errorf("notified %d times in the minute after; want it notified again", got)
				}
			})
		})
	}
}

// watchStore runs a watchdog of 300 ms on a store, until stop is called.
func watchStore(t *testing.T, store *records.Store) (notified <-chan struct{}, logged func() string, stop func()) {
	t.Helper()
	notifications, done := make(chan struct{}, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	log, logged := recorder(t)
	go func() {
		defer close(done)
		newWatchdog(log, 300*time.Millisecond, func() {
			select {
			case notifications <- struct{}{}:
			default:
			}
		}, storePart(store)).run(ctx)
	}()
	return notifications, logged, func() { cancel(); <-done }
}

// If one reader does not end, and another call waits for it, the store blocks all later calls.
func TestWatchdogIsNotNotifiedWhileTheStoreHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	store, _, err := records.Open(filepath.Join(t.TempDir(), "records.db"), records.Options{Now: time.Now()})
	testkit.Must(t, err)
	if _, _, err := store.BeginListed("repo.test/app:1", "repo.test/app", time.Now(), nil); err != nil {
		t.Fatal(err)
	}
	notified, logged, stop := watchStore(t, store)
	<-notified

	reading, release, closed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, _ = store.Due([]records.Pair{{ImageID: "sha256:1", Repository: "repo.test/app"}},
			func(records.Intent, records.Pair) bool {
				close(reading)
				<-release
				return true
			})
	}()
	<-reading
	// The close of a file waits for its readers, and new readers wait for the close.
	go func() { closed <- store.Close() }()
	patience := time.NewTimer(2 * time.Second)
	for end, starved := time.Now().Add(20*time.Second), false; !starved; {
		select {
		case <-notified:
			patience.Reset(2 * time.Second)
		case <-patience.C:
			starved = true
		}
		if time.Now().After(end) {
			t.Error("the watchdog is notified although the store hangs")
			break
		}
	}
	if !strings.Contains(logged(), "does not answer") || !strings.Contains(logged(), "store") {
		t.Errorf("logged %q; want the name of the part", logged())
	}
	close(release)
	<-notified // the answer is the error that the file is closed
	if err := <-closed; err != nil {
		t.Error(err)
	}
	stop()
}

// A write that does not end keeps every pull from beginning, although reads still work.
func TestWatchdogIsNotNotifiedWhileAWriteHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	writing, release, written := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var hangs sync.Once
	store, _, err := records.Open(filepath.Join(t.TempDir(), "records.db"),
		records.Options{Now: time.Now(), OnSync: func(time.Duration) {
			hangs.Do(func() { close(writing); <-release })
		}})
	testkit.Must(t, err)
	go func() {
		_, err := store.AcceptMarks([]records.Pair{{ImageID: "sha256:1", Repository: "repo.test/app"}}, "operator",
			time.Now(), false)
		written <- err
	}()
	<-writing
	notified, logged, stop := watchStore(t, store)
	for end := time.Now().Add(20 * time.Second); !strings.Contains(logged(),
		"does not answer"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("logged %q; want that the store does not answer", logged())
		}
	}
	if len(notified) > 0 {
		t.Error("the watchdog is notified although a write hangs")
	}
	close(release)
	<-notified
	stop()
	testkit.Must(t, errors.Join(<-written, store.Close()))
}

// recorder returns a logger, and a function that returns its lines.
func recorder(t *testing.T) (log klog.Logger, logged func() string) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	sink, ok := logger.GetSink().(ktesting.Underlier)
	if !ok {
		t.Fatal("the logger keeps nothing")
	}
	return logger, func() string { return sink.GetBuffer().String() }
}

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
