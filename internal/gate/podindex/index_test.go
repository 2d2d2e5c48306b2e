package podindex_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/tracker"
)

func sandbox(id, uid, seen string) podindex.Sandbox {
	return podindex.Sandbox{ID: id, Pod: tracker.Pod{UID: uid, Namespace: "ns", Name: "pod-" + uid}, Seen: seen}
}

func uids(of []tracker.Pod) []string {
	got := []string{}
	for _, p := range of {
		got = append(got, p.UID)
	}
	return got
}

func TestBySeenAnswersWhoCarriesTheValue(t *testing.T) {
	x := podindex.New()
	x.Add(sandbox("s1", "u1", "t1"))
	x.Add(sandbox("s2", "u2", "t2"))
	x.Add(sandbox("s3", "u3", "t2"))
	x.Add(sandbox("s4", "u4", ""))
	for seen, want := range map[string][]string{
		"t1": {"u1"}, "t2": {"u2", "u3"}, "t3": {}, "": {},
	} {
		testkit.Equal(t, fmt.Sprintf("BySeen(%q)", seen), uids(x.BySeen(seen)), want)
	}
	if p, ok := x.BySandbox("s4"); !ok || p.UID != "u4" {
		t.Errorf("BySandbox(s4) = %v, %v; want u4", p, ok)
	}
	if p, ok := x.BySandbox("s9"); ok {
		t.Errorf("BySandbox(s9) = %v, true; want unknown", p)
	}
}

func TestRemoveEndsAPodWithItsLastSandbox(t *testing.T) {
	x := podindex.New()
	x.Add(sandbox("s1", "u1", "t1"))
	x.Add(sandbox("s2", "u1", "t2"))
	if ended := x.Remove("s1"); len(ended) != 0 {
		t.Errorf("Remove(s1) ended %v; want none, s2 is left", ended)
	}
	if got := x.BySeen("t1"); len(got) != 0 {
		t.Errorf("BySeen(t1) = %v after its sandbox was removed; want none", got)
	}
	if ended := x.Remove("s1"); len(ended) != 0 {
		t.Errorf("second Remove(s1) ended %v; want none", ended)
	}
	if ended := x.Remove("s2"); !slices.Equal(ended, []string{"u1"}) {
		t.Errorf("Remove(s2) ended %v; want u1", ended)
	}
}

// After a restart of the kubelet the pod has a new value, and its sandbox has the old one.
func TestLearnedValueLastsAsLongAsThePodHasASandbox(t *testing.T) {
	x := podindex.New()
	x.Add(sandbox("s1", "u1", "old"))
	x.Learn("new", tracker.Pod{UID: "u1"})
	x.Learn("lone", tracker.Pod{UID: "u2"})
	x.Learn("", tracker.Pod{UID: "u1"})
	x.Learn("unlisted", tracker.Pod{})
	if got := uids(x.BySeen("new")); !slices.Equal(got, []string{"u1"}) {
		t.Errorf("BySeen(new) = %v; want u1", got)
	}
	x.Add(sandbox("s2", "u3", "t3"))
	if got := uids(x.BySeen("new")); !slices.Equal(got, []string{"u1"}) {
		t.Errorf("BySeen(new) = %v after another sandbox came; want u1", got)
	}
	ended, ok := x.Reconcile(x.Now(), []podindex.Sandbox{sandbox("s1", "u1", "old")})
	if !ok || !slices.Equal(ended, []string{"u2", "u3"}) {
		t.Errorf("Reconcile ended %v, %v; want u2 and u3", ended, ok)
	}
	for seen, want := range map[string][]string{"new": {"u1"}, "old": {"u1"}, "lone": {}, "t3": {}, "unlisted": {}} {
		if got := uids(x.BySeen(seen)); !slices.Equal(got, want) {
			t.Errorf("BySeen(%q) = %v; want %v", seen, got, want)
		}
	}
	x.Remove("s1")
	if got := x.BySeen("new"); len(got) != 0 {
		t.Errorf("BySeen(new) = %v after the pod ended; want none", got)
	}
}

func TestReconcileRefusesAListThatRaced(t *testing.T) {
	x := podindex.New()
	x.Add(sandbox("s1", "u1", "t1"))
	since := x.Now()
	x.Add(sandbox("s2", "u2", "t2")) // created while the list was in progress
	if ended, ok := x.Reconcile(since, []podindex.Sandbox{sandbox("s1", "u1", "t1")}); ok || ended != nil {
		t.Errorf("Reconcile with a stale list = %v, %v; want it refused", ended, ok)
	}
	if got := uids(x.BySeen("t2")); !slices.Equal(got, []string{"u2"}) {
		t.Errorf("BySeen(t2) = %v; want u2: a stale list must not end a new pod", got)
	}
	since = x.Now()
	x.Remove("s1") // removed while the list was in progress
	if _, ok := x.Reconcile(since, []podindex.Sandbox{sandbox("s1", "u1", "t1")}); ok {
		t.Error("Reconcile brought a removed sandbox back")
	}
}

// Lists are requested on several connections, and the answer of the earlier one may come last.
func TestReconcileRefusesAListOlderThanTheLastOne(t *testing.T) {
	x := podindex.New()
	x.Add(sandbox("s1", "u1", "t1"))
	since := x.Now() // of both lists
	if ended, ok := x.Reconcile(since, []podindex.Sandbox{sandbox("s2", "u2", "t2")}); !ok ||
		!slices.Equal(ended, []string{"u1"}) {
		t.Fatalf("Reconcile = %v, %v; want u1 ended", ended, ok)
	}
	if ended, ok := x.Reconcile(since, []podindex.Sandbox{sandbox("s1", "u1", "t1")}); ok || ended != nil {
		t.Errorf("Reconcile with a list that was requested before the last change = %v, %v; want it refused", ended, ok)
	}
	if got := uids(x.All()); !slices.Equal(got, []string{"u2"}) {
		t.Errorf("pods = %v; want u2: an older list must neither end a pod nor bring one back", got)
	}
	since = x.Now()
	for range 2 {
		if _, ok := x.Reconcile(since, []podindex.Sandbox{sandbox("s2", "u2", "t2")}); !ok {
			t.Error("a list that changes nothing makes another one stale")
		}
	}
}

// Runs under the race detector; in the end the index must not contain removed sandboxes.
func TestConcurrentUseLeavesNoEndedPods(t *testing.T) {
	x := podindex.New()
	x.Add(sandbox("stays", "stays", "stays"))
	keep := []podindex.Sandbox{sandbox("stays", "stays", "stays")}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				id := fmt.Sprintf("%d-%d", g, i)
				since := x.Now()
				x.Add(sandbox(id, id, id))
				if _, ok := x.Reconcile(since, keep); ok {
					t.Errorf("Reconcile took a list older than sandbox %s", id)
				}
				x.Learn("new-"+id, tracker.Pod{UID: id})
				x.BySeen(id)
				x.Remove(id)
			}
		})
	}
	wg.Wait()
	for g := range 8 {
		for i := range 200 {
			for _, seen := range []string{fmt.Sprintf("%d-%d", g, i), fmt.Sprintf("new-%d-%d", g, i)} {
				if got := x.BySeen(seen); len(got) != 0 {
					t.Errorf("BySeen(%s) = %v; want none", seen, got)
				}
			}
		}
	}
	if got := uids(x.BySeen("stays")); !slices.Equal(got, []string{"stays"}) {
		t.Errorf("BySeen(stays) = %v; want the pod that stayed", got)
	}
}

// A list that equals the index changes nothing, unless something was added or learned since the last one.
func TestReconcileWithAnEqualList(t *testing.T) {
	x := podindex.New()
	a := podindex.Sandbox{ID: "a", Pod: tracker.Pod{UID: "u"}, Seen: "1"}
	list := []podindex.Sandbox{a}
	reconcile := func(list []podindex.Sandbox, want ...string) {
		t.Helper()
		if ended, ok := x.Reconcile(x.Now(), list); !ok || !slices.Equal(ended, want) {
			t.Errorf("Reconcile = %v, %v; want %v", ended, ok, want)
		}
	}
	reconcile(list)
	reconcile(list)
	x.Learn("2", tracker.Pod{UID: "without a sandbox"})
	reconcile(list, "without a sandbox")
	if got := x.BySeen("2"); len(got) != 0 {
		t.Errorf("a value that was learned for a pod without a sandbox = %v after an equal list; want it gone", got)
	}
	x.Add(podindex.Sandbox{ID: "a", Pod: tracker.Pod{UID: "u"}, Seen: "3"})
	x.Add(a)
	reconcile(list)
	if got := x.BySeen("3"); len(got) != 0 {
		t.Errorf("a value that its sandbox has no more = %v after an equal list; want it gone", got)
	}
	x.Add(podindex.Sandbox{ID: "b", Pod: tracker.Pod{UID: "v"}})
	reconcile([]podindex.Sandbox{a, {ID: "b", Pod: tracker.Pod{UID: "v"}}})
	reconcile([]podindex.Sandbox{a, a}, "v")
}
