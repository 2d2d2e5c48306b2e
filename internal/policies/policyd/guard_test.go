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
	s := newNodeServer(nil, newMetrics("v", "go"), ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true))))
	answer, err := s.guard(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x"}, func(ctx context.Context, _ any) (any, error) {
		if _, limited := ctx.Deadline(); !limited {
			t.Error("a call without a limit")
		}
		panic("secret")
	})
	if answer != nil || status.Code(err) != codes.Internal || status.Convert(err).Message() != "internal error, see the log of pullgate-policyd" {
		t.Errorf("guard = %v, %v; want Internal without the cause", answer, err)
	}
}
