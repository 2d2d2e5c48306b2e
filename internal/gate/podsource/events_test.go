package podsource_test

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// come makes a pod, created now, one of the node.
func (w *world) come(namespace, name, uid string) {
	p := pod(name, uid, app)
	p.Namespace, p.CreationTimestamp = namespace, metav1.Now()
	w.api.change("ADDED", p)
}

// startWithBurst starts the source and returns when it may send the whole burst.
func (w *world) startWithBurst() {
	w.Helper()
	w.start()
	w.pass(10 * time.Second)
}

// tell sends an Event on a pod, which comes to the node if it is the first one.
func (w *world) tell(namespace string, i int) {
	name, uid := fmt.Sprintf("p%d", i), fmt.Sprintf("%s-%d", namespace, i)
	if _, known := w.source.ByUID(uid); !known && i < 1000 {
		w.come(namespace, name, uid)
		synctest.Wait()
	}
	w.source.Event(tracker.Pod{UID: uid, Namespace: namespace, Name: name}, app, "Why", "image app: text")
}

func (w *world) wantBecame(want map[string]int) {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	testkit.Equal(w, "Events", maps.Clone(w.became), want)
}

func TestEvent(t *testing.T) {
	inWorld(t, func(w *world) {
		w.startWithBurst()
		w.tell("early", 1)
		w.come("team", strings.Repeat("a.", 126)+"a", "u")
		synctest.Wait()
		long := tracker.Pod{UID: "u", Namespace: "team", Name: strings.Repeat("a.", 126) + "a"}
		w.source.Event(long, "image", "Why", strings.Repeat("ä", 1000))
		w.source.Event(tracker.Pod{UID: "gone", Namespace: "team"}, "image", "Why", "of a pod that is not known")
		w.source.Event(tracker.Pod{UID: "u", Namespace: "other"}, "other", "Why", "of another namespace")
		w.wantBecame(map[string]int{podsource.EventSent: 2, podsource.EventDropped: 1})
		e := w.api.sent()
		if len(e) != 2 || e[0].Namespace != "early" || e[0].Type != corev1.EventTypeWarning || e[0].Reason != "Why" ||
			e[0].Message != "image app: text" || e[0].InvolvedObject != (corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: "early", Name: "p1", UID: "early-1",
		}) || e[0].Source != (corev1.EventSource{Component: "pullgate", Host: "node-1"}) || e[0].Count != 1 ||
			e[0].ReportingController != "pullgate" || e[0].ReportingInstance != "node-1" ||
			!strings.HasPrefix(e[0].Name, "p1.") {
			t.Fatalf("%+v", e)
		}
		for _, one := range e {
			if wrong := validation.NameIsDNSSubdomain(one.Name, false); len(wrong) > 0 || len(one.Message) > 1024 ||
				strings.ContainsRune(one.Message, '\uFFFD') {
				t.Errorf("%q: %v, %d bytes", one.Name, wrong, len(one.Message))
			}
		}
	})
}

func TestOneEventInTenMinutes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.startWithBurst()
		for range 3 {
			w.tell("team", 1)
			w.tell("team", 2)
			time.Sleep(2 * time.Minute)
		}
		w.wantBecame(map[string]int{podsource.EventSent: 2})
		time.Sleep(5 * time.Minute)
		w.tell("team", 1)
		w.wantBecame(map[string]int{podsource.EventSent: 3})
	})
}

// wantSent wants that Events were sent about these pods, in this order.
func (w *world) wantSent(when string, want ...string) {
	w.Helper()
	synctest.Wait()
	names := []string{}
	for _, e := range w.api.sent() {
		names = append(names, e.InvolvedObject.Name)
	}
	testkit.Equal(w, "pods that have Events "+when, names, want)
}

// An Event is not sent again by a process that does not know of it, and one about a later pod at once.
func TestOneEventInTenMinutesOverRestarts(t *testing.T) {
	inWorld(t, func(w *world) {
		w.startWithBurst()
		w.tell("team", 1)
		w.wantSent("before the restart", "p1")
		w.come("team", "p2", "team-2") // no process sends an Event about it yet
		ahead := pod("p3", "team-3", app)
		ahead.Namespace, ahead.CreationTimestamp = "team", metav1.NewTime(time.Now().Add(time.Hour))
		w.api.change("ADDED", ahead) // by a clock that differs
		synctest.Wait()

		w.renew()
		began := time.Now()
		w.api.refusing(func(*http.Request) int { return 503 })
		w.start()
		older := func() {
			for i := 1; i <= 4; i++ {
				about := tracker.Pod{UID: fmt.Sprintf("team-%d", i), Namespace: "team", Name: fmt.Sprintf("p%d", i)}
				w.source.Event(about, app, "Why", "text")
				w.source.Event(about, "another image", "Why", "text")
			}
		}
		older() // before the first list
		w.api.refusing(func(*http.Request) int { return 0 })
		w.pass(time.Minute)
		if !w.source.Synced() {
			w.Fatal("not synced")
		}
		late := pod("p4", "team-4", app) // which the first list should have had
		late.Namespace, late.CreationTimestamp = "team", metav1.NewTime(began.Add(-time.Second))
		w.api.change("ADDED", late)
		w.come("team", "p5", "team-5")
		synctest.Wait()
		older()
		w.tell("team", 5)
		w.wantSent("after the restart", "p1", "p5")

		// A change of a pod, and another list, make no difference.
		ahead.Labels = map[string]string{"changed": "yes"}
		w.api.change("MODIFIED", ahead)
		w.api.send(event{"ERROR", status(410)})
		w.come("team", "p6", "team-6") // in the second list
		w.pass(time.Minute)
		older()
		w.tell("team", 5)
		w.tell("team", 6)
		w.pass(time.Until(began.Add(10*time.Minute - 1)))
		older()
		w.wantSent("before ten minutes", "p1", "p5", "p6")
		w.mu.Lock()
		dropped := w.became[podsource.EventDropped]
		w.mu.Unlock()
		testkit.Equal(w, "dropped Events", dropped, 0)

		w.pass(1)
		older()
		w.wantSent("after ten minutes", "p1", "p5", "p6", "p1", "p1", "p2", "p2", "p3", "p3", "p4", "p4")
	})
}

// Restarts give a node no Event more than ten, and one a second.
func TestEventRateOverRestarts(t *testing.T) {
	inWorld(t, func(w *world) {
		w.startWithBurst()
		began, n := time.Now(), 0
		for _, ms := range []int{0, 100, 900, 1500, 20_000, 0, 0, 12_000, 2500, 100} {
			for range 30 {
				n++
				w.tell("team", n)
			}
			w.pass(time.Duration(ms) * time.Millisecond)
			sent, permitted := len(w.api.sent()), 10+int(time.Since(began)/time.Second)
			if sent > permitted || sent < permitted-10 {
				t.Errorf("%d Events after %v; want at most %d, and not ten less", sent, time.Since(began), permitted)
			}
			w.renew()
			w.start()
		}
	})
}

// 10,000 denied pods get the Events that the rate permits, no call waits for one, and another namespace waits for its
// turn only.
func TestEventsAreFair(t *testing.T) {
	inWorld(t, func(w *world) {
		w.startWithBurst()
		began := time.Now()
		for i := range 10_000 {
			w.tell("mallory", i)
		}
		synctest.Wait()
		if d := time.Since(began); d > 0 {
			t.Errorf("10,000 calls waited %v; want no call to wait, whatever the rate of Events is", d)
		}
		w.tell("victim", 1)
		w.tell("victim", 2)
		time.Sleep(6500 * time.Millisecond)
		order := ""
		for _, e := range w.api.sent() {
			order += e.Namespace[:1]
		}
		// When the victim came, ten were sent and one waited for its second.
		if order != "mmmmmmmmmmmmvmvm" {
			t.Errorf("order %s", order)
		}
		// The namespace that has most gives way to others.
		for n := range 300 {
			w.tell(fmt.Sprintf("many%d", n), 1)
		}
		w.tell("late", 1)
		time.Sleep(time.Hour)
		synctest.Wait()
		sent := w.api.sent()
		if n := len(sent); n > 10+500+60 {
			t.Errorf("%d Events", n)
		}
		by := map[string]int{}
		for _, e := range sent {
			by[e.Namespace]++
		}
		if by["victim"] != 2 || by["late"] != 1 || len(by) != 303 {
			t.Errorf("Events by namespace: %v", by)
		}
	})
}

func TestEventThatFails(t *testing.T) {
	inWorld(t, func(w *world) {
		w.startWithBurst()
		refuse := func(code int) {
			w.api.refusing(func(r *http.Request) int {
				if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events") {
					return code
				}
				return 0
			})
		}
		refuse(403)
		w.tell("team", 1)
		w.wantBecame(map[string]int{podsource.EventFailed: 1})
		w.tell("team", 1)
		w.wantBecame(map[string]int{podsource.EventFailed: 2})
		refuse(0)
		w.tell("team", 1)
		w.wantBecame(map[string]int{podsource.EventFailed: 2, podsource.EventSent: 1})
		w.wantSent("after the failures", "p1")
	})
}
