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

// Settle returns when no call has been in flight for longer than settled, or when no more than spare is left of ctx.
// Calls that begin meanwhile prolong it only if they take longer than that.
func (c *callGroup) Settle(ctx context.Context, spare time.Duration) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-spare))
		defer cancel()
	}
	for began := time.Now(); ; began = time.Now() {
		c.wait(ctx)
		if ctx.Err() != nil || time.Since(began) < settled {
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

	mu      sync.Mutex     // held during Accept of the inner listener
	pending sync.WaitGroup // accepted connections to which nothing was written
	open    sync.Map       // accepted connections, as *pendingConn
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
	accepted := &pendingConn{Conn: conn, handshakeDone: sync.OnceFunc(l.pending.Done), gone: gone}
	accepted.closing = sync.OnceFunc(func() {
		l.open.Delete(accepted)
		close(gone)
	})
	l.open.Store(accepted, nil)
	return accepted, nil
}

// CloseConnections closes the accepted connections. Without it grpc's Stop waits until the handshakes have ended. A nil
// listener has none.
func (l *drainListener) CloseConnections() {
	if l == nil {
		return
	}
	l.open.Range(func(conn, _ any) bool {
		_ = conn.(*pendingConn).Close()
		return true
	})
}

// Pause stops accepting, and waits until the handshakes of accepted connections are done, or ctx ends. It is called
// once. A nil listener has nothing to wait for.
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
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close closes the listener.
func (l *drainListener) Close() error {
	l.close()
	return l.Listener.Close()
}

// A pendingConn is an accepted connection. Its handshake counts as done at its first Write, or when it is closed.
type pendingConn struct {
	net.Conn
	handshakeDone func()
	gone          <-chan struct{} // closed by closing
	closing       func()
}

// Write writes to the connection.
func (c *pendingConn) Write(p []byte) (int, error) {
	defer c.handshakeDone()
	return c.Conn.Write(p)
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
// after 5 s: so the pause comes when no call has been in flight for as long as settled, and its calls have lastCalls.
const (
	settled   = 500 * time.Millisecond
	lastCalls = 2 * time.Second
)

func errStopping() error {
	return Refuse(codes.Unavailable, "STOPPING", "pullgated is stopping")
}

// Shutdown ends the server before ctx does. It serves on while unary calls are in flight that take long, so that none
// delays other clients. Then it accepts no more connections: clients wait in the accept queue of the socket for the next
// process. Streams end with Unavailable, clients get GOAWAY, and the calls that they have begun are answered. After 2 s of
// that, or at the end of ctx, the remaining calls are cancelled. Shutdown returns when no call is left.
func (s *Server) Shutdown(ctx context.Context) {
	s.underWay.Settle(ctx, lastCalls)
	ctx, cancel := context.WithTimeout(ctx, lastCalls)
	defer cancel()
	listener := s.listener.Swap(nil)
	if err := listener.Pause(ctx); err != nil {
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
		listener.CloseConnections()
		s.grpc.Stop()
		<-drained
	}
	s.requests.Wait()
}
