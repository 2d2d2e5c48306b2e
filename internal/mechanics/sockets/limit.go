package sockets

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// logEvery is how often closed connections are logged at most: a client that connects in a loop must not fill the log.
const logEvery = time.Minute

// ConnLimits are how many connections may be open at the same time. 0 is no limit.
type ConnLimits struct {
	Total int
	// Replace closes the oldest connection instead of a new one where Total are open. It is for servers whose clients need
	// a connection for a moment: a client that holds connections cannot keep them out then.
	Replace bool
}

// A limitedListener accepts connections, and closes those beyond its limits. A connection counts until it is closed.
type limitedListener struct {
	net.Listener
	limits ConnLimits
	log    klog.Logger

	// mu guards the fields that follow. Nothing is called under it.
	mu     sync.Mutex
	open   []*conn   // the oldest first
	closed int       // since the last log line
	logged time.Time // the last log line
}

// LimitConns returns a listener that accepts what l accepts, within limits. Connections that it closes are logged.
func LimitConns(l net.Listener, limits ConnLimits, log klog.Logger) net.Listener {
	return &limitedListener{Listener: l, limits: limits, log: log}
}

// Accept returns the next connection that is within the limits.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted := &conn{Conn: c, of: l}
		surplus, err := l.add(accepted)
		if err != nil {
			_ = surplus.Close()
			l.note(err)
		}
		if surplus != accepted {
			return accepted, nil
		}
	}
}

// SetDeadline ends an Accept that waits at a time, as that of *net.TCPListener and *net.UnixListener does.
func (l *limitedListener) SetDeadline(t time.Time) error {
	bounded, ok := l.Listener.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return fmt.Errorf("%T has no deadline", l.Listener)
	}
	return bounded.SetDeadline(t)
}

// add adds a connection. If it exceeds a limit, the error says which, and surplus is the connection to be closed.
func (l *limitedListener) add(c *conn) (surplus *conn, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if limit := l.limits.Total; limit > 0 && len(l.open) >= limit {
		surplus, err = c, fmt.Errorf("%d connections are open, the limit is %d", len(l.open), limit)
		if !l.limits.Replace {
			return surplus, err
		}
		surplus = l.open[0]
		l.removeLocked(surplus)
	}
	l.open = append(l.open, c)
	return surplus, err
}

// removeLocked has no effect on a connection that was removed before.
func (l *limitedListener) removeLocked(c *conn) {
	i := slices.Index(l.open, c)
	if i < 0 {
		return
	}
	l.open = slices.Delete(l.open, i, i+1)
}

// note logs that a connection was closed, unless that was logged a moment ago.
func (l *limitedListener) note(why error) {
	l.mu.Lock()
	l.closed++
	closed, now := l.closed, time.Now()
	due := l.logged.IsZero() || now.Sub(l.logged) >= logEvery
	if due {
		l.closed, l.logged = 0, now
	}
	l.mu.Unlock()
	if due {
		l.log.Error(why, "Too many connections: closing those beyond the limit", "address", l.Addr().String(), "closed", closed,
			"hint", "find the client that does not close its connections, with: ss -xp or ss -tp")
	}
}

// A conn counts until it is closed.
type conn struct {
	net.Conn
	of *limitedListener
}

// Close closes the connection.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.removeLocked(c)
	return err
}

// NetConn returns the connection that was accepted.
func (c *conn) NetConn() net.Conn { return c.Conn }
