package criproxy

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
)

// lastCalls is the part of Shutdown's time that is reserved for the calls that began after Shutdown did.
const lastCalls = time.Second

func errStopping() error {
	return Refuse(codes.Unavailable, "STOPPING", "pullgated is stopping")
}

// Shutdown ends the server before ctx does. It serves on until the unary calls that are in flight have ended, so that a
// long one does not delay other clients. Then it accepts no more connections: clients wait in the accept queue of the
// socket for the next process. Streams end with Unavailable, clients get GOAWAY, and the calls that they have begun are
// answered. At the end of ctx the remaining calls are cancelled. Shutdown returns when no call is left.
func (s *Server) Shutdown(ctx context.Context) {
	s.underWay.Wait(ctx, lastCalls)
	if err := s.listener.Swap(nil).Pause(ctx); err != nil {
		s.log.Info("Closing connections before the HTTP/2 handshake; clients will reconnect", "err", err)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.grpc.GracefulStop()
	}()
	s.stop()
	select {
	case <-drained:
	case <-ctx.Done():
		s.grpc.Stop()
		<-drained
	}
	s.requests.Wait()
}
