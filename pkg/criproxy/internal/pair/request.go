package pair

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// Frames of the client are checked, and pass to the runtime unless they belong to a local call:
//
//	client ── HEADERS, CONTINUATION ──▶ decode ──▶ check ──▶ route ──▶ encode ──▶ runtime
//	                                                           └─▶ local call (local.go)
//	client ── DATA, RST_STREAM, WINDOW_UPDATE ──▶ runtime           the same bytes, for forwarded calls
//	client ── SETTINGS ──▶ runtime                                  without the settings that hold for one connection
//	client ── PING ──────▶ runtime or pair                          see pingState
//
// The rules:
//
//   - Every header block is decoded, also one of a refused call: both sides must keep the same dynamic table.
//   - The runtime reads a block that this process has encoded from the fields that it has checked. So both read the same
//     method, and padding, priority, CONTINUATION and size updates of a client do not reach the runtime.
//   - A malformed request (RFC 9113 8.1 to 8.3) is reset, and never reaches the runtime or a handler.
//   - DATA and trailers on a closed stream are ignored (RFC 9113 5.1): the client may have sent them before it received the end of the
//     call. Responses remove a stream before they write its last frames, so RST_STREAM could reach the client before these, and
//     would be the status of the call.
//   - A call is routed once, by its :path. Header blocks reach the runtime in the order of their streams.
//   - A call with Route.Bypass is held until its next frame. If that is its whole request, Bypass decides who answers the call; else it is
//     a local call. Several calls are held, because a client with many calls sends their HEADERS first. Calls reach the runtime in the
//     order of their streams, so a held call whose request has not come is a local one once a later call is to be forwarded.

// Limits on what one client may make this process keep.
const (
	// maxBlock is the largest header block, encoded. It is not smaller than maxHeaderList, so no client that respects
	// SETTINGS_MAX_HEADER_LIST_SIZE meets it.
	maxBlock = maxHeaderList
	// maxFragments is the number of frames of one header block.
	maxFragments = 64
	// maxUnacknowledged is the number of SETTINGS that the runtime has not acknowledged.
	maxUnacknowledged = 100
	// flushSize is how much is collected for the runtime before it is written.
	flushSize = 256 << 10
	// clientBuffer is how much of the requests is read at once.
	clientBuffer = 32 << 10
)

// writeLimit is how long the runtime may take no bytes. Nothing is read from the client meanwhile, not even that it is gone, so
// without a limit the pair would stay as long as the runtime does. It is what kubelets give to most calls.
const writeLimit = 2 * time.Minute

// clientHandshakeLimit is how long a client may take for its preface and SETTINGS.
const clientHandshakeLimit = 5 * time.Second

// requests are the direction from the client to the runtime.
type requests struct {
	*pair
	in   *reader
	out  []byte // to the runtime
	back []byte // to the client
	done settling

	headerList
	encoder *hpack.Encoder
	encoded bytes.Buffer

	block     []byte // header block that is not complete; nil else
	opened    uint32 // its stream
	flags     byte   // of its HEADERS
	fragments int

	held  []heldCall // in the order of their streams
	ready bool       // the first SETTINGS have come
}

// A heldCall waits for the rest of its request, which decides who answers it.
type heldCall struct {
	stream uint32
	call   *stream
	fields []hpack.HeaderField

	// The frame with the whole request, if it has come, and its content. They are in the buffer of the reader, so they are decided on before it is
	// filled again.
	request *frame
	content []byte
}

// fromClient serves what the client sends, until its connection ends.
func (p *pair) fromClient(ctx context.Context) error {
	r := &requests{pair: p, in: newReader(p.client, clientBuffer)}
	r.init(defaultTableSize)
	r.encoder = hpack.NewEncoder(&r.encoded)
	if err := p.client.SetReadDeadline(time.Now().Add(clientHandshakeLimit)); err != nil {
		return err
	}
	if p.runtime == nil {
		b := appendSetting(nil, settingStreams, maxStreams)
		r.back = appendFrame(r.back, typeSettings, 0, 0, appendSetting(b, settingHeaderList, maxHeaderList))
		if err := p.writer.send(r.back); err != nil {
			return err
		}
		r.back = r.back[:0]
	}
	if err := r.readPreface(); err != nil {
		return err
	}
	for {
		f, ok, err := r.in.next()
		if ok {
			err = r.frame(ctx, &f)
		}
		if err == nil && ok && len(r.out) < flushSize {
			continue
		}
		if err == nil && !ok {
			err = r.releaseHeld(ctx, r.requested())
		}
		if err := errors.Join(err, r.flush()); err != nil {
			return err
		}
		if !ok {
			if err := r.in.fill(); err != nil {
				return err
			}
		}
	}
}

func (r *requests) readPreface() error {
	for {
		b := r.in.buf[r.in.pos:r.in.end]
		if n := min(len(b), len(preface)); string(b[:n]) != preface[:n] {
			return connError{codeProtocol, "no preface of HTTP/2"}
		}
		if len(b) >= len(preface) {
			r.in.pos += len(preface)
			return nil
		}
		if err := r.in.fill(); err != nil {
			return err
		}
	}
}

// flush sends what was collected. The answers of a client come last: they may say that a call has ended.
func (r *requests) flush() error {
	if len(r.out) > 0 {
		if r.runtime != nil {
			if err := r.toRuntime(r.out); err != nil {
				r.closeRuntime() // the responses see that it is lost, and answer what was forwarded
			}
		}
		r.out = emptied(r.out)
	}
	if len(r.back) > 0 {
		if err := r.writer.control(r.back); err != nil {
			return err
		}
		r.back = emptied(r.back)
	}
	r.settle(&r.done)
	return nil
}

// emptied returns an empty buffer, without the memory that one large request has taken.
func emptied(b []byte) []byte {
	if cap(b) > 2*flushSize {
		return nil
	}
	return b[:0]
}

// frame handles a frame. A stream error resets the stream and is not returned.
func (r *requests) frame(ctx context.Context, f *frame) error {
	if r.block != nil && (f.typ != typeContinuation || f.stream != r.opened) {
		return connError{codeProtocol, "header block interrupted"}
	}
	if !r.ready && (f.typ != typeSettings || f.has(flagAck)) {
		return connError{codeProtocol, "first frame is not SETTINGS"}
	}
	err := r.handle(ctx, f)
	if reset, ok := errors.AsType[streamError](err); ok {
		r.resetStream(f.stream, reset.code)
		return nil
	}
	return err
}

func (r *requests) handle(ctx context.Context, f *frame) error {
	switch {
	case f.stream == 0:
	case f.typ == typeSettings:
		return connError{codeProtocol, "SETTINGS on a stream"}
	case f.typ == typePing:
		return connError{codeProtocol, "PING on a stream"}
	case f.typ == typeGoAway:
		return connError{codeProtocol, "GOAWAY on a stream"}
	}
	if err := f.checkSize(); err != nil {
		return err
	}
	switch f.typ {
	case typeData:
		return r.data(ctx, f)
	case typeHeaders:
		return r.headers(ctx, f)
	case typeContinuation:
		return r.continuation(ctx, f)
	case typePriority:
		return checkPriority(f)
	case typeReset:
		return r.reset(f)
	case typeSettings:
		return r.settings(f)
	case typePing:
		return r.pinged(f)
	case typeGoAway:
		err := r.releaseHeld(ctx, len(r.held))
		r.out = append(r.out, f.raw...)
		return err
	case typeWindowUpdate:
		return r.windowUpdate(f)
	case typePushPromise:
		return connError{codeProtocol, "PUSH_PROMISE of a client"}
	}
	return nil // extensions are not forwarded
}

// checkPriority checks PRIORITY, which has no effect.
func checkPriority(f *frame) error {
	switch {
	case f.stream == 0:
		return connError{codeProtocol, "PRIORITY on stream 0"}
	case len(f.payload) != 5:
		return streamError{codeFrameSize}
	case binary.BigEndian.Uint32(f.payload)&maxWindow == f.stream:
		return streamError{codeProtocol}
	}
	return nil
}

// resetStream resets a stream, on both sides if it is forwarded.
func (r *requests) resetStream(id uint32, code errorCode) {
	r.back = appendReset(r.back, id, code)
	r.endStream(id, code, codes.Internal)
}

// endStream ends a call under way, if there is one, and resets it at the runtime if it is forwarded.
func (r *requests) endStream(id uint32, code errorCode, counted codes.Code) {
	if i := r.heldAt(id); i >= 0 {
		if f := r.held[i].request; f != nil { // neither the runtime nor a handler gets it
			r.back = appendWindowUpdate(r.back, 0, int64(len(f.payload)))
		}
		r.held = slices.Delete(r.held, i, i+1)
	}
	r.mu.Lock()
	st := r.streams[id]
	started, recalled := false, false
	if st != nil {
		started = st.local != nil && st.local.started()
		recalled = st.isAhead()
		r.removeLocked(id, st, &r.done)
	}
	r.mu.Unlock()
	switch {
	case st == nil:
	case st.local == nil:
		r.out = appendReset(r.out, id, code)
		r.count(st, counted)
	default:
		if recalled {
			r.out = appendReset(r.out, id, code)
		}
		r.back = appendWindowUpdate(r.back, 0, st.local.owed.Swap(0))
		if started {
			st.local.cancel() // it counts itself when it returns
		} else {
			r.count(st, counted)
		}
	}
}

func (r *requests) reset(f *frame) error {
	if r.idle(f.stream) {
		return connError{codeProtocol, "RST_STREAM of an idle stream"}
	}
	r.endStream(f.stream, errorCode(binary.BigEndian.Uint32(f.payload)), codes.Canceled)
	return nil
}

// idle reports whether the client has not opened a stream yet. Streams that were not taken after GOAWAY count as opened.
func (r *requests) idle(id uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return id == 0 || id&1 == 0 || id > r.last && !r.leaving.final
}

func (r *requests) pinged(f *frame) error {
	switch {
	case f.has(flagAck) && string(f.payload) == leavePing:
		r.back = r.hasLeft(r.back)
		r.done.check = true
	case f.has(flagAck):
		r.out = append(r.out, f.raw...)
	case !r.isLost() && r.ping.CompareAndSwap(pingAccepted, pingSent):
		r.out = append(r.out, f.raw...)
	default:
		r.back = appendFrame(r.back, typePing, flagAck, 0, f.payload)
	}
	return nil
}

func (r *requests) isLost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

func (r *requests) settings(f *frame) error {
	if f.has(flagAck) {
		r.out = append(r.out, f.raw...) // one for one with those of the runtime
		return nil
	}
	window := int64(-1) // none
	var passed []byte
	err := eachSetting(f.payload, func(id uint16, value uint32) error {
		switch id {
		case settingInitialWindow:
			if value > maxWindow {
				return connError{codeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE too large"}
			}
			window = int64(value) // the last one counts, and costs a look at each stream
		case settingHeaderList:
		case settingPush:
			if value > 1 {
				return connError{codeProtocol, "SETTINGS_ENABLE_PUSH is neither 0 nor 1"}
			}
			return nil
		case settingFrameSize:
			if value < maxFrame || value > 1<<24-1 {
				return connError{codeProtocol, "SETTINGS_MAX_FRAME_SIZE out of range"}
			}
			return nil
		default:
			return nil
		}
		passed = appendSetting(passed, id, value)
		return nil
	})
	if err == nil && window >= 0 {
		err = r.setInitial(window)
		r.recall(window)
	}
	if err != nil {
		return err
	}
	if !r.ready {
		r.ready = true
		if err := r.client.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
	return r.passSettings(passed)
}

// passSettings passes SETTINGS to the runtime, whose ACK the client gets, or acknowledges them if it is lost.
func (r *requests) passSettings(passed []byte) error {
	r.mu.Lock()
	lost := r.lost
	if !lost {
		r.unacknowledged++
	}
	n := r.unacknowledged
	r.mu.Unlock()
	switch {
	case n > maxUnacknowledged:
		return connError{codeCalm, "too many SETTINGS that the runtime has not acknowledged"}
	case !lost:
		r.out = appendFrame(r.out, typeSettings, 0, 0, passed)
	default:
		r.back = appendFrame(r.back, typeSettings, flagAck, 0, nil)
	}
	return nil
}

func (r *requests) windowUpdate(f *frame) error {
	increment := int64(binary.BigEndian.Uint32(f.payload) & maxWindow)
	if f.stream != 0 && r.idle(f.stream) {
		return connError{codeProtocol, "WINDOW_UPDATE of an idle stream"}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.stream == 0 {
		pass, err := r.window.grow(increment)
		r.room.Broadcast()
		r.out = appendWindowUpdate(r.out, 0, pass)
		return err
	}
	st := r.streams[f.stream]
	switch {
	case st == nil:
	case st.local != nil:
		return r.growLocalLocked(st.local, increment)
	case increment == 0:
		return streamError{codeProtocol}
	default:
		r.out = append(r.out, f.raw...)
	}
	return nil
}

// data passes DATA of a forwarded call, and collects that of a local one.
func (r *requests) data(ctx context.Context, f *frame) error {
	content, err := f.content()
	if err != nil {
		return err
	}
	if r.idle(f.stream) {
		return connError{codeProtocol, "DATA on an idle stream"}
	}
	if i := r.heldAt(f.stream); i >= 0 {
		if h := &r.held[i]; h.request == nil && f.has(flagEndStream) {
			whole := *f
			h.request, h.content = &whole, content
			return nil
		}
		if err := r.releaseHeld(ctx, i+1); err != nil {
			return err
		}
	}
	return r.take(ctx, f, content)
}

// take passes or collects DATA of a call that is not held.
func (r *requests) take(ctx context.Context, f *frame, content []byte) error {
	end := f.has(flagEndStream)
	r.mu.Lock()
	st := r.streams[f.stream]
	ended := st != nil && st.clientEnded
	if st != nil && !ended {
		if st.local == nil {
			r.window.runtime -= int64(len(f.payload))
		}
		if end {
			r.endSideLocked(f.stream, st, &st.clientEnded, &r.done)
		}
	}
	r.mu.Unlock()
	if st == nil || ended { // the runtime does not get it, so its window has to be given back
		r.back = appendWindowUpdate(r.back, 0, int64(len(f.payload)))
	}
	switch {
	case st == nil:
		return nil
	case ended:
		return streamError{codeClosed}
	}
	if err := st.checkLength(len(content), end); err != nil {
		if st.local == nil { // the runtime will not give it back
			r.mu.Lock()
			r.window.runtime += int64(len(f.payload))
			r.mu.Unlock()
		}
		r.back = appendWindowUpdate(r.back, 0, int64(len(f.payload)))
		return err
	}
	if st.local == nil {
		r.out = append(r.out, f.raw...)
		return nil
	}
	return r.collect(ctx, f, st, content)
}

// checkLength checks the length that content-length has declared.
func (st *stream) checkLength(size int, end bool) error {
	if st.declared == noLength {
		return nil
	}
	if st.declared -= int64(size); st.declared < 0 || end && st.declared != 0 {
		st.declared = 0
		return streamError{codeProtocol}
	}
	return nil
}

func (r *requests) headers(ctx context.Context, f *frame) error {
	if f.stream == 0 || f.stream&1 == 0 {
		return connError{codeProtocol, "HEADERS on a stream that is not the client's"}
	}
	fragment, err := f.content()
	if err != nil {
		return err
	}
	if f.has(flagEndHeaders) {
		return r.blockEnded(ctx, f.stream, f.flags, fragment)
	}
	r.block = append(make([]byte, 0, 2*len(fragment)+1), fragment...) // not nil
	r.opened, r.flags, r.fragments = f.stream, f.flags, 1
	return nil
}

func (r *requests) continuation(ctx context.Context, f *frame) error {
	if r.block == nil {
		return connError{codeProtocol, "CONTINUATION without HEADERS"}
	}
	r.fragments++
	if len(r.block)+len(f.payload) > maxBlock || r.fragments > maxFragments {
		return connError{codeCalm, "header block too large"}
	}
	r.block = append(r.block, f.payload...)
	if !f.has(flagEndHeaders) {
		return nil
	}
	block := r.block
	r.block = nil
	return r.blockEnded(ctx, f.stream, r.flags, block)
}

// blockEnded handles a complete header block: that of a new call, or trailers.
func (r *requests) blockEnded(ctx context.Context, id uint32, flags byte, block []byte) error {
	if err := r.releaseHeld(ctx, r.heldAt(id)+1); err != nil {
		return err
	}
	r.fields, r.size = r.fields[:0], 0
	if _, err := r.decoder.Write(block); err != nil {
		return connError{codeCompression, err.Error()}
	}
	if err := r.decoder.Close(); err != nil {
		return connError{codeCompression, err.Error()}
	}
	end := flags&flagEndStream != 0
	r.mu.Lock()
	st, known := r.streams[id], id <= r.last
	ignored := !known && r.leaving.final
	if !known && !ignored {
		r.last = id
	}
	full := len(r.streams) >= maxStreams
	r.mu.Unlock()
	switch {
	case ignored: // as GOAWAY has said
		return nil
	case known:
		return r.trailers(ctx, id, st, end)
	case r.size > maxHeaderList:
		return streamError{codeCalm}
	case full:
		return streamError{codeRefused}
	}
	return r.newCall(ctx, id, end)
}

// trailers ends the request of a call.
func (r *requests) trailers(ctx context.Context, id uint32, st *stream, end bool) error {
	switch {
	case !end:
		return connError{codeProtocol, "HEADERS on a stream that was opened before"}
	case st == nil:
		return nil
	case st.clientEnded:
		return streamError{codeClosed}
	case r.size > maxHeaderList:
		return streamError{codeCalm}
	}
	if err := errors.Join(checkTrailers(r.fields), st.checkLength(0, true)); err != nil {
		return streamError{codeProtocol}
	}
	r.mu.Lock()
	open := r.streams[id] == st
	if open {
		r.endSideLocked(id, st, &st.clientEnded, &r.done)
	}
	r.mu.Unlock()
	switch {
	case !open:
		return nil
	case st.local == nil:
		r.encode(id, flagEndStream, r.fields)
	default:
		r.requestEnded(ctx, id, st)
	}
	return nil
}

// newCall routes a call.
func (r *requests) newCall(ctx context.Context, id uint32, end bool) error {
	head, err := checkRequest(r.fields)
	if err != nil {
		return err
	}
	if end && head.length > 0 {
		return streamError{codeProtocol}
	}
	st := &stream{method: head.path, route: r.server.config.Route(head.path), began: time.Now(), declared: head.length, clientEnded: end}
	forwarded := st.route.Handle == nil && st.route.Refuse == nil
	hold := st.route.Bypass != nil && !end
	if !forwarded {
		if st.local, err = newLocal(head); err != nil {
			return err
		}
	}
	r.mu.Lock()
	var refused error
	switch absent := r.lost || r.leaving.refusing; {
	case forwarded && absent && (r.leaving.announced || !r.lost):
		refused = streamError{codeRefused}
	case (!forwarded || absent) && (r.running >= maxStreams || r.pair.held+r.size > maxHeld):
		refused = streamError{codeRefused}
	case forwarded && absent:
		if st.local, err = newLocal(head); err == nil {
			st.route = &Route{Refuse: r.server.config.Away(r.server.endpoint.absence()), Unary: true}
		}
		refused = err
	}
	if refused == nil {
		if st.local != nil {
			st.local.window = r.window.initial
			r.holdLocked(st.local, r.size)
		}
		r.openLocked(id, st)
	}
	hold = hold && !r.lost && !r.leaving.refusing
	r.mu.Unlock()
	switch {
	case refused != nil:
		return refused
	case st.local == nil:
		if err := r.releaseHeld(ctx, len(r.held)); err != nil {
			return err
		}
		r.encode(id, flagsOf(end), r.fields)
	case hold:
		r.held = append(r.held, heldCall{stream: id, call: st, fields: slices.Clone(r.fields)})
	case st.route.Refuse != nil:
		r.start(ctx, id, st, st.route.Refuse)
	default:
		st.local.read(r.fields, st.began)
		if end {
			r.requestEnded(ctx, id, st)
		}
	}
	return nil
}

func flagsOf(end bool) byte {
	if end {
		return flagEndStream
	}
	return 0
}

// heldAt returns the index of a call that is held, -1 if it is not.
func (r *requests) heldAt(id uint32) int {
	return slices.IndexFunc(r.held, func(h heldCall) bool { return h.stream == id })
}

// requested returns how many calls are held up to the last one whose request has come.
func (r *requests) requested() int {
	for n := len(r.held); n > 0; n-- {
		if r.held[n-1].request != nil {
			return n
		}
	}
	return 0
}

// releaseHeld decides who answers the first n calls that are held.
func (r *requests) releaseHeld(ctx context.Context, n int) error {
	for i := range n {
		h := r.held[i]
		if h.request != nil && r.forwardHeld(ctx, &h) {
			continue
		}
		h.call.local.read(h.fields, h.call.began)
		if h.request == nil {
			continue
		}
		err := r.take(ctx, h.request, h.content)
		if reset, ok := errors.AsType[streamError](err); ok {
			defer r.resetStream(h.stream, reset.code) // it changes held
		} else if err != nil {
			return err
		}
	}
	r.held = slices.Delete(r.held, 0, n)
	return nil
}

// forwardHeld forwards a call that was held, if Bypass says so, and reports whether it has.
func (r *requests) forwardHeld(ctx context.Context, h *heldCall) bool {
	st := h.call
	message, ok := wholeMessage(h.content)
	if !ok || st.declared != noLength && st.declared != int64(len(h.content)) {
		return false
	}
	way, observe := Handled, (func([]byte))(nil)
	if r.server.guard(st.method, func() error { way, observe = st.route.Bypass(message); return nil }) != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fields := h.fields
	switch {
	case r.lost, r.leaving.refusing:
		return false
	case way == Forwarded:
		granted := st.local.window - r.window.initial // WINDOW_UPDATEs that came meanwhile
		r.pair.held -= st.local.held
		st.local = nil
		if observe != nil {
			st.tap = &tap{observe: observe}
			fields = withoutCompression(fields)
		}
		defer func() { r.out = appendWindowUpdate(r.out, h.stream, granted) }()
	case way == HandledAhead && r.goAheadLocked(ctx, h, h.content):
		fields = withoutCompression(fields)
	default:
		return false
	}
	st.clientEnded = true
	r.window.runtime -= int64(len(h.request.payload))
	r.encode(h.stream, 0, fields)
	r.out = append(r.out, h.request.raw...)
	return true
}

// withoutCompression keeps the runtime from compressing an answer that is observed.
func withoutCompression(fields []hpack.HeaderField) []hpack.HeaderField {
	kept := fields[:0]
	for _, f := range fields {
		if f.Name != "grpc-accept-encoding" {
			kept = append(kept, f)
		}
	}
	return kept
}

// encode encodes a header block for the runtime.
func (r *requests) encode(id uint32, flags byte, fields []hpack.HeaderField) {
	if size := r.requestTable.Swap(noUpdate); size != noUpdate {
		r.encoder.SetMaxDynamicTableSizeLimit(uint32(size)) //nolint:gosec // it was a uint32
	}
	r.encoded.Reset()
	for _, f := range fields {
		if f.Name == "grpc-timeout" {
			f.Sensitive = true // it differs in each call, and would push the others out of the table
		}
		_ = r.encoder.WriteField(f) // a buffer does not fail
	}
	r.out = appendBlock(r.out, flags, id, r.encoded.Bytes())
}
