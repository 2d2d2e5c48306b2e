package pair

import (
	"context"
	"encoding/binary"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A local call is answered in this process. The runtime does not see it, not even its stream:
//
//	client ── HEADERS, DATA(END_STREAM) ──▶ collect ──▶ Handler
//	client ◀─ HEADERS, DATA, HEADERS(END_STREAM) ────── answer
//
// The rules:
//
//   - A request is one message. It is collected by the requests, which give its window back: at once while more is to
//     come, and with the answer for the last part, which saves a write.
//   - Each handler has a goroutine. It ends with the handler, also if the client has reset the stream: the pair waits for it.
//   - An answer is sent as fast as the client takes it (window.go), and in one write if it fits.
//   - An answer may come before the request is complete. Then RST_STREAM(NO_ERROR) says that the rest is not wanted.

// messageHead is the length of what gRPC puts before a message: a flag for compression, and the length.
const messageHead = 5

// maxMessage is the largest message, as kubelets and runtimes have it.
const maxMessage = 16 << 20

// A local is what a stream has beyond a forwarded one if it is answered here.
type local struct {
	window int64 // what the client takes on the stream; guarded by pair.mu
	held   int   // its part of pair.held; guarded by pair.mu
	owed   atomic.Int64

	// Of the requests, until the call is started.
	md          metadata.MD
	contentType string
	deadline    time.Time
	failure     error // the call is answered with it
	body        []byte
	cancel      context.CancelFunc // nil until the call is started; guarded by pair.mu if the call was sent ahead
}

func (l *local) started() bool { return l.cancel != nil }

func newLocal(head requestHead) (*local, error) {
	if !isGRPC(head.contentType) {
		return nil, streamError{codeProtocol}
	}
	return &local{contentType: head.contentType}, nil
}

// read reads the header fields of a call, for its handler.
func (l *local) read(fields []hpack.HeaderField, began time.Time) {
	l.md = metadata.MD{}
	for _, f := range fields {
		switch f.Name {
		case "grpc-timeout":
			timeout, err := parseTimeout(f.Value)
			if err != nil {
				l.failure = status.Errorf(codes.Internal, "malformed grpc-timeout: %v", err)
			}
			l.deadline = began.Add(timeout)
		case ":authority", "user-agent", "content-type":
			l.md.Append(f.Name, f.Value)
		default:
			if strings.HasPrefix(f.Name, ":") || reserved(f.Name) {
				continue
			}
			value, err := decodeMetadata(f.Name, f.Value)
			if err != nil {
				l.failure = status.Errorf(codes.Internal, "malformed binary metadata %q: %v", f.Name, err)
			}
			l.md.Append(f.Name, value)
		}
	}
}

// holdLocked counts bytes that are kept for the handler of a call.
func (p *pair) holdLocked(l *local, n int) {
	p.held += n
	l.held += n
}

// collect adds DATA to the request of a local call.
func (r *requests) collect(ctx context.Context, f *frame, st *stream, content []byte) error {
	l, size, end := st.local, int64(len(f.payload)), f.has(flagEndStream)
	if l.started() { // it was answered before
		r.back = appendWindowUpdate(r.back, 0, size)
		return nil
	}
	r.mu.Lock()
	full := r.pair.held+len(content) > maxHeld
	if !full {
		l.body = append(l.body, content...)
		r.holdLocked(l, len(content))
	}
	r.mu.Unlock()
	whole := len(l.body) - messageHead
	if len(l.body) >= messageHead {
		whole = max(whole, int(binary.BigEndian.Uint32(l.body[1:])))
	}
	if end {
		l.owed.Add(size)
	} else {
		r.back = appendWindowUpdate(r.back, 0, size)
		r.back = appendWindowUpdate(r.back, f.stream, size)
	}
	switch {
	case full:
		r.start(ctx, f.stream, st, status.Error(codes.ResourceExhausted, "too many bytes of requests on this connection"))
	case whole > maxMessage:
		r.start(ctx, f.stream, st, errTooLarge(whole))
	case end:
		r.requestEnded(ctx, f.stream, st)
	}
	return nil
}

// requestEnded starts a local call whose request is complete.
func (r *requests) requestEnded(ctx context.Context, id uint32, st *stream) {
	l := st.local
	if l.started() {
		return
	}
	_, ok := wholeMessage(l.body)
	failure := l.failure
	switch {
	case failure != nil || ok:
	case len(l.body) > 0 && l.body[0] == 1:
		failure = status.Error(codes.Unimplemented, "grpc: compressed requests are not supported")
	case len(l.body) == 0:
		failure = status.Error(codes.Internal, "cardinality violation: received no request message from non-client-streaming RPC")
	default:
		failure = status.Error(codes.Internal, "cardinality violation: the request is not one complete message")
	}
	r.start(ctx, id, st, failure)
}

// start answers a call: with failure, or by its handler if that is nil.
func (p *pair) start(ctx context.Context, id uint32, st *stream, failure error) {
	p.mu.Lock()
	run := p.startLocked(ctx, id, st, failure)
	p.mu.Unlock()
	p.handlers.Go(run)
}

// startLocked prepares a call to be answered, and returns what answers it, which the caller has to run.
func (p *pair) startLocked(ctx context.Context, id uint32, st *stream, failure error) (run func()) {
	l := st.local
	ctx = metadata.NewIncomingContext(ctx, l.md)
	if l.deadline.IsZero() {
		ctx, l.cancel = context.WithCancel(ctx)
	} else {
		ctx, l.cancel = context.WithDeadline(ctx, l.deadline)
	}
	p.running++
	return func() {
		defer l.cancel()
		p.answerCall(ctx, id, st, failure)
	}
}

// answerCall runs the handler of a call and sends its answer.
func (p *pair) answerCall(ctx context.Context, id uint32, st *stream, failure error) {
	a := &answer{pair: p, id: id, st: st}
	c := &Call{Method: st.method, answer: a}
	if failure == nil {
		c.Request, _ = wholeMessage(st.local.body)
		c.Ahead = st.answeredAhead()
		failure = p.server.guard(st.method, func() error { return st.route.Handle(ctx, c) })
	}
	s := statusOf(failure)
	a.end(c, s)

	var done settling
	p.mu.Lock()
	p.running--
	p.held -= st.local.held
	if p.streams[id] == st {
		p.removeLocked(id, st, &done)
	}
	p.mu.Unlock()
	p.count(st, s.Code())
	p.settle(&done)
}

// A Call is one local call. It is used by one goroutine.
type Call struct {
	Method  string
	Request []byte // the message
	// Ahead is the answer of the runtime if the call was sent ahead; nil if there is none that is successful.
	Ahead *Answer
	// Header is sent before the first message, Trailer with the status. Keys that gRPC itself sets are not sent.
	Header, Trailer metadata.MD

	answer *answer
}

// Send sends a message. It waits for room in the windows of the client, and may keep what is less than a write until Flush or
// the end of the call. It fails if the client no longer waits.
func (c *Call) Send(message []byte) error { return c.answer.message(c, message) }

// Flush sends what Send has kept.
func (c *Call) Flush() error { return c.answer.flush(c, nil) }

// An answer is that of one local call.
type answer struct {
	*pair
	id      uint32
	st      *stream
	started bool   // the header was sent
	buf     []byte // DATA frames that were not sent
	err     error
}

// enough is how much of an answer is collected before it is written.
const enough = 64 << 10

// keep counts bytes of an answer that the client has still to take. It reports whether there is room for them.
func (a *answer) keep(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.unread+n > maxHeld {
		return false
	}
	a.unread += n
	return true
}

func (a *answer) message(c *Call, message []byte) error {
	if !a.keep(len(message)) {
		return status.Error(codes.ResourceExhausted, "too many bytes of answers on this connection are not read")
	}
	defer a.keep(-len(message))
	var head [messageHead]byte
	binary.BigEndian.PutUint32(head[1:], uint32(len(message))) //nolint:gosec // messages are far smaller than 4 GiB
	parts := [2][]byte{head[:], message}
	for left := messageHead + len(message); left > 0; {
		n := a.reserve(a.id, a.st, left, func() error { return a.flush(c, nil) })
		if n == 0 {
			return a.fail()
		}
		left -= n
		a.buf = appendHead(a.buf, n, typeData, 0, a.id)
		for i := range parts {
			k := min(n, len(parts[i]))
			a.buf = append(a.buf, parts[i][:k]...)
			parts[i], n = parts[i][k:], n-k
		}
		if len(a.buf) >= enough {
			if err := a.flush(c, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// fail returns why nothing more can be sent.
func (a *answer) fail() error {
	if a.err == nil {
		a.err = status.Error(codes.Canceled, "the client has ended the call")
	}
	return a.err
}

// end sends the status.
func (a *answer) end(c *Call, s *status.Status) {
	a.mu.Lock()
	open := a.streams[a.id] == a.st
	incomplete := !a.st.clientEnded
	a.mu.Unlock()
	if !open || a.err != nil {
		return
	}
	if !a.started && s.Code() == codes.OK && len(a.buf) == 0 {
		s = status.New(codes.Internal, "the handler has not answered")
	}
	end := &answerEnd{id: a.id, status: s, md: c.Trailer}
	if err := a.flush(c, end); err == nil && incomplete {
		_ = a.writer.send(appendReset(nil, a.id, codeNone))
	}
}

// flush sends the header if it was not sent, what was collected, and the end if there is one.
func (a *answer) flush(c *Call, end *answerEnd) error {
	if a.err != nil {
		return a.err
	}
	b := appendWindowUpdate(make([]byte, 0, len(a.buf)+256), 0, a.st.local.owed.Swap(0))
	trailersOnly := end != nil && !a.started && len(a.buf) == 0 && len(c.Header) == 0
	if !a.started && !trailersOnly {
		b = appendBlock(b, 0, a.id, appendHeader(blockStart(), a.st.local.contentType, c.Header))
		a.started = true
	}
	b = append(b, a.buf...)
	a.buf = emptied(a.buf)
	if end != nil {
		end.contentType, end.started = a.st.local.contentType, a.started
		b = appendAnswer(b, *end)
	}
	a.err = a.writer.send(b)
	return a.err
}

// An answerEnd is the last header block of an answer of this process.
type answerEnd struct {
	id          uint32
	started     bool   // the first header block was sent; else this one is the only one
	contentType string // "" is that of gRPC
	status      *status.Status
	md          metadata.MD
}

// appendAnswer appends the end of an answer.
func appendAnswer(b []byte, e answerEnd) []byte {
	block := blockStart()
	if !e.started {
		block = appendHeader(block, e.contentType, nil)
	}
	return appendBlock(b, flagEndStream, e.id, appendTrailer(block, e.status, e.md))
}

// blockStart begins a header block; see response.go.
func blockStart() []byte { return append(make([]byte, 0, 128), noTable) }
