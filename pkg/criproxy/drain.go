package criproxy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
)

// A callGroup counts the calls in flight. The zero value is ready for use; it may be used concurrently.
type callGroup struct {
	mu      sync.Mutex
	current *sync.WaitGroup
}

// Begin counts a call until end is called.
func (c *callGroup) Begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		c.current = &sync.WaitGroup{}
	}
	c.current.Add(1)
	return c.current.Done
}

// Settle returns when every call in flight is young: less than 20 ms old at first, and less than 500 ms after 2 s.
// Calls that begin meanwhile prolong it only if they get older. It returns before that when no more than spare is left
// of ctx; without a deadline, steady calls that take long keep it for ever.
func (c *callGroup) Settle(ctx context.Context, spare time.Duration) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-spare))
		defer cancel()
	}
	for began := time.Now(); ctx.Err() == nil; {
		round := time.Now()
		c.wait(ctx)
		if time.Since(round) < min(max(young, time.Since(began)/4), settled) {
			return
		}
	}
}

// wait returns when the calls that were in flight when it was called have ended, or ctx has.
func (c *callGroup) wait(ctx context.Context) {
	c.mu.Lock()
	calls := c.current
	c.current = nil
	c.mu.Unlock()
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

// A drainListener can stop accepting connections and stay open. A client whose connection is closed before the HTTP/2
// handshake is done fails its calls; one in the accept queue of the socket waits for the next server. So before the
// server stops, nothing more is accepted, and the handshakes of accepted connections are completed.
type drainListener struct {
	net.Listener
	paused chan struct{} // closed by Pause
	closed chan struct{} // closed by Close
	close  func()

	mu         sync.Mutex     // held during Accept of the inner listener
	pending    sync.WaitGroup // accepted connections whose handshake is not done
	handshakes sync.Map       // the same, as *pendingConn
}

func newDrainListener(l net.Listener) *drainListener {
	made := &drainListener{Listener: l, paused: make(chan struct{}), closed: make(chan struct{})}
	made.close = sync.OnceFunc(func() { close(made.closed) })
	return made
}

// Accept accepts the next connection. On a paused listener it waits for Close, and fails then.
func (l *drainListener) Accept() (net.Conn, error) {
	conn, err := l.accept()
	select {
	case <-l.paused:
		if err != nil {
			<-l.closed
			return nil, net.ErrClosed
		}
	default:
	}
	return conn, err
}

func (l *drainListener) accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.pending.Add(1)
	gone := make(chan struct{})
	accepted := &pendingConn{Conn: conn, gone: gone, closing: sync.OnceFunc(func() { close(gone) })}
	accepted.handshakeDone = sync.OnceFunc(func() {
		l.handshakes.Delete(accepted)
		l.pending.Done()
	})
	l.handshakes.Store(accepted, nil)
	return accepted, nil
}

// Pause stops accepting, and waits until the handshakes of accepted connections are done. Connections on which that
// takes longer than greeting, or than ctx, are closed, because grpc's stop waits for them before it says good-bye to
// the others. It is called once. A nil listener has nothing to wait for.
func (l *drainListener) Pause(ctx context.Context) error {
	if l == nil {
		return nil
	}
	bounded, ok := l.Listener.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return fmt.Errorf("%T has no deadline", l.Listener)
	}
	close(l.paused)
	if err := bounded.SetDeadline(time.Unix(1, 0)); err != nil { // a deadline in the past ends an Accept that waits
		return err
	}
	l.mu.Lock() // no Accept is under way
	defer l.mu.Unlock()
	done := make(chan struct{})
	go func() { defer close(done); l.pending.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, greeting)
	defer cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		l.handshakes.Range(func(conn, _ any) bool {
			if c, ok := conn.(*pendingConn); ok {
				_ = c.Close()
			}
			return true
		})
		return ctx.Err()
	}
}

// Close closes the listener.
func (l *drainListener) Close() error {
	l.close()
	return l.Listener.Close()
}

// A pendingConn is an accepted connection. Its handshake counts as done when grpc takes the deadline of the handshake
// off, or when it is closed.
type pendingConn struct {
	net.Conn
	handshakeDone func()
	gone          <-chan struct{} // closed by closing
	closing       func()
}

// SetDeadline sets the deadline of the connection; the zero time means that there is none.
func (c *pendingConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		defer c.handshakeDone()
	}
	return c.Conn.SetDeadline(t)
}

// Close closes the connection.
func (c *pendingConn) Close() error {
	defer c.handshakeDone()
	defer c.closing()
	return c.Conn.Close()
}

// RemoteAddr returns the address of the client with the end of its connection, for Gone.
func (c *pendingConn) RemoteAddr() net.Addr { return clientAddr{c.Conn.RemoteAddr(), c.gone} }

type clientAddr struct {
	net.Addr
	gone <-chan struct{}
}

// Gone returns the channel, the same for all calls of a connection, that is closed when the connection on which a call
// came has ended; nil if ctx is not that of such a call.
func Gone(ctx context.Context) <-chan struct{} {
	if p, ok := peer.FromContext(ctx); ok {
		if client, ok := p.Addr.(clientAddr); ok {
			return client.gone
		}
	}
	return nil
}

// NetConn returns the connection that was accepted.
func (c *pendingConn) NetConn() net.Conn { return c.Conn }

// Times of Shutdown. From the pause on nobody accepts connections until the next process does, and a kubelet gives up
// after 5 s. So the pause comes when every call in flight is young, and the calls that are left then have lastCalls.
const (
	young     = 20 * time.Millisecond // and up to settled, the longer there was none such moment
	settled   = 500 * time.Millisecond
	greeting  = time.Second
	lastCalls = 2 * time.Second
)

func errStopping() error {
	return Refuse(codes.Unavailable, "STOPPING", "pullgated is stopping")
}

// Shutdown ends the server before ctx does. It serves on while a unary call takes long, so that none delays other
// clients. Then it accepts no more connections: clients wait in the accept queue of the socket for the next process.
// Streams end with Unavailable, clients get GOAWAY, and the calls that they have begun are answered. What is left 2 s
// after the last connection was accepted, or at the end of ctx, is cancelled. Shutdown returns when no call is left.
func (s *Server) Shutdown(ctx context.Context) {
	s.underWay.Settle(ctx, lastCalls)
	ctx, cancel := context.WithTimeout(ctx, lastCalls)
	defer cancel()
	if err := s.listener.Swap(nil).Pause(ctx); err != nil {
		s.log.Info("Connections may end before their HTTP/2 handshake is done; their clients will reconnect", "err", err)
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
		s.log.Info("Cancelling the calls that have not ended: new connections wait for the next process", "after", lastCalls)
		s.grpc.Stop()
		<-drained
	}
	s.requests.Wait()
}
