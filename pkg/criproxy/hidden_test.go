package criproxy

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/metadata"
)

func TestUserAgentTellsWhetherAlwaysIsPrechecked(t *testing.T) {
	for agent, want := range map[string]bool{
		"grpc-go/1.58.3": false, "grpc-go/1.65.0": false, "grpc-go/1.68.0": true, "grpc-go/1.72.1": true, "grpc-go/1.79.0-dev": true,
		"kubelet/1.34 grpc-go/1.72.1": true, "grpc-go/2.1.0": false, "grpc-go/": false, "grpc-go/1": false, "grpc-go/1.x": false, "": false, "grpc-c++/1.72.1": false,
	} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("user-agent", agent))
		if got := AlwaysPrecheckAuto.skips(ctx); got != want {
			t.Errorf("skips(%q) = %v; want %v", agent, got, want)
		}
		if !AlwaysPrecheckSkipped.skips(ctx) || AlwaysPrecheckSent.skips(ctx) {
			t.Errorf("%q overrules what was configured", agent)
		}
	}
	if AlwaysPrecheckAuto.skips(t.Context()) {
		t.Error("a call without a user agent is taken for a new kubelet's")
	}
}

func TestHiddenForgetsTheOldestBeyondItsBound(t *testing.T) {
	var h hidden
	for i := range maxHidden + 10 {
		if !h.set(keyOf(fmt.Sprint(i), "busybox")) {
			t.Fatalf("pre-check %d was hidden before", i)
		}
	}
	if len(h.keys) != maxHidden || len(h.order) != maxHidden {
		t.Errorf("%d keys, %d in order; want %d", len(h.keys), len(h.order), maxHidden)
	}
	if h.has(keyOf("9", "busybox")) || !h.has(keyOf("10", "busybox")) {
		t.Error("not the oldest were forgotten")
	}
	if h.set(keyOf("10", "docker.io/library/busybox:latest")) {
		t.Error("two spellings of a name are told apart")
	}
	h.clear(keyOf("10", "busybox"))
	h.clear(keyOf("10", "busybox"))
	if h.has(keyOf("10", "busybox")) || len(h.order) != maxHidden-1 {
		t.Error("a cleared pre-check is still hidden")
	}
}
