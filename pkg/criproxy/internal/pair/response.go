package pair

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// Frames of the runtime pass to the client as they are:
//
//	runtime ── HEADERS, DATA, HEADERS(END_STREAM) ──▶ client       the same bytes
//	runtime ── PING, RST_STREAM, WINDOW_UPDATE ─────▶ client       the same bytes
//	runtime ── SETTINGS ──▶ pair ── SETTINGS ───────▶ client       without what is between neighbours
//	runtime ── GOAWAY ────▶ pair                                   see leave.go
//
// The rules:
//
//   - Header blocks share one table between the runtime's encoder and the client's decoder. So each block passes, complete and
//     in order. Blocks of this process only use the static table and literals that are never indexed, which leave
//     that table as it is.
//   - SETTINGS_HEADER_TABLE_SIZE of the client passes to the runtime. If it lowers the table, the first block after the
//     runtime's ACK has to begin with an update of the size (RFC 7541 4.2). If that block is one of this process, it
//     begins with the update, too: writer.tableUpdate says so from the ACK to the next block of the runtime.
//   - The header table that the runtime asks for is the one of request.go, and is kept from the client.
//   - SETTINGS pass one for one, so that each ACK of one side answers SETTINGS of the other. The exception is the first SETTINGS of
//     the pair itself (endpoint.go), whose ACK is dropped.
//   - The status of a call is read from its last block by a decoder that follows the table.

// Limits that clients are told of in the first SETTINGS, unless the runtime has lower ones.
const (
	maxStreams    = 1024
	maxHeaderList = 256 << 10
)

// maxResponseTable is the largest header table that a client may let the runtime use.
const maxResponseTable = 64 << 10

// responses are the direction from the runtime to the client.
type responses struct {
	*pair
	in   *reader
	sent int // in.buf[sent:in.pos] is to be sent
	done settling

	decoder *hpack.Decoder
	code    string // grpc-status of the block that is decoded
	block   []byte // frames of a header block that is not complete; nil else
	opened  uint32 // the stream of that block
	ending  bool   // it ends the stream

	table    int64 // what writer.tableUpdate becomes with the next bytes that are sent
	greeted  bool  // the first SETTINGS have passed
	ownAck   bool  // the ACK of the pair's own SETTINGS has come
	answered bool  // a call was answered
}

// fromRuntime passes on what the runtime sends, until its connection ends. answered says whether it has answered a call.
func (p *pair) fromRuntime(ctx context.Context, in *reader) (answered bool, err error) {
	r := &responses{pair: p, in: in, sent: in.pos, table: noUpdate}
	r.decoder = hpack.NewDecoder(defaultTableSize, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			r.code = f.Value
		}
	})
	r.decoder.SetAllowedMaxDynamicTableSize(maxResponseTable)
	r.decoder.SetMaxStringLength(maxHeaderList)
	for {
		f, ok, err := in.next()
		if err != nil {
			return r.answered, errors.Join(err, r.send(in.pos))
		}
		if !ok {
			if err := r.send(in.pos); err != nil {
				return r.answered, err
			}
			p.settle(&r.done)
			if err := in.fill(); err != nil {
				return r.answered, err
			}
			r.sent = in.pos
			continue
		}
		if err := r.frame(ctx, &f); err != nil {
			return r.answered, err
		}
	}
}

// send sends what was read up to an index of the buffer.
func (r *responses) send(to int) error {
	b := r.in.buf[r.sent:to]
	r.sent = to
	if len(b) == 0 {
		return nil
	}
	return r.write(b)
}

func (r *responses) write(b []byte) error {
	if err := r.writer.acquire(); err != nil {
		return err
	}
	r.writer.tableUpdate = r.table
	return r.writer.release(b)
}

// replace sends other bytes in the place of a frame.
func (r *responses) replace(f *frame, b []byte) error {
	if err := r.send(r.in.pos - len(f.raw)); err != nil {
		return err
	}
	r.sent = r.in.pos
	if len(b) == 0 {
		return nil
	}
	return r.write(b)
}

func (r *responses) frame(ctx context.Context, f *frame) error {
	if r.block != nil && (f.typ != typeContinuation || f.stream != r.opened) {
		return connError{codeProtocol, "header block of the runtime interrupted"}
	}
	if !r.greeted && f.typ != typeSettings {
		return connError{codeProtocol, "the runtime's first frame is not SETTINGS"}
	}
	switch f.typ {
	case typeData:
		return r.data(f)
	case typeHeaders, typeContinuation:
		return r.headers(f)
	case typeReset:
		if len(f.payload) != 4 {
			return connError{codeFrameSize, "RST_STREAM"}
		}
		r.reset(f.stream, errorCode(binary.BigEndian.Uint32(f.payload)))
	case typeSettings:
		return r.settings(f)
	case typePing:
		if len(f.payload) != 8 {
			return connError{codeFrameSize, "PING"}
		}
		if f.has(flagAck) {
			r.ping.CompareAndSwap(pingSent, pingAnswered)
		}
	case typeGoAway:
		if len(f.payload) < 8 {
			return connError{codeFrameSize, "GOAWAY"}
		}
		return r.replace(f, r.runtimeLeaves(ctx, f.payload, &r.done))
	case typeWindowUpdate:
		if len(f.payload) != 4 {
			return connError{codeFrameSize, "WINDOW_UPDATE"}
		}
		return r.windowUpdate(f)
	case typePushPromise:
		return connError{codeProtocol, "PUSH_PROMISE"}
	default: // PRIORITY and extensions are between neighbours
		return r.replace(f, nil)
	}
	return nil
}

// data passes DATA once the client has room for it.
func (r *responses) data(f *frame) error {
	content, err := f.content()
	if err != nil {
		return err
	}
	r.acceptsPing()
	r.mu.Lock()
	st := r.streams[f.stream]
	if f.stream == 0 || st != nil && (st.local != nil || st.runtimeEnded) {
		r.mu.Unlock()
		return connError{codeProtocol, "DATA of the runtime on a stream that does not take it"}
	}
	open := r.takeLocked(int64(len(f.payload)), func() error { return r.send(r.in.pos - len(f.raw)) })
	if open && st != nil && st.tap != nil {
		if n := len(content); r.tapped+n > maxHeld {
			r.tapped -= len(st.tap.body)
			st.tap = nil
		} else {
			st.tap.body = append(st.tap.body, content...)
			r.tapped += n
		}
	}
	r.mu.Unlock()
	if !open {
		return errors.New("the client is gone")
	}
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
		if f.stream == 0 || f.stream&1 == 0 {
			return connError{codeProtocol, "HEADERS of the runtime on a stream that is not the client's"}
		}
		r.opened, r.ending, r.code = f.stream, f.has(flagEndStream), ""
	} else if r.block == nil {
		return connError{codeProtocol, "CONTINUATION of the runtime without HEADERS"}
	}
	if _, err := r.decoder.Write(fragment); err != nil {
		return connError{codeCompression, err.Error()}
	}
	single := r.block == nil && f.has(flagEndHeaders)
	if !single {
		if len(r.block)+len(f.raw) > maxHeaderList+maxFrame {
			return connError{codeCalm, "header block of the runtime too large"}
		}
		if err := r.replace(f, nil); err != nil {
			return err
		}
		r.block = append(r.block, f.raw...)
	}
	if !f.has(flagEndHeaders) {
		return nil
	}
	if err := r.decoder.Close(); err != nil {
		return connError{codeCompression, err.Error()}
	}
	r.answered = true
	r.acceptsPing()
	if err := r.blockEnded(); err != nil {
		return err
	}
	r.table = noUpdate
	if single {
		return nil
	}
	block := r.block
	r.block = nil
	return r.write(block)
}

// blockEnded is called for each complete header block before it is sent.
func (r *responses) blockEnded() error {
	r.mu.Lock()
	st := r.streams[r.opened]
	local := st != nil && st.local != nil
	if st != nil {
		st.answering = true
	}
	unknown := r.opened > r.last
	r.mu.Unlock()
	if local || unknown {
		return connError{codeProtocol, "HEADERS of the runtime on a stream that does not take them"}
	}
	if r.ending {
		r.ended(r.opened, r.code)
	}
	return nil
}

// ended notes that the runtime has ended a call, with a grpc-status as it was on the wire.
func (r *responses) ended(id uint32, code string) {
	r.mu.Lock()
	st := r.streams[id]
	var observed *tap
	if st != nil {
		observed = st.tap
		r.endSideLocked(id, st, &st.runtimeEnded, &r.done)
	}
	r.mu.Unlock()
	if st == nil {
		return
	}
	if observed != nil && code == "0" {
		if message, ok := wholeMessage(observed.body); ok {
			_ = r.server.guard(st.method, func() error { observed.observe(message); return nil }) // the call has its status
		}
	}
	r.count(st, codeOf(code))
}

// reset notes that the runtime has reset a call. Without an error, that is the end of a call whose request is not complete.
func (r *responses) reset(id uint32, code errorCode) {
	r.mu.Lock()
	st := r.streams[id]
	if st != nil && st.local == nil {
		r.removeLocked(id, st, &r.done)
	}
	r.mu.Unlock()
	if st == nil || st.local != nil {
		return
	}
	if code == codeRefused {
		r.count(st, codes.Unavailable)
	} else {
		r.count(st, codes.Internal)
	}
}

// settings passes SETTINGS, without what is between neighbours.
func (r *responses) settings(f *frame) error {
	if len(f.payload)%settingSize != 0 || f.has(flagAck) && len(f.payload) > 0 {
		return connError{codeFrameSize, "SETTINGS"}
	}
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
			if !r.greeted {
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
	if !r.greeted {
		r.greeted = true
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
	none := len(r.unacknowledged) == 0
	lowered := int64(noUpdate)
	if !none {
		lowered, r.unacknowledged = r.unacknowledged[0], r.unacknowledged[1:]
	}
	r.mu.Unlock()
	if none {
		return connError{codeProtocol, "ACK of the runtime for no SETTINGS"}
	}
	r.table = lowerOf(r.table, lowered)
	return nil
}

// windowUpdate counts what the runtime takes.
func (r *responses) windowUpdate(f *frame) error {
	increment := int64(binary.BigEndian.Uint32(f.payload) & maxWindow)
	if f.stream != 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.window.runtime += increment; r.window.runtime > maxWindow {
		return connError{codeFlowControl, "window of the runtime too large"}
	}
	return nil
}

// lowerTable makes the next header block of a local answer set the size of the client's table. The caller has acquired the writer.
func (w *writer) lowerTable(size int64) { w.tableUpdate = lowerOf(w.tableUpdate, size) }

// lowerOf returns the lower of two sizes of a table, either of which may be noUpdate.
func lowerOf(a, b int64) int64 {
	if a == noUpdate || b == noUpdate {
		return max(a, b)
	}
	return min(a, b)
}

// codeOf reads a grpc-status as it is on the wire.
func codeOf(text string) codes.Code {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return codes.Unknown
	}
	return codes.Code(n)
}
