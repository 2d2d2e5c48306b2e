package reviews_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

// The limits of the memory of pullgate-policyd.
const (
	maxIdle = 40 << 20
	maxBusy = 100 << 20
)

// Whatever a backend does instead of answering, the pod is admitted as defaultAllow says, and in time for a kubelet.
// Afterwards pullgate-policyd has the goroutines of before, and its memory stays bounded all the time.
func TestBackendFailures(t *testing.T) {
	t.Parallel()
	main, stopped, expired, unknown := reviewbackend.New(t), reviewbackend.New(t), reviewbackend.New(t), reviewbackend.New(t)
	all := []*reviewbackend.Backend{main, stopped, expired, unknown}
	if err := errors.Join(stopped.Stop(), expired.UseCertificate(reviewbackend.Expired), unknown.UseCertificate(reviewbackend.OtherAuthority)); err != nil {
		t.Fatal(err)
	}
	const good = "repo.test/good:1"
	images := []string{good}
	type failing struct{ name, backend, image string }
	failures := []failing{{"stopped", "stopped", good}, {"expired certificate", "expired", good}, {"certificate of another authority", "unknown", good}}
	for name, failure := range reviewbackend.Failures() {
		image := "repo.test/" + strings.ToLower(strings.ReplaceAll(name, " ", "-")) + ":1"
		main.Set(image, reviewbackend.Answer{Failure: failure})
		images = append(images, image)
		failures = append(failures, failing{name, "main", image})
	}
	policies := map[string]string{"true": "defaultAllow: true", "false": "defaultAllow: false", "absent": ""}
	w := start(t, func(w *world) {
		for i, name := range []string{"main", "stopped", "expired", "unknown"} {
			for value, fields := range policies {
				w.file(w.policies, name+"-"+value, all[i], fields, name+"-"+value)
			}
		}
	}, "", images...)
	if denial := w.create(w.kubelet.Pod("main-false"), good); denial != "" {
		t.Fatalf("before: %s", denial)
	}
	w.must(errors.Join(main.Stop(), main.Restart())) // so that no connection is kept
	before := w.goroutines(func(int) bool { return true })
	stopSampling := w.sampleMemory()

	var creations sync.WaitGroup
	opened := 0
	for _, f := range failures {
		for value := range policies {
			if value != "false" {
				opened++
			}
			p := w.kubelet.Pod(f.backend + "-" + value)
			creations.Go(func() {
				began := time.Now()
				denial := w.create(p, f.image)
				took := time.Since(began)
				want := "^$"
				if value == "false" {
					want = "no valid answer from the image review backend " + f.backend + "-false after .*; denied"
				}
				if !regexp.MustCompile(want).MatchString(denial) {
					t.Errorf("%s, defaultAllow %s: %q; want %s", f.name, value, denial, want)
				}
				if took > 100*time.Second {
					t.Errorf("%s, defaultAllow %s: answered after %v; a kubelet waits 2 minutes", f.name, value, took)
				}
			})
		}
	}
	creations.Wait()
	if got := w.failedOpen(); got != float64(opened) {
		t.Errorf("pullgate_admission_failed_open_total = %v; want %d", got, opened)
	}
	for outcome, want := range map[string]int{"failed_open": opened, "failed_closed": len(failures), "allowed": 1} {
		got, err := w.policyd.Metric("pullgate_policyd_reviews_total", fmt.Sprintf("outcome=%q", outcome))
		if w.must(err); got != float64(want) {
			t.Errorf("pullgate_policyd_reviews_total of %s = %v; want %d", outcome, got, want)
		}
	}
	memory := stopSampling()
	if t.Logf("pullgate-policyd had at most %d MB", memory>>20); memory > maxBusy {
		t.Errorf("pullgate-policyd had %d MB of memory; want at most %d", memory>>20, maxBusy>>20)
	}
	for _, b := range all {
		w.must(b.Stop())
	}
	// Each failure has occurred three times. A scrape can have a connection of its own.
	most := before + len(policies) - 1
	if after := w.goroutines(func(n int) bool { return n <= most }); after > most {
		t.Errorf("%d goroutines after all failures; want about the %d of before", after, before)
	}
	w.must(main.Restart())
	main.Set(good, reviewbackend.Answer{Deny: true, Reason: "not scanned"})
	other := w.kubelet.Pod("main-absent") // for which nothing is cached
	if denial := w.create(other, good); !strings.Contains(denial, "not scanned") {
		t.Errorf("after all failures a denial is %q", denial)
	}
}

// goroutines returns how many goroutines pullgate-policyd has, when they are as they should be or after some time.
func (w *world) goroutines(done func(int) bool) int {
	w.Helper()
	least := 0
	host.Within(10*time.Second, func() bool {
		n, err := w.policyd.Metric("go_goroutines")
		w.must(err)
		if least == 0 || int(n) < least {
			least = int(n)
		}
		return done(least)
	})
	return least
}

// sampleMemory returns a function that returns the most memory that pullgate-policyd had since.
func (w *world) sampleMemory() (most func() int) {
	var seen atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			if u, err := w.policyd.Usage(); err == nil && int64(u.Resident) > seen.Load() {
				seen.Store(int64(u.Resident))
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond): //nolint:forbidigo // a test may wait
			}
		}
	}()
	return func() int {
		close(stop)
		<-stopped
		return int(seen.Load())
	}
}

// A pullgate-policyd that has done nothing needs little memory.
func TestIdleMemory(t *testing.T) {
	b := reviewbackend.New(t)
	w := start(t, func(w *world) { w.file(w.policies, "main", b, "defaultAllow: false") }, "", "repo.test/app:1")
	if denial := w.create(w.kubelet.Pod("a"), "repo.test/app:1"); denial != "" {
		t.Fatal(denial)
	}
	u, err := w.policyd.Usage()
	w.must(err)
	if t.Logf("%d MB", u.Resident>>20); u.Resident > maxIdle {
		t.Errorf("pullgate-policyd has %d MB of memory; want at most %d", u.Resident>>20, maxIdle>>20)
	}
}
