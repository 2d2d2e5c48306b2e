package pair

import (
	"context"
	"errors"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/metadata"
)

// A call that goes ahead is forwarded like any other, while its answer is kept from the client. Once it is complete the handler gets it, and
// answers the client:
//
//	client ── HEADERS, DATA(END_STREAM) ──▶ pair ──▶ runtime
//	                            Handler ◀── pair ◀── runtime
//	client ◀─ HEADERS, DATA, HEADERS ── Handler
//
// The rules:
//
//   - Nothing that the runtime sends on such a stream reaches the client. A pair does not keep streams that have ended, so
//     once it has sent a call ahead, no frame of an ended stream reaches the client.
//   - The handler gets only a successful answer of one message. In every other case, or if the answer is larger than maxAhead, the handler
//     runs without an answer, and makes the call itself, through grpc-go with its error handling. So only calls that change nothing go ahead.
//   - No WINDOW_UPDATE is sent on such a stream: a call goes ahead if its window is larger than maxAhead, so that an answer is complete, or is seen
//     to be too large. If the client lowers the windows of streams meanwhile, such calls are recalled.
//   - DATA that are kept use the runtime's view of the window and not the client's. They lower the debt of window.go, also below 0: that is
//     credit. The answer of the handler uses the credit, or the pair gives it to the runtime when it is more than maxCredit.
//   - The handler runs in the goroutine of the responses, which saves two switches of goroutines. If it takes longer than soon, another
//     goroutine serves the other responses.

const (
	// maxAhead is how many bytes of an answer are kept. It is below defaultWindow.
	maxAhead = 32 << 10
	// maxCredit is how much smaller the window may be that the runtime sees than the client's.
	maxCredit = maxFrame
	// soon is how long a handler may delay the responses of its connection.
	soon = 5 * time.Millisecond
)

// An Answer is that of the runtime to a call.
type Answer struct {
	Message         []byte
	Header, Trailer metadata.MD
}

// An ahead is what a stream has beyond a local one if its call was sent ahead.
type ahead struct {
	start func() (run func()) // of the handler; nil once it was called; guarded by pair.mu

	// Of the responses, until the handler is started.
	header, trailer metadata.MD
	headed          bool // header is one of gRPC
	body            []byte
	ok              bool
}

// isAhead reports whether the answer to a call that was sent ahead is still to come.
func (st *stream) isAhead() bool { return st.ahead != nil && st.ahead.start != nil }

// handleLocked returns the handler of a call, which the caller has to run. ok says that the answer is complete and successful.
func (a *ahead) handleLocked(ok bool) (run func()) {
	run, a.start, a.ok = a.start(), nil, ok
	return run
}

// answeredAhead returns the answer for the handler, nil if it has to make the call by itself.
func (st *stream) answeredAhead() *Answer {
	a := st.ahead
	if a == nil || !a.ok || !a.headed {
		return nil
	}
	message, ok := wholeMessage(a.body)
	if !ok {
		return nil
	}
	return &Answer{message, a.header, a.trailer}
}

// goAheadLocked prepares a call to be sent ahead, and reports whether that is possible.
func (r *requests) goAheadLocked(ctx context.Context, h *heldCall, request []byte) bool {
	st := h.call
	if r.window.initial <= maxAhead || r.pair.held+len(request) > maxHeld {
		return false
	}
	if st.local.read(h.fields, st.began); st.local.failure != nil {
		return false
	}
	st.local.body = append([]byte(nil), request...)
	r.holdLocked(st.local, len(request))
	id := h.stream // not h, which refers to the buffer of the reader
	st.ahead = &ahead{start: func() func() { return r.startLocked(ctx, id, st, nil) }}
	r.wentAhead = true
	return true
}

// recall recalls the calls whose answers may not fit into the windows that the client now gives to streams.
func (r *requests) recall(window int64) {
	if window > maxAhead {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, st := range r.streams {
		if st.isAhead() {
			r.out = appendReset(r.out, id, codeCancel)
			r.pair.handlers.Go(st.ahead.handleLocked(false))
		}
	}
}

// withholdLocked keeps DATA of the runtime from the client, for the handler if it waits for them. It returns frames to be sent to the
// runtime.
func (r *responses) withholdLocked(id uint32, st *stream, content []byte, size int) (frames []byte) {
	if st != nil && st.isAhead() {
		if len(st.ahead.body)+len(content) <= maxAhead {
			st.ahead.body = append(st.ahead.body, content...)
		} else {
			r.handlers = append(r.handlers, st.ahead.handleLocked(false))
			frames = appendReset(frames, id, codeCancel)
		}
	}
	r.window.debt -= int64(size)
	return append(frames, r.settleCreditLocked()...)
}

// settleCreditLocked returns the WINDOW_UPDATE that gives the credit of the pair to the runtime, if it is large, or if the
// runtime can hardly send without it: a client may give no window before all of it is used.
func (p *pair) settleCreditLocked() (frames []byte) {
	w := &p.window
	if w.debt >= 0 || w.debt >= -maxCredit && w.conn+w.debt >= maxFrame {
		return nil
	}
	frames = appendWindowUpdate(nil, 0, -w.debt)
	w.debt = 0
	return frames
}

// sendToRuntime writes to the runtime without waiting for it.
func (p *pair) sendToRuntime(b []byte) {
	if len(b) > 0 {
		p.handlers.Go(func() { _ = p.toRuntime(b) }) // an error means that the connection is lost, which the responses handle
	}
}

// errTakenOver says that another goroutine has taken over the responses.
var errTakenOver = errors.New("taken over")

// runHandlers runs the handlers of calls whose answers are complete: the last one in this goroutine. It returns false if that has taken too long, and
// another goroutine has taken over the responses meanwhile.
func (r *responses) runHandlers(ctx context.Context) bool {
	if len(r.handlers) == 0 {
		return true
	}
	last := r.handlers[len(r.handlers)-1]
	r.handlers = r.handlers[:len(r.handlers)-1]
	r.startHandlers()
	began := int64(time.Since(r.began))
	r.running.Store(began)
	if !r.watched.Swap(true) {
		time.AfterFunc(soon, func() { r.watch(ctx) })
	}
	last()
	return r.running.CompareAndSwap(began, 0)
}

// watch lets another goroutine take over the responses if the handler in theirs takes too long. It ends when there is none, so that not every
// handler needs a timer of its own.
func (r *responses) watch(ctx context.Context) {
	began := r.running.Load()
	if began == 0 {
		r.watched.Store(false)
		if began = r.running.Load(); began == 0 || r.watched.Swap(true) {
			return
		}
	}
	if left := soon - (time.Since(r.began) - time.Duration(began)); left > 0 {
		time.AfterFunc(left, func() { r.watch(ctx) })
		return
	}
	if r.running.CompareAndSwap(began, 0) {
		r.pair.responses.Go(func() { r.serve(ctx) })
	}
	time.AfterFunc(soon, func() { r.watch(ctx) })
}

// startHandlers runs the handlers in goroutines of their own.
func (r *responses) startHandlers() {
	for _, run := range r.handlers {
		r.pair.handlers.Go(run)
	}
	r.handlers = r.handlers[:0]
}

// keep keeps a header block of the runtime for the handler.
func (a *ahead) keep(fields []hpack.HeaderField, last bool) {
	var md metadata.MD
	var code, contentType string
	for _, f := range fields {
		switch f.Name {
		case ":status":
			code = f.Value
		case "content-type":
			contentType = f.Value
		}
		value, err := decodeMetadata(f.Name, f.Value)
		if f.IsPseudo() || reserved(f.Name) || err != nil {
			continue
		}
		if md == nil {
			md = metadata.MD{}
		}
		md.Append(f.Name, value)
	}
	if last {
		a.trailer = md
	} else {
		a.header, a.headed = md, code == "200" && isGRPC(contentType)
	}
}
