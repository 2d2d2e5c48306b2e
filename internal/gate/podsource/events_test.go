package podsource_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// come makes a pod one of the node.
func (w *world) come(namespace, name, uid string) {
	p := pod(name, uid, app)
	p.Namespace = namespace
	w.api.change("ADDED", p)
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
		w.start()
		w.tell("early", 1)
		w.come("team", strings.Repeat("a.", 126)+"a", "u")
		synctest.Wait()
		long := tracker.Pod{UID: "u", Namespace: "team", Name: strings.Repeat("a.", 126) + "a"}
		w.source.Event(long, "image", "Why", strings.Repeat("ä", 1000))
		w.source.Event(tracker.Pod{UID: "gone", Namespace: "team"}, "image", "Why", "of a pod that has gone")
		w.source.Event(tracker.Pod{UID: "u", Namespace: "other"}, "other", "Why", "of another namespace")
		w.wantBecame(map[string]int{podsource.EventSent: 2, podsource.EventDropped: 2})
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
		w.start()
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

// 10,000 denied pods get the Events that the rate permits, no call waits for one, and another namespace waits for its
// turn only.
func TestEventsAreFair(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start()
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
		w.start()
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
		names := []string{}
		for _, e := range w.api.sent() {
			names = append(names, e.InvolvedObject.Name)
		}
		if !slices.Equal(names, []string{"p1"}) {
			t.Error(names)
		}
	})
}
