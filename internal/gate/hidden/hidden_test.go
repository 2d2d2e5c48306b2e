package hidden

import (
	"fmt"
	"testing"

	"github.com/pullgate/pullgate/pkg/imageref"
)

func TestOldestNameOfThePodIsRemoved(t *testing.T) {
	var h PerPod
	victim := KeyOf("victim", imageref.New("busybox"))
	h.Add(victim)
	const flood = 10_000 // more than an earlier limit for all pods together
	for i := range flood {
		if !h.Add(KeyOf("pod", imageref.New(fmt.Sprintf("busybox:%d", i)))) {
			t.Fatalf("pre-check %d was hidden before", i)
		}
	}
	if n := len(h.pods["pod"].order); n != maxNames {
		t.Errorf("%d names of the pod; want %d", n, maxNames)
	}
	if h.Has(KeyOf("pod", imageref.New(fmt.Sprint("busybox:", flood-maxNames-1)))) || !h.Has(KeyOf("pod", imageref.New(fmt.Sprint("busybox:", flood-maxNames)))) {
		t.Error("the oldest names were not those that are forgotten")
	}
	if !h.Has(victim) {
		t.Error("a name of another pod is forgotten")
	}
	if h.Add(KeyOf("pod", imageref.New("docker.io/library/busybox:9999"))) {
		t.Error("two spellings of a name are different keys")
	}
	h.Remove(KeyOf("pod", imageref.New("busybox:9999")))
	h.Remove(KeyOf("pod", imageref.New("busybox:9999")))
	if h.Has(KeyOf("pod", imageref.New("busybox:9999"))) || len(h.pods["pod"].order) != maxNames-1 {
		t.Error("a cleared pre-check is still hidden")
	}
}

func TestPodsAreBoundedAndEnd(t *testing.T) {
	var h PerPod
	for i := range maxPods + 1 {
		h.Add(KeyOf(fmt.Sprint(i), imageref.New("busybox")))
	}
	if n := len(h.pods); n != maxPods || h.Has(KeyOf("0", imageref.New("busybox"))) {
		t.Errorf("%d pods are remembered; want the last %d", n, maxPods)
	}
	h.EndUnknown(func(seen string) bool { return seen == "1" || seen == "2" })
	if n := len(h.pods); n != maxPods {
		t.Errorf("%d pods are left; want all %d, none was known before", n, maxPods)
	}
	h.EndUnknown(func(seen string) bool { return seen == "1" })
	if !h.Has(KeyOf("1", imageref.New("busybox"))) || h.Has(KeyOf("2", imageref.New("busybox"))) || !h.Has(KeyOf("3", imageref.New("busybox"))) {
		t.Error("want the pod forgotten that was known and has ended, and no other")
	}
	var r Refusals
	r.Refuse("uid", imageref.New("busybox"), "id")
	r.Refuse("uid", imageref.New(""), "other")
	if !r.WillRefuse("uid", imageref.New("busybox"), "id") || !r.Refused("uid", imageref.New("busybox"), "id") || r.Refused("uid", imageref.New("busybox"), "id") || r.WillRefuse("uid", imageref.New("busybox"), "id") {
		t.Error("want a refusal reported once")
	}
	if !r.Refused("uid", imageref.New("any"), "other") {
		t.Error("want a refusal by image ID reported for every name")
	}
	r.Refuse("uid", imageref.New("busybox"), "id")
	r.End("uid")
	if r.WillRefuse("uid", imageref.New("busybox"), "id") {
		t.Error("want the refusals of a pod to end with it")
	}
}

func BenchmarkClear(b *testing.B) {
	var h PerPod
	for i := range maxPods {
		for j := range maxNames {
			h.Add(KeyOf(fmt.Sprint(i), imageref.New(fmt.Sprintf("busybox:%d", j))))
		}
	}
	k := KeyOf("7", imageref.New("busybox:7"))
	for b.Loop() {
		h.Remove(k)
		h.Add(k)
	}
}
