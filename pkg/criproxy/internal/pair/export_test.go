package pair

import (
	"fmt"
	"sync"
	"time"
)

// SetWriteLimit sets how long a runtime may take no bytes, of a server that does not serve yet.
func (s *Server) SetWriteLimit(d time.Duration) { s.writeLimit = d }

// Waits returns how often responses have waited for the client's window.
func (s *Server) Waits() int64 { return s.waits.Load() }

// HoldWrites waits until nothing is being written to the client of the only pair, and makes what follows wait for release, which
// has to be called before the server can stop.
func (s *Server) HoldWrites() (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pairs) != 1 {
		return nil, fmt.Errorf("%d pairs", len(s.pairs))
	}
	for p := range s.pairs {
		release = sync.OnceFunc(func() { _ = p.writer.release(nil) })
		err = p.writer.acquire()
	}
	return release, err
}

// Load returns how many pairs there are, how many calls they have open, and how many bytes they keep. A call whose client has reset
// it counts until its handler returns.
func (s *Server) Load() (pairs, calls, kept int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.pairs {
		p.mu.Lock()
		forwarded := 0
		for _, st := range p.streams {
			if st.local == nil {
				forwarded++
			}
		}
		calls += forwarded + max(p.running, len(p.streams)-forwarded)
		kept += p.held + p.tapped + p.unread
		p.mu.Unlock()
	}
	return len(s.pairs), calls, kept
}
