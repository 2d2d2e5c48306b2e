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

// A limitedListener accepts connections, and closes those beyond its limit. A connection counts until it is closed.
type limitedListener struct {
	net.Listener
	limit   int
	replace bool
	log     klog.Logger

	// mu guards the fields that follow. Nothing is called under it.
	mu     sync.Mutex
	open   []*conn   // the oldest first
	closed int       // since the last log line
	logged time.Time // the last log line
}

// LimitConns returns a listener that accepts what l accepts, while at most limit connections are open. It closes others
// and logs that, or with replace the oldest one: a client that holds connections cannot keep others out then, whose
// clients need one for a moment.
func LimitConns(l net.Listener, limit int, replace bool, log klog.Logger) net.Listener {
	return &limitedListener{Listener: l, limit: limit, replace: replace, log: log}
}

// Accept returns the next connection that is within the limit.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted := &conn{Conn: c, of: l}
		surplus := l.add(accepted)
		if surplus != nil {
			_ = surplus.Close()
			l.note()
		}
		if surplus != accepted {
			return accepted, nil
		}
	}
}

func (l *limitedListener) add(c *conn) (surplus *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.limit {
		if !l.replace {
			return c
		}
		surplus = l.open[0]
		l.open = slices.Delete(l.open, 0, 1)
	}
	l.open = append(l.open, c)
	return surplus
}

func (l *limitedListener) note() {
	l.mu.Lock()
	l.closed++
	closed, now := l.closed, time.Now()
	due := l.logged.IsZero() || now.Sub(l.logged) >= logEvery
	if due {
		l.closed, l.logged = 0, now
	}
	l.mu.Unlock()
	if due {
		l.log.Error(fmt.Errorf("more than %d connections", l.limit), "Too many connections: closing those beyond the limit",
			"address", l.Addr().String(), "closed", closed,
			"hint", "find the client that does not close its connections, with: ss -xp or ss -tp")
	}
}

type conn struct {
	net.Conn
	of *limitedListener
}

// Close closes the connection.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.open = slices.DeleteFunc(c.of.open, func(o *conn) bool { return o == c })
	return err
}

// NetConn returns the connection that was accepted.
func (c *conn) NetConn() net.Conn { return c.Conn }
