package pair

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"sync"
	"syscall"
	"time"
)

// Each connection of a client is paired with a new connection to the runtime. The rules for an absent runtime:
//
//   - A connection counts once the runtime has sent its SETTINGS, not when a socket accepts it. The pair sends its own SETTINGS first,
//     because some runtimes (those behind cmux) answer only then. They disable the dynamic table of the runtime's header blocks
//     (response.go).
//   - One attempt that fails marks the runtime as absent. From then on no client waits: it is served at once, without a
//     runtime. One goroutine tries to connect until the runtime is present, and then wakes all pairs.
//   - The end of one connection does not mean that the others end: a pair that lost its own connection makes one attempt to connect.
//   - After a connection that ended before the runtime had answered a call on it, that attempt is delayed, and longer for
//     each such connection in a row.

const (
	handshakeLimit = 3 * time.Second
	firstRetry     = 100 * time.Millisecond
	longestRetry   = 800 * time.Millisecond
	retryGrowth    = 1.6

	// runtimeBuffer is how much of the runtime's answers is read at once.
	runtimeBuffer = 64 << 10
)

// An endpoint makes the connections to the runtime. Its methods may be called concurrently.
type endpoint struct {
	dial   func(ctx context.Context) (net.Conn, error)
	wanted chan struct{} // wakes run; holds one

	mu         sync.Mutex
	present    chan struct{} // closed once the runtime is there, and replaced when it is absent
	err        error         // why it is absent; nil if it is not
	unanswered int           // times in a row that it became absent without having answered a call
}

func newEndpoint(dial func(ctx context.Context) (net.Conn, error)) *endpoint {
	e := &endpoint{dial: dial, wanted: make(chan struct{}, 1), present: make(chan struct{})}
	close(e.present)
	return e
}

// connect returns a new connection to the runtime, and its reader with the SETTINGS of the runtime still to read. It fails
// at once while the runtime is absent.
func (e *endpoint) connect(ctx context.Context) (net.Conn, *reader, error) {
	if err := e.absence(); err != nil {
		return nil, nil, err
	}
	conn, in, err := e.try(ctx)
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		// A runtime that restarts may have closed the socket on which the connection was waiting, and serve on a new one.
		conn, in, err = e.try(ctx)
	}
	if err != nil && ctx.Err() == nil {
		e.mu.Lock()
		e.absentLocked(err)
		e.mu.Unlock()
	}
	return conn, in, err
}

// absence returns why the runtime is absent, nil if it is there.
func (e *endpoint) absence() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// back returns a channel that is closed while the runtime is there.
func (e *endpoint) back() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.present
}

// ended notes that a connection has ended, and whether a call was answered on it. It returns how long to wait before the
// next one, so that a runtime that closes every connection is not dialled in a loop.
func (e *endpoint) ended(answered bool) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if answered {
		e.unanswered = 0
		return 0
	}
	e.unanswered++
	return time.Duration(min(float64(firstRetry)*math.Pow(retryGrowth, float64(e.unanswered-1)), float64(longestRetry)))
}

// await returns when the runtime is present: at once, if a connection can be made. It returns an error if ctx ends.
func (e *endpoint) await(ctx context.Context) error {
	conn, _, err := e.connect(ctx)
	if err == nil {
		return conn.Close() // it was only to show that the runtime is present
	}
	select {
	case <-e.back():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *endpoint) absentLocked(err error) {
	if e.err != nil {
		return
	}
	e.present, e.err = make(chan struct{}), err
	select {
	case e.wanted <- struct{}{}:
	default:
	}
}

// run connects while the runtime is absent, until ctx ends.
func (e *endpoint) run(ctx context.Context) {
	for {
		select {
		case <-e.wanted:
		case <-ctx.Done():
			return
		}
		for e.absence() != nil {
			if pause(ctx, firstRetry) != nil {
				return
			}
			conn, _, err := e.try(ctx)
			e.mu.Lock()
			if e.err = err; err == nil {
				_ = conn.Close()
				close(e.present)
			}
			e.mu.Unlock()
		}
	}
}

// try connects and waits for the SETTINGS of the runtime.
func (e *endpoint) try(ctx context.Context) (net.Conn, *reader, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	conn, err := e.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	in := newReader(conn, runtimeBuffer)
	err = handshake(conn, in)
	if !stop() && err == nil {
		err = ctx.Err() // the deadline was set, or is about to be
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, in, nil
}

// handshake sends the preface and SETTINGS, and reads until the SETTINGS of the runtime are complete.
func handshake(conn net.Conn, in *reader) error {
	if _, err := conn.Write(appendFrame([]byte(preface), typeSettings, 0, 0, appendSetting(nil, settingTableSize, 0))); err != nil {
		return err
	}
	for {
		f, ok, err := in.next()
		switch {
		case err != nil:
			return err
		case !ok:
			if err := in.fill(); err != nil {
				return err
			}
		case f.typ != typeSettings || f.has(flagAck):
			return errors.New("the runtime does not speak HTTP/2")
		default:
			in.pos -= len(f.raw)
			return nil
		}
	}
}
