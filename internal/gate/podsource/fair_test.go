package podsource_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// slowly makes each GET of a Secret take as long as on an API server.
func slowly(r *http.Request) int {
	if strings.Contains(r.URL.Path, "/secrets/") {
		time.Sleep(10 * time.Millisecond)
	}
	return 0
}

func TestSecretsOfOneNamespaceDoNotDelayThoseOfOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	settles := []time.Duration{0, time.Minute}
	if testkit.Raced { // make race runs the test with both of them without the detector
		settles = settles[:1]
	}
	for name, namespaceOf := range map[string]func(i int) string{
		"one hostile namespace": func(int) string { return "mallory" },
		"20 hostile namespaces": func(i int) string { return fmt.Sprintf("mallory-%d", i) },
	} {
		for _, settle := range settles {
			t.Run(fmt.Sprintf("%s, after %v", name, settle), func(t *testing.T) {
				inWorld(t, func(w *world) {
					w.api.refusing(slowly)
					const hostile = 20
					for i := range hostile {
						p := naming(i, 100)
						p.Namespace = namespaceOf(i)
						w.api.change("ADDED", p)
					}
					w.log = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&locked{})))
					w.start()
					time.Sleep(settle)
					stop := w.asking(hostile, 50*time.Millisecond)
					time.Sleep(time.Second)
					gets, began := w.api.requests(""), time.Now()
					var longest time.Duration
					known := 0
					for i := range 20 {
						uid := fmt.Sprintf("v%d", i)
						w.api.put(secret(uid, uid, "repo.test"))
						w.api.change("ADDED", pod(uid, uid, app, uid))
						asked := time.Now()
						p, _ := w.source.Await(w.Context(), uid)
						found, err := p.Credentials(w.Context(), imageref.New(app))
						took := time.Since(asked)
						longest = max(longest, took)
						if err == nil && len(found) == 1 && took <= 200*time.Millisecond {
							known++
						}
						time.Sleep(500 * time.Millisecond)
					}
					t.Logf("known within 200 ms in %d of 20 attempts, %v at most; %.0f requests a second",
						known, longest, float64(w.api.requests("")-gets)/time.Since(began).Seconds())
					if known != 20 {
						t.Errorf("a Secret was known within 200 ms in %d of 20 attempts, %v at most; want 20", known, longest)
					}
					stop()
				})
			})
		}
	}
}

// naming returns the pod number i, which names Secrets that do not exist.
func naming(i, secrets int) *corev1.Pod {
	var names []string
	for j := range secrets {
		names = append(names, fmt.Sprintf("none-%d-%d", i, j))
	}
	return pod(fmt.Sprintf("m%d", i), fmt.Sprintf("m%d", i), app, names...)
}

// asking makes the pods m0, m1, … request their credentials repeatedly until stop is called.
func (w *world) asking(n int, every time.Duration) (stop func()) {
	end := make(chan struct{})
	for i := range n {
		go func() {
			for {
				select {
				case <-end:
					return
				case <-time.After(every): //nolint:forbidigo // virtual time
				}
				p, _ := w.source.ByUID(fmt.Sprintf("m%d", i))
				_, _ = p.Credentials(w.Context(), imageref.New(app))
			}
		}()
	}
	return func() {
		close(end)
		time.Sleep(5 * time.Second)
		synctest.Wait()
	}
}

// Under load from one namespace the API server gets a bounded number of requests.
func TestMissingSecretsAreRequestedAtGrowingIntervals(t *testing.T) {
	for _, tc := range []struct{ secrets, most int }{{1, 15}, {100, 2_000}, {1_000, 5_000}} {
		if testkit.Raced && tc.secrets > 100 {
			continue // make race runs it without the detector
		}
		t.Run(fmt.Sprint(tc.secrets), func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.log = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&locked{})))
				pods := (tc.secrets + 99) / 100
				for i := range pods {
					w.api.change("ADDED", naming(i, min(100, tc.secrets)))
				}
				w.start()
				stop := w.asking(pods, time.Second)
				time.Sleep(5 * time.Minute)
				n := w.failed(podsource.Missing)
				t.Logf("%d missing Secrets that are asked for all the time: %d GETs in five minutes", tc.secrets, n)
				if n > tc.most || n < 2*tc.secrets {
					t.Errorf("%d missing Secrets caused %d GETs in five minutes; want at most %d, and each more than once", tc.secrets,
						n, tc.most)
				}
				stop()
			})
		})
	}
}

func TestSecretsOfOneNamespaceDoNotEvictThoseOfOthers(t *testing.T) {
	for name, namespaceOf := range map[string]func(i int) string{
		"one hostile namespace": func(int) string { return "mallory" },
		"20 hostile namespaces": func(i int) string { return fmt.Sprintf("mallory-%d", i) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				const most = podsource.MaxHeld / smallerBy
				w.source.HoldAtMost(most)
				w.api.put(secret("pull", "s1", "repo.test"))
				w.api.change("ADDED", pod("victim", "v", app, "pull"))
				w.start()
				w.pass(20 * time.Second)
				want := w.cred("pull", "s1", "repo.test")
				w.wantCredentials("v", app, true, want)
				const hostile = 20
				for i := range hostile {
					s := large(fmt.Sprintf("big%d", i), fmt.Sprintf("b%d", i), smallerBy)
					s.Namespace = namespaceOf(i)
					w.api.put(s)
					p := pod(fmt.Sprintf("m%d", i), fmt.Sprintf("m%d", i), app, s.Name)
					p.Namespace = s.Namespace
					w.api.change("ADDED", p)
				}
				for range 2 {
					w.pass(5 * time.Second)
					for i := range hostile {
						_, _ = w.byUID(fmt.Sprintf("m%d", i)).Credentials(w.Context(), imageref.New(app))
					}
				}
				if bytes, _ := w.source.Size(); bytes > most {
					t.Errorf("Secrets take %d bytes; want at most %d", bytes, most)
				}
				w.api.refusing(func(*http.Request) int { return http.StatusServiceUnavailable })
				w.pass(time.Minute)
				w.wantCredentials("v", app, true, want)
			})
		})
	}
}

// The retries of Secrets that could not be read end with Run.
func TestNoTimerOutlivesRun(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.refusing(refuseSecret("pull", 503))
		w.startWithPull()
		w.pass(time.Minute)
		if w.source.Idle() != true {
			t.Fatal("a Secret is being read; want it to wait for its retry")
		}
		w.stop()
		w.stop = func() {}
		w.pass(time.Hour)
		if !w.source.Idle() {
			t.Error("a Secret is queued an hour after the end of Run; want nothing to happen any more")
		}
	})
}
