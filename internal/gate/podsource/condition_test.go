package podsource_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
)

func (w *world) becomes(enforces bool, reason string) {
	w.state.Store(&podsource.Condition{True: enforces, Reason: reason, Message: "pullgate test: " + reason})
}

// wantCondition compares the condition of the node and the number of writes.
func (w *world) wantCondition(status corev1.ConditionStatus, reason string, heartbeat, transition time.Time, n int) {
	w.Helper()
	got, writes := w.api.condition(podsource.ConditionType)
	near := func(got metav1.Time, want time.Time) bool { return got.Sub(want).Abs() <= 12*time.Second }
	if got.Status != status || got.Reason != reason || got.Message != "pullgate test: "+reason || writes != n ||
		!near(got.LastHeartbeatTime, heartbeat) || !near(got.LastTransitionTime, transition) {
		w.Errorf("%+v after %d writes; want %s, %s, heartbeat %v, transition %v, %d writes", got, writes, status, reason,
			heartbeat, transition, n)
	}
	if ready, _ := w.api.condition(corev1.NodeReady); ready.Status != "True" {
		w.Errorf("Ready is %q; want it as the kubelet wrote it", ready.Status)
	}
}

func (w *world) logged(text string) int {
	log, _ := w.log.GetSink().(ktesting.Underlier)
	return strings.Count(log.GetBuffer().String(), text)
}

// writes returns how many writes of the condition ended so.
func (w *world) writes(outcome string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.became[outcome]
}

func TestCondition(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.register()
		w.start()
		w.pass(time.Minute) // nothing is known yet
		if n := w.api.requests("/nodes/node-1"); n > 0 {
			t.Errorf("%d requests while nothing is known", n)
		}
		w.becomes(true, "Enforcing")
		began := time.Now()
		w.pass(12 * time.Second)
		w.wantCondition("True", "Enforcing", began, began, 1)
		w.pass(13 * time.Minute)
		w.wantCondition("True", "Enforcing", began, began, 1)
		w.pass(4 * time.Minute)
		got, _ := w.api.condition(podsource.ConditionType)
		beat := got.LastHeartbeatTime.Time
		if d := beat.Sub(began); d < 13*time.Minute || d > 17*time.Minute {
			t.Errorf("heartbeat after %v; want 15 minutes ± 10 %%", d)
		}
		w.wantCondition("True", "Enforcing", beat, began, 2)

		w.becomes(false, "Shadow")
		fell := time.Now()
		w.pass(12 * time.Second)
		w.wantCondition("False", "Shadow", fell, fell, 3)
		w.becomes(false, "Degraded") // another reason, the same status
		next := time.Now()
		w.pass(time.Minute)
		w.wantCondition("False", "Degraded", next, fell, 4)
		w.state.Store(nil) // what is not known has no heartbeat
		w.pass(time.Hour)
		w.wantCondition("False", "Degraded", next, fell, 4)
		w.becomes(false, "Degraded")
		w.pass(12 * time.Second)
		w.wantCondition("False", "Degraded", time.Now(), fell, 5)
		if n := w.api.requests("/nodes/node-1"); n != 1 {
			t.Errorf("%d GETs of the node; want 1", n)
		}
		testkit.Equal(t, "lines", w.logged("Wrote the node's condition"), 3)
	})
}

// The heartbeats of nodes that start together spread.
func TestHeartbeatsSpread(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 5 {
		inWorld(t, func(w *world) {
			w.api.register()
			w.becomes(true, "Enforcing")
			w.start()
			began := time.Now()
			for _, n := w.api.condition(podsource.ConditionType); n < 2; _, n = w.api.condition(podsource.ConditionType) {
				w.pass(time.Second)
			}
			seen[time.Since(began).Truncate(5*time.Second)] = true
		})
	}
	if len(seen) < 2 {
		t.Errorf("all heartbeats after %v", seen)
	}
}

// The time of the last transition is that of an earlier process if the status is the same.
func TestTransitionOutlivesARestart(t *testing.T) {
	for _, status := range []corev1.ConditionStatus{"True", "False"} {
		inWorld(t, func(w *world) {
			before := metav1.NewTime(time.Now().Add(-time.Hour))
			w.api.register(corev1.NodeCondition{
				Type: podsource.ConditionType, Status: status, Reason: "Before", LastTransitionTime: before,
			})
			w.becomes(true, "Enforcing")
			w.start()
			w.pass(12 * time.Second)
			want := time.Now()
			if status == "True" {
				want = before.Time
			}
			w.wantCondition("True", "Enforcing", time.Now(), want, 1)
		})
	}
}

// An installation waits for the first condition of a new process.
func TestFirstConditionIsEarly(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.register()
		w.start()
		w.pass(10 * time.Second) // the kubelet is not seen yet
		w.becomes(true, "Enforcing")
		w.pass(4 * time.Second)
		w.wantCondition("True", "Enforcing", time.Now(), time.Now(), 1)
	})
}

// A state that lasts for one check only is not written, and many changes are written once a minute.
func TestConditionThatFlaps(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.register()
		w.becomes(true, "Enforcing")
		w.start()
		w.pass(time.Minute)
		for range 100 {
			w.becomes(false, "Degraded")
			w.pass(3 * time.Second)
			w.becomes(true, "Enforcing")
			w.pass(20 * time.Second)
		}
		testkit.Equal(t, "changes that were written", w.logged("Wrote the node's condition"), 1)
		_, before := w.api.condition(podsource.ConditionType)
		for i := range 120 {
			w.becomes(i%2 == 0, fmt.Sprint("Change", i))
			w.pass(15 * time.Second)
		}
		_, after := w.api.condition(podsource.ConditionType)
		if n := after - before; n < 30 || n > 5+30+1 {
			t.Errorf("%d writes for 120 changes in 30 minutes; want 5 and then one a minute", n)
		}
		w.pass(2 * time.Minute)
		if got, _ := w.api.condition(podsource.ConditionType); got.Reason != "Change119" {
			t.Errorf("in the end the reason is %s", got.Reason)
		}
	})
}

// Whatever the API server answers, there is one line and no storm of requests, and then the condition is written.
func TestConditionThatCannotBeWritten(t *testing.T) {
	only := func(code int) func(w *world) {
		return func(w *world) {
			w.api.refusing(func(r *http.Request) int {
				if strings.Contains(r.URL.Path, "/nodes/") {
					return code
				}
				return 0
			})
		}
	}
	for name, begin := range map[string]func(w *world){
		"forbidden":   only(403),
		"server":      only(500),
		"throttled":   only(429),
		"missing":     func(w *world) { w.api.mu.Lock(); defer w.api.mu.Unlock(); w.api.node = nil },
		"unreachable": func(w *world) { w.net.cut(true) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.api.register()
				w.becomes(true, "Enforcing")
				w.start()
				w.pass(12 * time.Second)
				w.becomes(false, "Shadow")
				fell := time.Now()
				begin(w)
				w.pass(time.Hour)
				w.becomes(false, "Degraded") // does not hasten the next try
				w.pass(time.Minute)
				if n := w.writes(podsource.ConditionFailed); n < 15 || n > 40 {
					t.Errorf("%d tries in an hour; want one in two to four minutes", n)
				}
				testkit.Equal(t, "lines", w.logged("Failed to write the node's condition, will retry"), 1)
				testkit.Equal(t, "lines with the reason", w.logged(`reason="`+name+`"`) > 0, true)
				w.api.refusing(func(*http.Request) int { return 0 })
				w.net.cut(false)
				if name == "missing" {
					w.api.register()
				}
				w.pass(5 * time.Minute)
				got, n := w.api.condition(podsource.ConditionType)
				if n != 2 || got.Status != "False" || got.Reason != "Degraded" || got.LastTransitionTime.Time.Before(fell) {
					t.Errorf("%+v after %d writes; want False, Degraded, after 2", got, n)
				}
			})
		})
	}
}

// A stop does not wait for the API server, and writes nothing.
func TestStopEndsAWrite(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.register()
		w.becomes(true, "Enforcing")
		w.api.refusing(func(r *http.Request) int {
			if strings.Contains(r.URL.Path, "/nodes/") {
				<-r.Context().Done()
			}
			return 0
		})
		w.start()
		w.pass(8 * time.Second)
		if w.api.requests("/nodes/node-1") != 1 {
			t.Fatal("there is no request that hangs")
		}
		began := time.Now()
		w.stop()
		w.stop = func() {}
		synctest.Wait()
		if took := time.Since(began); took != 0 {
			t.Errorf("the stop took %v", took)
		}
		if n := w.writes(podsource.ConditionFailed); n > 0 {
			t.Errorf("%d failures are counted; want none for a stop", n)
		}
	})
}
