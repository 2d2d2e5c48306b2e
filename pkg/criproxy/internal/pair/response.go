package pair

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
)

// Frames of the runtime pass to the client as they are:
//
//	runtime ── HEADERS, DATA, HEADERS(END_STREAM) ──▶ client       the same bytes
//	runtime ── PING, RST_STREAM, WINDOW_UPDATE ─────▶ client       the same bytes
//	runtime ── SETTINGS ──▶ pair ── SETTINGS ───────▶ client       without the settings that hold for one connection
//	runtime ── GOAWAY ────▶ pair                                   see leave.go
//
// The rules:
//
//   - Header blocks do not depend on each other, so each passes as it came, or is left out, independently of the others: the first
//     SETTINGS of the pair (endpoint.go) leave the runtime's encoder no dynamic table, and blocks of this process use none.
//   - An update of the table's size to 0 disables the table at the client (RFC 7541 4.2). It is at the beginning of the first block, and of
//     each block of this process. So a client that lowers its table needs no further update: SETTINGS_HEADER_TABLE_SIZE is not forwarded.
//   - The header table that the runtime asks for is the one of request.go, and is kept from the client.
//   - SETTINGS pass one for one, so that each ACK of one side answers SETTINGS of the other. The exception is the first SETTINGS of
//     the pair itself, whose ACK is dropped.
//   - The status of a call is read from its last block.
//   - Answers that a handler waits for are kept from the client (ahead.go).

// Limits that clients get in the first SETTINGS, unless the runtime has lower ones.
const (
	maxStreams    = 1024
	maxHeaderList = 256 << 10
)

// maxSpare is how much memory is kept for the next answer that is observed.
const maxSpare = 128 << 10

// responses are the direction from the runtime to the client.
type responses struct {
	*pair
	in   *reader
	sent int // in.buf[sent:in.pos] is to be sent
	done settling

	headerList
	block  []byte // header block that is not complete; nil else
	opened uint32 // the stream of that block
	ending bool   // it ends the stream

	settingsPassed bool   // the first SETTINGS have passed
	ownAck         bool   // the ACK of the pair's own SETTINGS has come
	tableUpdated   bool   // the client has got the update that disables the header table
	answered       bool   // a call was answered
	spare          []byte // memory for the next answer that is observed

	// See ahead.go.
	handlers []func() // of calls whose answers are complete
	began    time.Time
	running  atomic.Int64 // when the handler began that runs in this goroutine, since began; 0 if there is none
	watched  atomic.Bool
}

func (p *pair) newResponses(in *reader) *responses {
	r := &responses{pair: p, in: in, sent: in.pos, began: time.Now()}
	r.init(0)
	return r
}

// serve passes on what the runtime sends, and does what is to be done after the end of its connection.
func (r *responses) serve(ctx context.Context) {
	err := r.pass(ctx)
	if errors.Is(err, errTakenOver) {
		return
	}
	r.startHandlers()
	r.closeRuntime()
	r.runtimeEnded(ctx, r.endOfRuntime(r.answered, err))
}

// pass passes on what the runtime sends, until its connection ends.
func (r *responses) pass(ctx context.Context) error {
	for {
		f, ok, err := r.in.next()
		if err != nil {
			return errors.Join(err, r.send(r.in.pos))
		}
		if ok {
			if err := r.frame(ctx, &f); err != nil {
				return err
			}
			continue
		}
		if err := r.send(r.in.pos); err != nil {
			return err
		}
		r.settle(&r.done)
		if !r.runHandlers(ctx) {
			return errTakenOver
		}
		if err := r.in.fill(); err != nil {
			return err
		}
		r.sent = r.in.pos
	}
}

// send sends what was read up to an index of the buffer.
func (r *responses) send(to int) error {
	b := r.in.buf[r.sent:to]
	r.sent = to
	return r.writer.send(b)
}

// replace sends other bytes in the place of a frame.
func (r *responses) replace(f *frame, b []byte) error {
	if err := r.send(r.in.pos - len(f.raw)); err != nil {
		return err
	}
	r.sent = r.in.pos
	return r.writer.send(b)
}

func (r *responses) frame(ctx context.Context, f *frame) error {
	if r.block != nil && (f.typ != typeContinuation || f.stream != r.opened) {
		return connError{codeProtocol, "header block of the runtime interrupted"}
	}
	if !r.settingsPassed && f.typ != typeSettings {
		return connError{codeProtocol, "the runtime's first frame is not SETTINGS"}
	}
	if err := f.checkSize(); err != nil {
		return err
	}
	withheld := false
	var err error
	switch f.typ {
	case typeData:
		return r.data(f)
	case typeHeaders, typeContinuation:
		return r.headers(f)
	case typeReset:
		withheld, err = r.reset(f.stream, errorCode(binary.BigEndian.Uint32(f.payload)))
	case typeSettings:
		return r.settings(f)
	case typePing:
		if f.has(flagAck) {
			r.ping.CompareAndSwap(pingSent, pingAnswered)
		}
	case typeGoAway:
		return r.replace(f, r.runtimeLeaves(ctx, f.payload, &r.done))
	case typeWindowUpdate:
		withheld, err = r.windowUpdate(f.stream, int64(binary.BigEndian.Uint32(f.payload)&maxWindow))
	case typePushPromise:
		return connError{codeProtocol, "PUSH_PROMISE"}
	default: // PRIORITY and extensions are not forwarded
		withheld = true
	}
	if err == nil && withheld {
		return r.replace(f, nil)
	}
	return err
}

// routeLocked returns the call to which a frame of the runtime belongs, nil if it has ended, and whether the frame is kept from the client.
func (r *responses) routeLocked(id uint32) (st *stream, withheld bool, err error) {
	st = r.streams[id]
	switch {
	case r.unopenedLocked(id):
		return nil, false, errUnopened
	case st != nil && (st.runtimeEnded || st.local != nil && st.ahead == nil):
		return nil, false, connError{codeProtocol, "frame of the runtime on a stream that does not take it"}
	}
	return st, r.withheldLocked(st), nil
}

// errUnopened ends the connection to a runtime that sends frames on a stream that the client has not opened.
var errUnopened = connError{codeProtocol, "frame of the runtime on a stream that the client has not opened"}

func (p *pair) unopenedLocked(id uint32) bool { return id == 0 || id&1 == 0 || id > p.last }

// withheldLocked reports whether frames of the runtime are kept from the client, of a call or, if st is nil, of one that has ended.
func (p *pair) withheldLocked(st *stream) bool {
	if st == nil {
		return p.wentAhead
	}
	return st.local != nil
}

// data passes DATA once the client has room for it.
func (r *responses) data(f *frame) error {
	content, err := f.content()
	if err != nil {
		return err
	}
	r.acceptsPing()
	r.mu.Lock()
	st, withheld, err := r.routeLocked(f.stream)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	if withheld {
		frames := r.withholdLocked(f.stream, st, content, len(f.payload))
		r.mu.Unlock()
		r.sendToRuntime(frames)
		if f.has(flagEndStream) {
			r.ended(f.stream, "")
		}
		return r.replace(f, nil)
	}
	open := r.takeLocked(int64(len(f.payload)), func() error { return r.send(r.in.pos - len(f.raw)) })
	if open && st != nil && st.tap != nil {
		if n := len(content); r.tapped+n > maxHeld {
			r.tapped -= len(st.tap.body)
			st.tap = nil
		} else {
			if st.tap.body == nil {
				st.tap.body, r.spare = r.spare, nil
			}
			st.tap.body = append(st.tap.body, content...)
			r.tapped += n
		}
	}
	frames := r.settleCreditLocked()
	r.mu.Unlock()
	if !open {
		return errors.New("the client is gone")
	}
	r.sendToRuntime(frames)
	if f.has(flagEndStream) {
		r.ended(f.stream, "")
	}
	return nil
}

func (r *responses) acceptsPing() {
	if r.ping.Load() == pingAnswered {
		r.ping.CompareAndSwap(pingAnswered, pingAccepted)
	}
}

// headers passes a header block. One of several frames is collected, so that it is sent in one piece.
func (r *responses) headers(f *frame) error {
	fragment := f.payload
	if f.typ == typeHeaders {
		var err error
		if fragment, err = f.content(); err != nil {
			return err
		}
		r.opened, r.ending, r.fields, r.size = f.stream, f.has(flagEndStream), r.fields[:0], 0
	} else if r.block == nil {
		return connError{codeProtocol, "CONTINUATION of the runtime without HEADERS"}
	}
	if _, err := r.decoder.Write(fragment); err != nil {
		return connError{codeCompression, err.Error()}
	}
	single := r.block == nil && f.has(flagEndHeaders)
	if !single {
		if len(r.block)+len(fragment) > maxHeaderList+maxFrame {
			return connError{codeCalm, "header block of the runtime too large"}
		}
		r.block = append(r.block, fragment...)
		if r.block == nil {
			r.block = []byte{}
		}
	}
	if !f.has(flagEndHeaders) {
		return r.replace(f, nil)
	}
	if err := r.decoder.Close(); err != nil {
		return connError{codeCompression, err.Error()}
	}
	r.answered = true
	r.acceptsPing()
	block := r.block
	if single {
		block = fragment
	}
	r.block = nil
	switch withheld, err := r.blockEnded(); {
	case err != nil:
		return err
	case withheld:
		return r.replace(f, nil)
	case !r.tableUpdated && (len(block) == 0 || block[0]&tableMask != tableUpdate):
		block = append([]byte{noTable}, block...)
	case single:
		r.tableUpdated = true
		return nil
	}
	r.tableUpdated = true
	return r.replace(f, appendBlock(nil, flagsOf(r.ending), f.stream, block))
}

// blockEnded is called for each complete header block before it is sent. It reports whether the block is kept from the client.
func (r *responses) blockEnded() (withheld bool, err error) {
	r.mu.Lock()
	st, withheld, err := r.routeLocked(r.opened)
	if st != nil {
		st.answering = true
	}
	r.mu.Unlock()
	if err != nil {
		return false, err
	}
	if withheld && st != nil {
		st.ahead.keep(r.fields, r.ending)
	}
	if r.ending {
		code := ""
		for _, f := range r.fields {
			if f.Name == "grpc-status" {
				code = f.Value
			}
		}
		r.ended(r.opened, code)
	}
	return withheld, nil
}

// ended notes that the runtime has ended a call, with a grpc-status as it was on the wire.
func (r *responses) ended(id uint32, code string) {
	r.mu.Lock()
	st := r.streams[id]
	if st == nil {
		r.mu.Unlock()
		return
	}
	if st.ahead != nil {
		st.runtimeEnded = true
		if st.isAhead() {
			r.handlers = append(r.handlers, st.ahead.handleLocked(code == "0" && r.size <= maxHeaderList))
		}
		r.mu.Unlock()
		return
	}
	observed := st.tap
	r.endSideLocked(id, st, &st.runtimeEnded, &r.done)
	r.mu.Unlock()
	if observed != nil && code == "0" {
		if message, ok := wholeMessage(observed.body); ok {
			_ = r.server.guard(st.method, func() error { observed.observe(message); return nil }) // the call has its status
		}
		if cap(observed.body) <= maxSpare {
			r.spare = observed.body[:0]
		}
	}
	r.count(st, codeOf(code))
}

// reset notes that the runtime has reset a call. Without an error, that is the end of a call whose request is not complete. It reports
// whether the client does not get to know.
func (r *responses) reset(id uint32, code errorCode) (withheld bool, err error) {
	r.mu.Lock()
	if r.unopenedLocked(id) {
		r.mu.Unlock()
		return false, errUnopened
	}
	st := r.streams[id]
	withheld = r.withheldLocked(st)
	switch {
	case st == nil:
	case withheld:
		st.runtimeEnded = true
		if st.isAhead() {
			r.handlers = append(r.handlers, st.ahead.handleLocked(false))
		}
	default:
		r.removeLocked(id, st, &r.done)
	}
	r.mu.Unlock()
	switch {
	case withheld, st == nil:
	case code == codeRefused:
		r.count(st, codes.Unavailable)
	default:
		r.count(st, codes.Internal)
	}
	return withheld, nil
}

// settings passes SETTINGS, without the settings that hold for one connection.
func (r *responses) settings(f *frame) error {
	if f.has(flagAck) {
		return r.settingsAck(f)
	}
	limits := map[uint16]uint32{settingStreams: maxStreams, settingHeaderList: maxHeaderList}
	var passed []byte
	err := eachSetting(f.payload, func(id uint16, value uint32) error {
		limit, limited := limits[id]
		switch {
		case limited:
			value = min(value, limit)
			if !r.settingsPassed {
				delete(limits, id)
			}
		case id == settingTableSize:
			r.requestTable.Store(int64(value))
			return nil
		case id != settingInitialWindow:
			return nil
		}
		passed = appendSetting(passed, id, value)
		return nil
	})
	if !r.settingsPassed {
		r.settingsPassed = true
		for id, value := range limits {
			passed = appendSetting(passed, id, value)
		}
	}
	return errors.Join(err, r.replace(f, appendFrame(nil, typeSettings, 0, 0, passed)))
}

// settingsAck passes the ACK of SETTINGS of the client.
func (r *responses) settingsAck(f *frame) error {
	if !r.ownAck {
		r.ownAck = true
		return r.replace(f, nil)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unacknowledged == 0 {
		return connError{codeProtocol, "ACK of the runtime for no SETTINGS"}
	}
	r.unacknowledged--
	return nil
}

// windowUpdate counts what the runtime takes on the connection. It reports whether the client does not get the frame, which is one of a
// stream then.
func (r *responses) windowUpdate(id uint32, increment int64) (withheld bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case id == 0:
		if r.window.runtime += increment; r.window.runtime > maxWindow {
			return false, connError{codeFlowControl, "window of the runtime too large"}
		}
		return false, nil
	case r.unopenedLocked(id):
		return false, errUnopened
	}
	return r.withheldLocked(r.streams[id]), nil
}

// codeOf reads a grpc-status as it is on the wire.
func codeOf(text string) codes.Code {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return codes.Unknown
	}
	return codes.Code(n)
}
