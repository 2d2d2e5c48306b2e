package connlimit

import (
	"fmt"
	"net"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/peercred"
)

// logEvery is how often closed connections are logged at most: a client that connects in a loop must not fill the log.
const logEvery = time.Minute

// Limits are how many connections may be open at the same time. 0 is no limit.
type Limits struct {
	Total int
	// PerProcess bounds the connections of one client process, as the kernel names it. It has no effect on TCP.
	PerProcess int
}

// A Listener accepts connections, and closes at once those beyond its limits. A connection counts until it is closed.
type Listener struct {
	net.Listener
	limits Limits
	log    klog.Logger

	// mu guards the fields that follow. Nothing is called under it.
	mu      sync.Mutex
	total   int
	byPID   map[int32]int
	refused int       // since the last log line
	logged  time.Time // the last log line
}

// New returns a listener that accepts what l accepts, within limits. Connections that it closes are logged.
func New(l net.Listener, limits Limits, log klog.Logger) *Listener {
	return &Listener{Listener: l, limits: limits, log: log, byPID: map[int32]int{}}
}

// Accept returns the next connection that is within the limits.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var pid int32
		if l.limits.PerProcess > 0 {
			// The process of a TCP connection is not known, and all such clients count as process 0.
			if who, err := peercred.Of(c); err == nil {
				pid = who.Pid
			}
		}
		if err := l.add(pid); err != nil {
			_ = c.Close() // nothing was exchanged with the client
			l.note(err)
			continue
		}
		return &conn{Conn: c, remove: sync.OnceFunc(func() { l.remove(pid) })}, nil
	}
}

// SetDeadline ends an Accept that waits at a time, as that of *net.TCPListener and *net.UnixListener does.
func (l *Listener) SetDeadline(t time.Time) error {
	bounded, ok := l.Listener.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return fmt.Errorf("%T has no deadline", l.Listener)
	}
	return bounded.SetDeadline(t)
}

func (l *Listener) add(pid int32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.limits.Total > 0 && l.total >= l.limits.Total:
		return fmt.Errorf("%d connections are open, the limit is %d", l.total, l.limits.Total)
	case l.limits.PerProcess > 0 && pid != 0 && l.byPID[pid] >= l.limits.PerProcess:
		return fmt.Errorf("process %d has %d connections open, the limit of one process is %d", pid, l.byPID[pid], l.limits.PerProcess)
	}
	l.total++
	l.byPID[pid]++
	return nil
}

func (l *Listener) remove(pid int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.byPID[pid]--; l.byPID[pid] == 0 {
		delete(l.byPID, pid)
	}
}

// note logs that a connection was closed, unless that was logged a moment ago.
func (l *Listener) note(why error) {
	l.mu.Lock()
	l.refused++
	refused, now := l.refused, time.Now()
	due := l.logged.IsZero() || now.Sub(l.logged) >= logEvery
	if due {
		l.refused, l.logged = 0, now
	}
	l.mu.Unlock()
	if due {
		l.log.Error(why, "Too many connections: closing new ones", "address", l.Addr().String(), "closed", refused,
			"hint", "find the client that does not close its connections, with: ss -xp or ss -tp")
	}
}

// A conn counts until it is closed.
type conn struct {
	net.Conn
	remove func()
}

// Close closes the connection.
func (c *conn) Close() error {
	defer c.remove()
	return c.Conn.Close()
}

// NetConn returns the connection that was accepted.
func (c *conn) NetConn() net.Conn { return c.Conn }
