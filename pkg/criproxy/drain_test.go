package criproxy

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
)

// queue returns a listener, and what connects to it.
func queue(t *testing.T) (l *drainListener, connect func() net.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	inner := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
	l = newDrainListener(inner)
	t.Cleanup(func() { _ = l.Close() })
	return l, func() net.Conn {
		conn := testkit.Value((&net.Dialer{}).DialContext(t.Context(), "unix", path))(t)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

type taken struct {
	conn net.Conn
	err  error
}

func accept(l net.Listener) <-chan taken {
	next := make(chan taken, 1)
	go func() {
		conn, err := l.Accept()
		next <- taken{conn, err}
	}()
	return next
}

func TestPausedListenerLeavesConnectionsInTheQueue(t *testing.T) {
	l, connect := queue(t)
	waiting := accept(l)
	testkit.Must(t, l.Pause(t.Context()))
	connect()
	select {
	case got := <-waiting:
		t.Errorf("Accept of a paused listener = %v, %v; want it to wait", got.conn, got.err)
	case <-time.After(50 * time.Millisecond): //nolint:forbidigo // nothing is to come
	}
	testkit.Must(t, l.Close())
	if got := <-waiting; !errors.Is(got.err, net.ErrClosed) {
		t.Errorf("Accept after Close = %v; want net.ErrClosed", got.err)
	}
}

func TestPauseWaitsForHandshakes(t *testing.T) {
	for name, tc := range map[string]struct {
		handshake func(net.Conn) error
		want      error
	}{
		"handshake done": {func(c net.Conn) error { return c.SetDeadline(time.Time{}) }, nil},
		"closed":         {net.Conn.Close, nil},
		"no handshake":   {func(net.Conn) error { return nil }, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			l, connect := queue(t)
			connect()
			got := <-accept(l)
			if got.err != nil {
				t.Fatal(got.err)
			}
			defer func() { _ = got.conn.Close() }()
			paused := make(chan error, 1)
			go func() { paused <- l.Pause(t.Context()) }() // it bounds itself
			select {
			case err := <-paused:
				t.Errorf("Pause = %v before the handshake is done; want it to wait", err)
				return
			case <-time.After(50 * time.Millisecond): //nolint:forbidigo // nothing is to come
			}
			testkit.Must(t, tc.handshake(got.conn))
			if err := <-paused; !errors.Is(err, tc.want) {
				t.Errorf("Pause = %v; want %v", err, tc.want)
			}
			if _, err := got.conn.Write([]byte("x")); (err == nil) != (name == "handshake done") {
				t.Errorf("a write after Pause = %v; want the connection open only if its handshake is done", err)
			}
		})
	}
}

func TestSettleWaitsForCallsThatTakeLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var calls callGroup
		var all sync.WaitGroup
		defer all.Wait()
		took := func(limit time.Duration) time.Duration {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			began := time.Now()
			calls.Settle(ctx, time.Second)
			return time.Since(began)
		}
		call := func(from, to time.Duration) {
			all.Go(func() {
				time.Sleep(from - time.Since(began))
				defer calls.Begin()()
				time.Sleep(to - from)
			})
			synctest.Wait()
		}
		if got := took(time.Minute); got != 0 {
			t.Errorf("without a call it took %v", got)
		}
		call(0, 100*time.Millisecond)
		call(50*time.Millisecond, 150*time.Millisecond) // begins while one is waited for
		if got := took(time.Minute); got != 150*time.Millisecond {
			t.Errorf("Settle took %v; want 150ms, until there was no call", got)
		}
		began = time.Now()
		call(0, 3*time.Second)
		call(2*time.Second, 5*time.Second)                 // begins while one is waited for
		call(4900*time.Millisecond, 5300*time.Millisecond) // short
		call(5200*time.Millisecond, time.Hour)             // begins during the short one: nothing takes long at this moment
		if got := took(time.Minute); got != 5300*time.Millisecond {
			t.Errorf("Settle took %v; want 5.3s, until no call took longer than half a second", got)
		}
		if got := took(time.Minute); got != 59*time.Second {
			t.Errorf("Settle took %v for a call that does not end; want the minute but a second", got)
		}
	})
}
