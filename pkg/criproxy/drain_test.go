package criproxy

import (
	"context"
	"errors"
	"net"
	"path/filepath"
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
		"handshake done": {func(c net.Conn) error { _, err := c.Write([]byte("hello")); return err }, nil},
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
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			paused := make(chan error, 1)
			go func() { paused <- l.Pause(ctx) }()
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
		})
	}
}

func TestWaitIsForTheCallsOfItsMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls callGroup
		calls.Wait(t.Context(), 0) // for none
		before := calls.Begin()
		waited := make(chan struct{})
		go func() { defer close(waited); calls.Wait(t.Context(), 0) }()
		synctest.Wait()
		after := calls.Begin()
		select {
		case <-waited:
			t.Error("Wait returned before the call ended")
		default:
		}
		before()
		synctest.Wait()
		select {
		case <-waited:
		default:
			t.Error("Wait waits for a call that began after it")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		calls.Wait(ctx, time.Second)
		if took := time.Since(began); took != 59*time.Second {
			t.Errorf("Wait took %v for a call that does not end; want the minute but a second", took)
		}
		after()
	})
}
