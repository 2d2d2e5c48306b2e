package reviews_test

import (
	"errors"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

const app = "repo.test/app:1"

// While pullgate-policyd cannot be connected to, each backend fails as its file says. If it was asked and does not
// answer, containers are denied. When it is back, it is asked again.
func TestWithoutPolicyd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail, repair func(*world) error
		within       time.Duration
		asked        bool // it got the question
		during       bool // it fails while it waits for the backend
	}{
		"killed": { // the socket stays open
			fail:   func(w *world) error { return w.policyd.Kill() },
			repair: func(w *world) error { return w.policyd.Start(w.Context()) },
			within: 10 * time.Second,
		},
		"without a socket": {
			fail:   func(w *world) error { return w.policyd.Close() },
			repair: func(w *world) error { return w.policyd.Reopen(w.Context()) },
			within: 10 * time.Second,
		},
		"killed during the review": {
			fail:   func(w *world) error { return w.policyd.Kill() },
			repair: func(w *world) error { return w.policyd.Start(w.Context()) },
			within: 30 * time.Second,
			asked:  true,
			during: true,
		},
		"suspended": {
			fail:   func(w *world) error { return syscall.Kill(w.policyd.PID(), syscall.SIGSTOP) },
			repair: func(w *world) error { return syscall.Kill(w.policyd.PID(), syscall.SIGCONT) },
			within: 30 * time.Second,
			asked:  true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := reviewbackend.New(t)
			b.Set(app, reviewbackend.Answer{Deny: true, Reason: "not scanned"})
			policies := map[string]string{"true": "defaultAllow: true, ", "false": "defaultAllow: false, ", "absent": ""}
			w := start(t, func(w *world) {
				for value, fields := range policies {
					w.file("main-"+value, b, fields+"denyTTL: -1", value)
				}
			}, app)
			each := func(wanted func(value string) string) {
				t.Helper()
				var creations sync.WaitGroup
				for value := range policies {
					p, want := w.kubelet.Pod(value), wanted(value)
					creations.Go(func() {
						began := time.Now()
						if denial := w.create(p, app); !regexp.MustCompile(want).MatchString(denial) {
							t.Errorf("defaultAllow %s: %q; want %s", value, denial, want)
						}
						if took := time.Since(began); took > c.within {
							t.Errorf("defaultAllow %s: answered after %v; want %v", value, took, c.within)
						}
					})
				}
				creations.Wait()
			}
			denied := func(value string) string {
				return "denied by the image review backend main-" + value + " after .*: not scanned"
			}
			each(denied)
			failed := make(chan error, 1)
			if c.during {
				b.Set(app, reviewbackend.Answer{Failure: reviewbackend.Hang})
				before := len(b.Requests())
				go func() {
					if !host.Within(20*time.Second, func() bool { return len(b.Requests()) == before+len(policies) }) {
						failed <- errors.New("the backends were not asked")
						return
					}
					failed <- c.fail(w)
				}()
			} else {
				w.must(c.fail(w))
			}
			each(func(value string) string {
				if c.asked || value == "false" {
					return "no valid answer from the image review backend main-" + value + " after .* pullgate-policyd .*; denied"
				}
				return "^$"
			})
			if c.during {
				w.must(<-failed)
				b.Set(app, reviewbackend.Answer{Deny: true, Reason: "not scanned"})
			}
			want := 2.0
			if c.asked {
				want = 0
			}
			if got := w.failedOpen(); got != want {
				t.Errorf("pullgate_admission_failed_open_total = %v; want %v", got, want)
			}
			w.must(c.repair(w))
			each(denied)
			w.logged(map[string]int{
				`"reason":"REVIEW_DENIED"`: 6, `"reason":"REVIEW_UNAVAILABLE"`: 3 - int(want), `"failedOpen":true`: int(want),
			})
		})
	}
}

// A pullgate-policyd that has done nothing needs little memory. A backend is not asked again about what it has allowed.
func TestIdleMemoryAndCachedAnswers(t *testing.T) {
	const most = 40 << 20
	b := reviewbackend.New(t)
	w := start(t, func(w *world) { w.file("main", b, "defaultAllow: false") }, app)
	if denial := w.create(w.kubelet.Pod("a"), app); denial != "" {
		t.Fatal(denial)
	}
	u := testkit.Value(w.policyd.Usage())(w)
	if t.Logf("%d MB", u.Resident>>20); u.Resident > most {
		t.Errorf("pullgate-policyd has %d MB of memory; want at most %d", u.Resident>>20, most>>20)
	}
	var creations sync.WaitGroup
	for range 50 {
		p := w.kubelet.Pod("a")
		creations.Go(func() {
			if denial := w.create(p, app); denial != "" {
				t.Error(denial)
			}
		})
	}
	creations.Wait()
	if n := len(b.Requests()); n != 1 {
		t.Errorf("the backend was asked %d times; want once", n)
	}
	w.logged(map[string]int{`"validator":"review","policy":"main","answer":"Admit"`: 51})
}
