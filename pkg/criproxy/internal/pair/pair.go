package pair

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
)

// A pair is one connection of a client and, while the runtime is present, one connection to the runtime for it alone.
type pair struct {
	server  *Server
	client  net.Conn
	writer  *writer       // to the client
	runtime net.Conn      // nil if the runtime was absent when the client connected; only the requests write to it
	done    chan struct{} // closed when the pair ends
	// answered is closed when the runtime's connection has ended, and with it the calls that were forwarded.
	answered chan struct{}
	ping     atomic.Int32 // a pingState
	// requestTable is the size of the header table that the runtime has asked for and that the requests have still to set,
	// or noUpdate.
	requestTable atomic.Int64

	// mu guards the fields that follow. Nothing that waits is called under it.
	mu      sync.Mutex
	room    sync.Cond // broadcast when window grows, and when a stream or the pair ends
	window  windows
	streams map[uint32]*stream
	last    uint32 // highest stream that the client has opened
	// unacknowledged is the number of SETTINGS of the client that the runtime has not acknowledged.
	unacknowledged int
	tapped         int // bytes of answers kept for observers, at most maxHeld
	held           int // bytes of requests, with their header lists, kept for handlers, at most maxHeld
	unread         int // bytes of answers that handlers send, at most maxHeld
	running        int // local calls that have not returned
	lost           bool
	wentAhead      bool // an answer that is kept from the client was asked for; see ahead.go
	leaving        leaving

	handlers  sync.WaitGroup
	responses sync.WaitGroup
}

// A stream is one call. A local one is answered here, the others are forwarded.
type stream struct {
	method   string
	route    *Route
	began    time.Time
	end      func() // ends the call in Config.Calls; nil if no stop waits for the call
	local    *local // nil: forwarded
	tap      *tap   // nil: the answer is not observed
	ahead    *ahead // nil: a local call that the runtime does not see
	declared int64  // what is left of the request by its content-length, or noLength; of the requests alone

	// Guarded by pair.mu.
	clientEnded, runtimeEnded bool
	answering                 bool // a header block of the answer was sent
	counted                   bool
}

const noLength = -1

// noUpdate says that no update of a header table's size is due.
const noUpdate = -1

// maxHeld is how many bytes of requests, of answers, and of observed answers, one pair keeps.
const maxHeld = 64 << 20

// A tap keeps the answer of a forwarded call for its observer.
type tap struct {
	observe func(response []byte)
	body    []byte
}

// pingState says whether the runtime accepts a PING of the client. Clients of grpc-go measure by PING what they receive, and
// servers of grpc-go treat a PING as abuse if they have sent nothing since the last one. So the client's PING passes
// if the runtime has sent HEADERS or DATA since its last ACK. Else it is answered here: the client measures an answer
// of this process.
type pingState = int32

const (
	pingAnswered pingState = iota // and nothing was received since
	pingAccepted
	pingSent
)

// lastWrite is how long a pair tries to send GOAWAY to a client that has violated HTTP/2.
const lastWrite = time.Second

// openLocked adds a stream.
func (p *pair) openLocked(id uint32, st *stream) {
	p.streams[id] = st
	p.leaving.open++
	if st.route.Unary || st.local != nil {
		p.leaving.waited++
		st.end = p.server.config.Calls.Begin()
	}
}

// removeLocked ends a stream. The caller settles with the leaving part once the last bytes of the stream are sent.
func (p *pair) removeLocked(id uint32, st *stream, s *settling) {
	delete(p.streams, id)
	if st.local != nil {
		if !st.local.started() {
			p.held -= st.local.held
		}
		p.room.Broadcast() // its answer may wait for window
	}
	if st.tap != nil {
		p.tapped -= len(st.tap.body)
		st.tap = nil
	}
	s.open++
	if st.end != nil {
		s.waited++
	}
}

// endSideLocked notes that one side of a forwarded stream has ended.
func (p *pair) endSideLocked(id uint32, st *stream, side *bool, s *settling) {
	*side = true
	if st.clientEnded && st.runtimeEnded {
		p.removeLocked(id, st, s)
	}
}

// count counts a call when it has ended, once.
func (p *pair) count(st *stream, code codes.Code) {
	p.mu.Lock()
	counted := st.counted
	st.counted = true
	p.mu.Unlock()
	if counted {
		return
	}
	if st.end != nil {
		st.end()
	}
	p.server.config.Ended(st.method, code, time.Since(st.began))
}

// serve runs a pair until one of its connections ends.
func (s *Server) serve(ctx context.Context, client net.Conn) {
	defer s.clients.Add(-1)
	if s.clients.Add(1) > maxConnections { // before the runtime is dialled
		_ = client.Close()
		return
	}
	w, err := writerTo(client)
	if err != nil {
		s.config.Log.Error(err, "Cannot serve the connection of a client, closing it")
		_ = client.Close()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &pair{server: s, client: client, writer: w, done: make(chan struct{}), answered: make(chan struct{}), streams: map[uint32]*stream{}, window: newWindows(), leaving: newLeaving()}
	p.room.L = &p.mu
	p.requestTable.Store(noUpdate)
	runtime, in, err := s.endpoint.connect(ctx)
	p.runtime, p.lost = runtime, err != nil
	if !s.add(p) {
		p.close()
		cancel()
		return
	}
	if in == nil {
		p.responses.Go(func() { p.runtimeEnded(ctx, 0) })
	} else {
		r := p.newResponses(in)
		p.responses.Go(func() { r.serve(ctx) })
	}
	err = p.fromClient(ctx)
	if broken, ok := errors.AsType[connError](err); ok {
		s.config.Log.V(2).Info("Connection of a client violates HTTP/2", "err", err)
		p.mu.Lock()
		last := p.last
		p.mu.Unlock()
		_ = client.SetWriteDeadline(time.Now().Add(lastWrite)) // also for a Write that waits
		_ = w.send(appendGoAway(nil, last, broken.code, broken.text))
	}
	cancel()
	p.close()
	p.responses.Wait()
	p.endStreams()
	p.handlers.Wait()
	w.emptying.Wait()
	s.remove(p)
}

// close ends both connections, and what waits for either.
func (p *pair) close() {
	_ = p.client.Close()
	p.closeRuntime()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.window.closed = true
	p.room.Broadcast()
	select {
	case <-p.done:
	default:
		close(p.done)
	}
}

// toRuntime writes to the runtime, for at most writeLimit.
func (p *pair) toRuntime(b []byte) error {
	if err := p.runtime.SetWriteDeadline(time.Now().Add(p.server.writeLimit)); err != nil {
		return err
	}
	_, err := p.runtime.Write(b)
	return err
}

func (p *pair) closeRuntime() {
	if p.runtime != nil {
		_ = p.runtime.Close()
	}
}

// endStreams counts the calls that end because their client is gone.
func (p *pair) endStreams() {
	p.mu.Lock()
	streams := p.streams
	p.streams = map[uint32]*stream{}
	p.room.Broadcast()
	p.mu.Unlock()
	for _, st := range streams {
		if st.local == nil || !st.local.started() {
			p.count(st, codes.Canceled)
		}
	}
}
