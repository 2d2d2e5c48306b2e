package drain

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// A Listener can stop taking connections and stay open. A client whose connection is closed
// before it was greeted fails its calls. One that waits in the queue of the socket does not notice, and whoever
// serves the same socket next takes it from there. So before the server is told to stop nothing more is
// taken from the queue, and what has been taken is greeted.
type Listener struct {
	net.Listener
	paused chan struct{} // closed by Pause
	closed chan struct{} // closed by Close
	close  func()

	mu        sync.Mutex     // held while a connection is taken
	newcomers sync.WaitGroup // connections that are taken and not greeted yet
}

// NewListener returns a listener that takes what another one does.
func NewListener(l net.Listener) *Listener {
	made := &Listener{Listener: l, paused: make(chan struct{}), closed: make(chan struct{})}
	made.close = sync.OnceFunc(func() { close(made.closed) })
	return made
}

// Accept takes the next connection. Once the listener is paused it takes none, and waits for Close.
func (l *Listener) Accept() (net.Conn, error) {
	conn, err := l.take()
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

func (l *Listener) take() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.newcomers.Add(1)
	return &newcomer{Conn: conn, greeted: sync.OnceFunc(l.newcomers.Done)}, nil
}

// Pause lets no more connections in and waits until those that are in are greeted, or ctx ends. It is called
// once; nil has none to let in.
func (l *Listener) Pause(ctx context.Context) error {
	if l == nil {
		return nil
	}
	bounded, ok := l.Listener.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return fmt.Errorf("%T has no deadline", l.Listener)
	}
	close(l.paused)
	if err := bounded.SetDeadline(time.Unix(1, 0)); err != nil { // one of the past ends an Accept that waits
		return err
	}
	l.mu.Lock() // the last one has been taken
	defer l.mu.Unlock()
	greeted := make(chan struct{})
	go func() { defer close(greeted); l.newcomers.Wait() }()
	select {
	case <-greeted:
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

// A newcomer is a connection that counts as greeted once something was written to it.
type newcomer struct {
	net.Conn
	greeted func()
}

// Write writes to the connection.
func (n *newcomer) Write(p []byte) (int, error) {
	defer n.greeted()
	return n.Conn.Write(p)
}

// Close closes the connection.
func (n *newcomer) Close() error {
	defer n.greeted()
	return n.Conn.Close()
}

// NetConn returns the connection that was accepted.
func (n *newcomer) NetConn() net.Conn { return n.Conn }
