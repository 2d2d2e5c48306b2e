package criproxy

import (
	"context"
	"errors"
	"time"
)

// lastCalls is what is left of the time of Shutdown for the calls that began after it did.
const lastCalls = time.Second

// errStopping is the cause with which open streams end at Shutdown.
var errStopping = errors.New("criproxy: stopping")

// Shutdown ends the server before ctx does. It serves on until the unary calls have ended that were under way when
// it was called, so that a long one keeps nobody waiting. Then it takes no more connections: who comes waits in the
// queue of the socket for whoever serves it next. Streams end with Unavailable, clients are told to connect anew,
// and what has been called until they heard it is answered. What is left at the end of ctx is cancelled. It
// returns when no call is left.
func (s *Server) Shutdown(ctx context.Context) {
	s.underWay.Wait(ctx, lastCalls)
	if err := s.listener.Swap(nil).Pause(ctx); err != nil {
		s.log.Info("Connections that came last are not greeted, their clients connect anew", "err", err)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.grpc.GracefulStop()
	}()
	s.stop(errStopping)
	select {
	case <-drained:
	case <-ctx.Done():
		s.grpc.Stop()
		<-drained
	}
	s.pumps.Wait()
}
