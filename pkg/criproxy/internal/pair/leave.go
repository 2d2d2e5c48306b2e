package pair

import (
	"context"
	"encoding/binary"
	"time"

	"google.golang.org/grpc/codes"
)

// A pair ends its connections in steps, so that no call of the client is lost:
//
//	pair                                      client
//	  │ GOAWAY(2³¹−1), PING ────────────────────▶ │  opens no more streams
//	  │ ◀──────────── calls that it has opened before
//	  │ ◀──────────────────────────────── PING ACK │
//	  │ GOAWAY(last stream) ────────────────────▶ │  later streams are not taken
//	  │ answers of all calls that are waited for ▶ │
//	  │ close                                      │
//
// The rules:
//
//   - A call is answered, or the client knows that it was not processed: by RST_STREAM(REFUSED_STREAM), or by the last
//     stream of GOAWAY. Clients repeat such calls by themselves.
//   - A call counts as answered once its last bytes are written, not when they are read from the runtime.
//   - GOAWAY of the runtime does not pass: its last stream does not cover local calls. Calls that the runtime has not
//     taken are refused one by one, and the client is sent away in the steps above.
//   - When the runtime's connection is lost, forwarded calls end with a status of ours, local calls go on, and later calls get
//     Config.Away. Once the runtime is back, the client is sent away, and its next connection is paired.
//   - A stop waits for unary calls. Streaming calls end with Config.Stopping.

// leavePing is the payload of the PING after the first GOAWAY.
const leavePing = "pullgate"

// leaving is the progress of these steps. It is guarded by pair.mu.
type leaving struct {
	open      int  // calls whose last bytes were not sent
	waited    int  // those of them that a stop waits for
	announced bool // the first GOAWAY was sent
	final     bool // the second one was
	stopping  bool // the process stops
	refusing  bool // the runtime takes no more streams
	runtime   bool // the runtime has sent GOAWAY
	idle      chan struct{}
}

func newLeaving() leaving { return leaving{idle: make(chan struct{})} }

// A settling counts the calls that one goroutine has ended and whose last bytes it has still to send.
type settling struct {
	open, waited int
	check        bool // the second GOAWAY is to be sent
}

// settle subtracts these calls. The goroutine calls it when it has sent their last bytes.
func (p *pair) settle(s *settling) {
	if *s == (settling{}) {
		return
	}
	p.mu.Lock()
	p.leaving.open -= s.open
	p.leaving.waited -= s.waited
	p.idleLocked()
	p.mu.Unlock()
	*s = settling{}
}

func (p *pair) idleLocked() {
	l := &p.leaving
	if !l.final || l.open > 0 && (!l.stopping || l.waited > 0) {
		return
	}
	select {
	case <-l.idle:
	default:
		close(l.idle)
	}
}

// leave sends the client away, and waits until its calls are answered, or the pair or ctx ends.
func (p *pair) leave(ctx context.Context, code errorCode, text string) {
	p.mu.Lock()
	p.announceLocked(code, text)
	p.mu.Unlock()
	select {
	case <-p.leaving.idle:
	case <-p.done:
	case <-ctx.Done():
	}
}

// announceLocked sends the first GOAWAY, once. It is sent under the lock, so that no call on this connection is refused before it: a
// client would repeat the call on the same connection, and repeats it only once.
func (p *pair) announceLocked(code errorCode, text string) {
	if p.leaving.announced {
		return
	}
	p.leaving.announced = true
	b := appendGoAway(nil, maxWindow, code, text)
	_ = p.writer.control(appendFrame(b, typePing, 0, 0, []byte(leavePing))) // the client is gone if it fails
}

// hasLeft is called when the client has answered the PING. It returns the second GOAWAY, or nothing if it was sent.
func (p *pair) hasLeft(b []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.leaving.announced || p.leaving.final {
		return b
	}
	p.leaving.final = true
	return appendGoAway(b, p.last, codeNone, "reconnect")
}

// stop ends the pair: in the steps above, or at the end of ctx.
func (p *pair) stop(ctx context.Context) {
	p.mu.Lock()
	p.leaving.stopping = true
	p.idleLocked()
	p.mu.Unlock()
	p.leave(ctx, codeNone, "stopping")
	p.closeRuntime() // ends the responses, which answer what is left
	select {
	case <-p.answered:
	case <-p.done:
	case <-ctx.Done():
	}
	p.close()
}

// runtimeLeaves acts on GOAWAY of the runtime. It returns what the client has to know of its calls.
func (p *pair) runtimeLeaves(ctx context.Context, payload []byte, s *settling) []byte {
	last := binary.BigEndian.Uint32(payload) & maxWindow
	code, text := errorCode(binary.BigEndian.Uint32(payload[4:])), string(payload[8:])
	var refused []*stream
	var b []byte
	p.mu.Lock()
	p.announceLocked(code, text)
	if last != maxWindow {
		p.leaving.refusing = true
		for id, st := range p.streams {
			switch {
			case id <= last:
			case st.local == nil:
				b = appendReset(b, id, codeRefused)
				p.removeLocked(id, st, s)
				refused = append(refused, st)
			case st.isAhead():
				p.handlers.Go(st.ahead.handleLocked(false))
			}
		}
	}
	first := !p.leaving.runtime
	p.leaving.runtime = true
	p.mu.Unlock()
	for _, st := range refused {
		p.count(st, codes.Unavailable)
	}
	if first {
		p.handlers.Go(func() {
			p.leave(ctx, code, text)
			_ = p.client.Close()
		})
	}
	return b
}

// runtimeLost ends the forwarded calls after the end of the runtime's connection, and settles what the client still expects
// of the runtime.
func (p *pair) runtimeLost() {
	var runs []func()
	type ended struct {
		id         uint32
		st         *stream
		incomplete bool // the client has not ended its request
	}
	var left []ended
	var done settling
	p.mu.Lock()
	p.lost = true
	for id, st := range p.streams {
		if st.local == nil {
			p.removeLocked(id, st, &done)
			left = append(left, ended{id, st, !st.clientEnded})
		} else if st.isAhead() {
			runs = append(runs, st.ahead.handleLocked(false))
		}
	}
	acks, stopping := p.unacknowledged, p.leaving.stopping
	p.unacknowledged = 0
	window := defaultWindow - p.window.runtime
	p.window.runtime, p.window.debt = defaultWindow, 0
	p.room.Broadcast()
	p.mu.Unlock()

	for _, run := range runs {
		p.handlers.Go(run)
	}
	reason := p.server.config.Lost
	if stopping {
		reason = p.server.config.Stopping
	}
	end := statusOf(reason)
	for _, e := range left {
		p.count(e.st, end.Code())
	}
	b := appendWindowUpdate(nil, 0, window)
	for range acks {
		b = appendFrame(b, typeSettings, flagAck, 0, nil)
	}
	for _, e := range left {
		b = appendAnswer(b, answerEnd{id: e.id, started: e.st.answering, status: end})
		if e.incomplete {
			b = appendReset(b, e.id, codeNone)
		}
	}
	if p.writer.send(b) == nil { // else the client is gone
		p.settle(&done)
	}
}

// endOfRuntime is called when the runtime's connection has ended. It returns how long to wait before the next one.
func (p *pair) endOfRuntime(answered bool, err error) (wait time.Duration) {
	p.mu.Lock()
	closed, stopping := p.window.closed, p.leaving.stopping
	p.mu.Unlock()
	if closed {
		return 0
	}
	if !stopping {
		p.server.config.Log.V(2).Info("Connection to the runtime ended", "err", err)
		wait = p.server.endpoint.ended(answered)
	}
	p.runtimeLost()
	return wait
}

// runtimeEnded is called when nothing more comes from the runtime, and nothing of it is to be sent.
func (p *pair) runtimeEnded(ctx context.Context, wait time.Duration) {
	close(p.answered)
	p.awaitRuntime(ctx, wait)
}

// awaitRuntime sends the client away once the runtime is there, so that its next connection is paired.
func (p *pair) awaitRuntime(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	p.mu.Lock()
	stopping := p.leaving.stopping
	p.mu.Unlock()
	if stopping || p.server.endpoint.await(ctx) != nil {
		return
	}
	p.leave(ctx, codeNone, "the runtime is back")
	_ = p.client.Close()
}
