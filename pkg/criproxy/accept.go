package criproxy

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// An acceptor is a listener that can stop taking connections and stay open. A client whose connection is closed
// before it was greeted fails its calls. One that waits in the queue of the socket does not notice, and whoever
// serves the same socket next takes it from there. So before the server is told to stop nothing more is
// taken from the queue, and what has been taken is greeted.
type acceptor struct {
	net.Listener
	paused chan struct{} // closed by pause
	closed chan struct{} // closed by Close
	close  func()

	mu        sync.Mutex     // held while a connection is taken
	newcomers sync.WaitGroup // connections that are taken and not greeted yet
}

func newAcceptor(l net.Listener) *acceptor {
	a := &acceptor{Listener: l, paused: make(chan struct{}), closed: make(chan struct{})}
	a.close = sync.OnceFunc(func() { close(a.closed) })
	return a
}

// Accept takes the next connection. Once the acceptor is paused it takes none, and waits for Close.
func (a *acceptor) Accept() (net.Conn, error) {
	conn, err := a.take()
	select {
	case <-a.paused:
		if err != nil {
			<-a.closed
			return nil, net.ErrClosed
		}
	default:
	}
	return conn, err
}

func (a *acceptor) take() (net.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	conn, err := a.Listener.Accept()
	if err != nil {
		return nil, err
	}
	a.newcomers.Add(1)
	return &newcomer{Conn: conn, greeted: sync.OnceFunc(a.newcomers.Done)}, nil
}

// pause lets no more connections in and waits until those that are in are greeted, or ctx ends. It is called
// once.
func (a *acceptor) pause(ctx context.Context) error {
	l, ok := a.Listener.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return fmt.Errorf("%T has no deadline", a.Listener)
	}
	close(a.paused)
	if err := l.SetDeadline(time.Unix(1, 0)); err != nil { // one of the past ends an Accept that waits
		return err
	}
	a.mu.Lock() // the last one has been taken
	defer a.mu.Unlock()
	greeted := make(chan struct{})
	go func() { defer close(greeted); a.newcomers.Wait() }()
	select {
	case <-greeted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close closes the listener.
func (a *acceptor) Close() error {
	a.close()
	return a.Listener.Close()
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
