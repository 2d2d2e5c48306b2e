package pair

import (
	"errors"
	"net"
	"sync"
	"syscall"
)

// Three kinds of goroutines write to a client: the responses, which pass on what the runtime sends; local calls, which
// answer; and the requests, which answer control frames. The rules:
//
//   - What is written in one piece is not interrupted by the others: pieces are whole frames, and whole header blocks.
//   - Responses and local calls wait for a client that does not read. That is the flow control of the socket.
//   - Requests never wait. They read the client's WINDOW_UPDATE, for which the other two may wait. What they cannot
//     write at once is queued, and written by the goroutine that is writing. A client that leaves more than maxQueue
//     bytes of such answers unread loses its connection.

const maxQueue = 256 << 10

var errUnread = errors.New("client does not read the answers to its control frames")

// A writer lets several goroutines write to one connection.
type writer struct {
	conn net.Conn
	raw  syscall.RawConn // the same connection below all wrappers

	mu    sync.Mutex
	free  sync.Cond // broadcast on an error, signalled when busy becomes false
	busy  bool      // a goroutine is writing; it writes the queue too
	queue []byte
	err   error

	emptying sync.WaitGroup // goroutines that write the queue
}

// acquire waits until the caller is the only one that writes. If it returns nil, release must follow.
func (w *writer) acquire() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.busy && w.err == nil {
		w.free.Wait()
	}
	if w.err != nil {
		return w.err
	}
	w.busy = true
	return nil
}

// release writes b, then what was queued meanwhile, and lets the next one write.
func (w *writer) release(b []byte) error {
	var err error
	if len(b) > 0 {
		_, err = w.conn.Write(b)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for err == nil && w.err == nil && len(w.queue) > 0 {
		b, w.queue = w.queue, nil
		w.mu.Unlock()
		_, err = w.conn.Write(b)
		w.mu.Lock()
	}
	w.busy = false
	w.failLocked(err)
	w.free.Signal()
	return w.err
}

func (w *writer) failLocked(err error) {
	if w.err == nil && err != nil {
		w.err = err
		w.free.Broadcast()
	}
}

// send writes b, if it is not empty, and waits for the client to take it.
func (w *writer) send(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := w.acquire(); err != nil {
		return err
	}
	return w.release(b)
}

// control writes b or queues it, and does not wait.
func (w *writer) control(b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	if !w.busy {
		n, err := w.tryWrite(b)
		if w.failLocked(err); err != nil {
			return err
		}
		if b = b[n:]; len(b) == 0 {
			return nil
		}
		w.busy = true
		w.emptying.Go(func() { _ = w.release(nil) }) // ends when the connection is closed, at the latest
	}
	if len(w.queue)+len(b) > maxQueue {
		w.failLocked(errUnread)
		_ = w.conn.Close() // for a Write that waits
		return errUnread
	}
	w.queue = append(w.queue, b...)
	return nil
}

// tryWrite writes as much as the socket takes at once.
func (w *writer) tryWrite(b []byte) (n int, err error) {
	outer := w.raw.Write(func(fd uintptr) bool {
		for {
			n, err = syscall.Write(int(fd), b)
			if !errors.Is(err, syscall.EINTR) {
				return true
			}
		}
	})
	if errors.Is(err, syscall.EAGAIN) {
		err = nil
	}
	return max(n, 0), errors.Join(outer, err)
}
