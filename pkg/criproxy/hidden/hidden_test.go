package hidden

import (
	"fmt"
	"testing"
)

func TestHiddenForgetsTheOldestBeyondItsBound(t *testing.T) {
	var h Set
	for i := range maxHidden + 10 {
		if !h.Add(KeyOf(fmt.Sprint(i), "busybox")) {
			t.Fatalf("pre-check %d was hidden before", i)
		}
	}
	if len(h.keys) != maxHidden || len(h.order) != maxHidden {
		t.Errorf("%d keys, %d in order; want %d", len(h.keys), len(h.order), maxHidden)
	}
	if h.Has(KeyOf("9", "busybox")) || !h.Has(KeyOf("10", "busybox")) {
		t.Error("not the oldest were forgotten")
	}
	if h.Add(KeyOf("10", "docker.io/library/busybox:latest")) {
		t.Error("two spellings of a name are told apart")
	}
	h.Clear(KeyOf("10", "busybox"))
	h.Clear(KeyOf("10", "busybox"))
	if h.Has(KeyOf("10", "busybox")) || len(h.order) != maxHidden-1 {
		t.Error("a cleared pre-check is still hidden")
	}
}
