package grpcpeer

import (
	"context"

	"google.golang.org/grpc"
)

// Drain stops a server, which must have grpc.WaitForHandlers. New calls are not accepted; those in progress may continue until ctx ends, and
// are then canceled. It returns when all calls have ended.
func Drain(ctx context.Context, s *grpc.Server) {
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.GracefulStop()
	}()
	select {
	case <-drained:
	case <-ctx.Done():
		s.Stop()
		<-drained
	}
}
