package policyd

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2/ktesting"
)

func TestPanicOfACallIsAnswered(t *testing.T) {
	s := newNodeServer(nil, newMetrics("v"), ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true))))
	panics := func(ctx context.Context, _ any) (any, error) {
		if _, limited := ctx.Deadline(); !limited {
			t.Error("a call without a limit")
		}
		panic("secret")
	}
	answer, err := s.guard(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x"}, panics)
	const want = "internal error, see the log of pullgate-policyd"
	if answer != nil || status.Code(err) != codes.Internal || status.Convert(err).Message() != want {
		t.Errorf("guard = %v, %v; want Internal without the cause", answer, err)
	}
}
