package gate_test

import (
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/pullgate/pullgate/internal/gate"
)

func TestUserAgentShowsWhetherAlwaysIsPrechecked(t *testing.T) {
	for agent, want := range map[string]bool{
		"grpc-go/1.58.3": false, "grpc-go/1.65.0": false, "grpc-go/1.68.0": true, "grpc-go/1.72.1": true,
		"grpc-go/1.79.0-dev":          true,
		"kubelet/1.34 grpc-go/1.72.1": true, "grpc-go/2.1.0": false, "grpc-go/": false, "grpc-go/1": false,
		"grpc-go/1.x": false, "": false, "grpc-c++/1.72.1": false,
	} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("user-agent", agent))
		if got := gate.AlwaysAuto.Skips(ctx); got != want {
			t.Errorf("skips(%q) = %v; want %v", agent, got, want)
		}
		if !gate.AlwaysSkipped.Skips(ctx) || gate.AlwaysSent.Skips(ctx) {
			t.Errorf("%q overrules what was configured", agent)
		}
	}
	if gate.AlwaysAuto.Skips(t.Context()) {
		t.Error("a call without a user agent is taken for a new kubelet's")
	}
}
