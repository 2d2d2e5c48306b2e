package criproxy

import (
	"context"
	"time"
)

// lastCalls is what is left of the time of Shutdown for the calls that began after it did.
const lastCalls = time.Second

// Shutdown ends the server before ctx does. It serves on until the unary calls have ended that were under way when
// it was called, so that a long one keeps no other client waiting. Then it accepts no more connections: clients that connect wait in the
// queue of the socket for the process that serves it next. Streams end with Unavailable, clients get GOAWAY, so that they connect
// anew, and what they have called before is answered. What is left at the end of ctx is cancelled. It
// returns when no call is left.
func (s *Server) Shutdown(ctx context.Context) {
	s.underWay.Wait(ctx, lastCalls)
	if err := s.listener.Swap(nil).Pause(ctx); err != nil {
		s.log.Info("Closing connections before the HTTP/2 handshake; clients will reconnect", "err", err)
	}
	s.pairs.Shutdown(ctx)
}
