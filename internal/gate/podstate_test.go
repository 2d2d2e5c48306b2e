package gate

import (
	"fmt"
	"testing"

	"github.com/pullgate/pullgate/pkg/imageref"
)

func TestOldestEntryOfThePodIsRemoved(t *testing.T) {
	var s podStates
	hides := func(seen string, tag any) bool { return s.hide(seen, imageref.New(fmt.Sprint("busybox:", tag)), false) }
	hidden := func(seen string, tag any) bool {
		is, _ := s.isHidden(seen, imageref.New(fmt.Sprint("busybox:", tag)))
		return is
	}
	hides("victim", 0)
	const flood = 10_000 // more than an earlier limit for all pods together
	for i := range flood {
		if !hides("pod", i) {
			t.Fatalf("pre-check %d was hidden before", i)
		}
	}
	if n := len(s.pods[podKey{seen: "pod"}].hidden.of); n != maxEntries {
		t.Errorf("%d names of the pod; want %d", n, maxEntries)
	}
	if hidden("pod", flood-maxEntries-1) || !hidden("pod", flood-maxEntries) {
		t.Error("the oldest names were not those that are forgotten")
	}
	if !hidden("victim", 0) {
		t.Error("a name of another pod is forgotten")
	}
	if s.hide("pod", imageref.New("docker.io/library/busybox:9999"), true) {
		t.Error("two spellings of a name are different keys")
	}
	if _, unendorsed := s.isHidden("pod", imageref.New("busybox:9999")); !unendorsed {
		t.Error("the last reason for hiding is not remembered")
	}
	for range 2 {
		s.show("pod", imageref.New("busybox:9999"))
	}
	if hidden("pod", 9999) {
		t.Error("a cleared pre-check is still hidden")
	}
}

// Any number of pods without a sandbox displaces no pod that has one, whose state ends with it.
func TestPodsAreBoundedAndEnd(t *testing.T) {
	alive := map[podKey]bool{{uid: "victim"}: true, {seen: "victim"}: true}
	s := podStates{has: func(k podKey) bool { return alive[k] }}
	name := imageref.New("busybox")
	s.refuse("victim", name, "id")
	s.hide("victim", name, false)
	s.clear("container", createdContainer{uid: "victim"})
	for i := range 2 * maxPods {
		s.hide(fmt.Sprint("seen", i), name, false)
		s.once(fmt.Sprint("uid", i), "kind", "fact")
	}
	if n := len(s.pods); n != maxPods {
		t.Errorf("%d pods are remembered; want %d", n, maxPods)
	}
	hidden, _ := s.isHidden("victim", name)
	_, cleared := s.created("container", false)
	if !hidden || !cleared || !s.refused("victim", name, "id", false) {
		t.Error("the state of a pod with a sandbox is displaced")
	}
	if first, _ := s.isHidden("seen0", name); first {
		t.Error("the state of the oldest pod without a sandbox is kept")
	}
	clear(alive)
	s.end([]string{"victim"})
	hidden, _ = s.isHidden("victim", name)
	_, cleared = s.created("container", false)
	if hidden || cleared || s.refused("victim", name, "id", false) {
		t.Error("the state of an ended pod is kept")
	}
	if n := len(s.pods); n != maxPods-2 {
		t.Errorf("%d pods are left; want %d: the others were never known", n, maxPods-2)
	}
}

func TestRefusalIsReportedOnce(t *testing.T) {
	var s podStates
	name := imageref.New("busybox")
	s.refuse("uid", name, "id")
	s.refuse("uid", imageref.Ref{}, "other")
	if !s.refused("uid", name, "id", false) || !s.refused("uid", name, "id", true) || s.refused("uid", name, "id", true) ||
		s.refused("uid", name, "id", false) {
		t.Error("want a refusal reported once")
	}
	if !s.refused("uid", imageref.New("any"), "other", true) {
		t.Error("want a refusal by image ID reported for every name")
	}
	s.refuse("", name, "id")
	if s.refused("", name, "id", false) {
		t.Error("want no refusal of an unknown pod")
	}
}
