package criproxy

import (
	"context"
	"errors"
	"sync"
	"time"
)

// lastCalls is what is left of the time of Shutdown for the calls that began after it did.
const lastCalls = time.Second

// errStopping is the cause with which open streams end at Shutdown.
var errStopping = errors.New("criproxy: stopping")

// underWay counts the unary calls under way, so that those can be waited for that were there at one moment. The zero
// value counts.
type underWay struct {
	mu    sync.Mutex
	calls *sync.WaitGroup // the current ones
}

// begin counts a call until end is called.
func (u *underWay) begin() (end func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls == nil {
		u.calls = &sync.WaitGroup{}
	}
	u.calls.Add(1)
	return u.calls.Done
}

// wait returns when the calls that were under way as it was called have ended, or ctx has. Calls that begin meanwhile do
// not prolong it.
func (u *underWay) wait(ctx context.Context) {
	u.mu.Lock()
	calls := u.calls
	u.calls = nil
	u.mu.Unlock()
	if calls == nil {
		return
	}
	ended := make(chan struct{})
	go func() { defer close(ended); calls.Wait() }()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// Shutdown ends the server before ctx does. It serves on until the unary calls have ended that were under way when
// it was called, so that a long one keeps nobody waiting. Then it takes no more connections: who comes waits in the
// queue of the socket for whoever serves it next. Streams end with Unavailable, clients are told to connect anew,
// and what has been called until they heard it is answered. What is left at the end of ctx is cancelled. It
// returns when no call is left.
func (s *Server) Shutdown(ctx context.Context) {
	s.drain(ctx)
	if a := s.acceptor.Swap(nil); a != nil {
		if err := a.pause(ctx); err != nil {
			s.log.Info("Connections that came last are not greeted, their clients connect anew", "err", err)
		}
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

func (s *Server) drain(ctx context.Context) {
	if deadline, ok := ctx.Deadline(); ok {
		limited, cancel := context.WithDeadline(ctx, deadline.Add(-lastCalls))
		defer cancel()
		ctx = limited
	}
	s.underWay.wait(ctx)
}
