package drain

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// A Listener can stop accepting connections and stay open. A client whose connection is closed before the
// HTTP/2 handshake is done fails its calls. A connection in the accept queue of the socket is not affected: the next server on the same
// socket accepts it. So before the server stops, nothing more is accepted, and the handshakes of accepted connections are completed.
type Listener struct {
	net.Listener
	paused chan struct{} // closed by Pause
	closed chan struct{} // closed by Close
	close  func()

	mu      sync.Mutex     // held during Accept of the inner listener
	pending sync.WaitGroup // accepted connections whose handshake is not done
}

// NewListener returns a listener that accepts the connections of another one.
func NewListener(l net.Listener) *Listener {
	made := &Listener{Listener: l, paused: make(chan struct{}), closed: make(chan struct{})}
	made.close = sync.OnceFunc(func() { close(made.closed) })
	return made
}

// Accept accepts the next connection. On a paused listener it waits for Close, and fails then.
func (l *Listener) Accept() (net.Conn, error) {
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

func (l *Listener) accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.pending.Add(1)
	return &pendingConn{Conn: conn, handshakeDone: sync.OnceFunc(l.pending.Done)}, nil
}

// Pause stops accepting, and waits until the handshakes of accepted connections are done, or ctx ends. It is called once. A nil
// listener has nothing to wait for.
func (l *Listener) Pause(ctx context.Context) error {
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
func (l *Listener) Close() error {
	l.close()
	return l.Listener.Close()
}

// A pendingConn is an accepted connection. Its handshake counts as done at its first Write, or when it is closed.
type pendingConn struct {
	net.Conn
	handshakeDone func()
}

// Write writes to the connection.
func (c *pendingConn) Write(p []byte) (int, error) {
	defer c.handshakeDone()
	return c.Conn.Write(p)
}

// Close closes the connection.
func (c *pendingConn) Close() error {
	defer c.handshakeDone()
	return c.Conn.Close()
}

// NetConn returns the connection that was accepted.
func (c *pendingConn) NetConn() net.Conn { return c.Conn }
