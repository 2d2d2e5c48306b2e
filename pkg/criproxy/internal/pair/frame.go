package pair

import (
	"encoding/binary"
	"fmt"
	"io"
)

// A frame of HTTP/2 is a head of 9 bytes and a payload:
//
//	length (24) │ type (8) │ flags (8) │ reserved (1), stream (31) │ payload
//
// Frames are cut out of the buffer that they were read into. A frame is valid until the next read.

// Frame types.
const (
	typeData byte = iota
	typeHeaders
	typePriority
	typeReset
	typeSettings
	typePushPromise
	typePing
	typeGoAway
	typeWindowUpdate
	typeContinuation
)

// Flags. An ACK is of SETTINGS and PING, the others are of DATA and HEADERS.
const (
	flagEndStream  byte = 0x1
	flagAck        byte = 0x1
	flagEndHeaders byte = 0x4
	flagPadded     byte = 0x8
	flagPriority   byte = 0x20
)

// Settings.
const (
	settingTableSize     uint16 = 1
	settingPush          uint16 = 2
	settingStreams       uint16 = 3
	settingInitialWindow uint16 = 4
	settingFrameSize     uint16 = 5
	settingHeaderList    uint16 = 6
)

// An errorCode is one of RFC 9113 section 7.
type errorCode uint32

const (
	codeNone        errorCode = 0x0
	codeProtocol    errorCode = 0x1
	codeFlowControl errorCode = 0x3
	codeClosed      errorCode = 0x5
	codeFrameSize   errorCode = 0x6
	codeRefused     errorCode = 0x7
	codeCancel      errorCode = 0x8
	codeCompression errorCode = 0x9
	codeCalm        errorCode = 0xb
)

const (
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	headSize = 9
	// maxFrame is the largest payload that either side may send: the default, which pairs do not let the sides change.
	maxFrame = 16384

	defaultWindow    = 65535
	maxWindow        = 1<<31 - 1
	defaultTableSize = 4096
	settingSize      = 6
)

// A connError ends a connection, with GOAWAY if the other side can still read it.
type connError struct {
	code errorCode
	text string
}

func (e connError) Error() string { return fmt.Sprintf("HTTP/2 error %d: %s", e.code, e.text) }

// A streamError ends one stream with RST_STREAM.
type streamError struct{ code errorCode }

func (e streamError) Error() string { return fmt.Sprintf("HTTP/2 stream error %d", e.code) }

type frame struct {
	typ, flags byte
	stream     uint32
	payload    []byte
	raw        []byte // head and payload
}

func (f *frame) has(flag byte) bool { return f.flags&flag != 0 }

// checkSize checks the length of a frame whose type prescribes one (RFC 9113 6).
func (f *frame) checkSize() error {
	n := len(f.payload)
	switch {
	case f.typ == typeReset && n != 4:
		return connError{codeFrameSize, "RST_STREAM"}
	case f.typ == typeSettings && (n%settingSize != 0 || f.has(flagAck) && n > 0):
		return connError{codeFrameSize, "SETTINGS"}
	case f.typ == typePing && n != 8:
		return connError{codeFrameSize, "PING"}
	case f.typ == typeGoAway && n < 8:
		return connError{codeFrameSize, "GOAWAY"}
	case f.typ == typeWindowUpdate && n != 4:
		return connError{codeFrameSize, "WINDOW_UPDATE"}
	}
	return nil
}

// content returns the payload of DATA or HEADERS without padding and priority.
func (f *frame) content() ([]byte, error) {
	b, pad := f.payload, 0
	if f.has(flagPadded) {
		if len(b) == 0 {
			return nil, connError{codeFrameSize, "padded frame without a length of padding"}
		}
		pad, b = int(b[0]), b[1:]
	}
	if f.typ == typeHeaders && f.has(flagPriority) {
		if len(b) < 5 {
			return nil, connError{codeFrameSize, "HEADERS too short for its priority"}
		}
		b = b[5:]
	}
	if pad > len(b) {
		return nil, connError{codeProtocol, "more padding than payload"}
	}
	return b[:len(b)-pad], nil
}

// A reader cuts what it reads into frames.
type reader struct {
	from     io.Reader
	buf      []byte
	pos, end int // buf[pos:end] is read and not yet cut
}

func newReader(from io.Reader, size int) *reader {
	return &reader{from: from, buf: make([]byte, max(size, 2*(headSize+maxFrame)))}
}

// next cuts the next frame. ok is false if it is not complete yet.
func (r *reader) next() (f frame, ok bool, err error) {
	b := r.buf[r.pos:r.end]
	if len(b) < headSize {
		return f, false, nil
	}
	size := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	if size > maxFrame {
		return f, false, connError{codeFrameSize, "frame larger than 16384 bytes"}
	}
	whole := headSize + size
	if len(b) < whole {
		return f, false, nil
	}
	r.pos += whole
	return frame{
		typ: b[3], flags: b[4], stream: binary.BigEndian.Uint32(b[5:]) & maxWindow,
		payload: b[headSize:whole:whole], raw: b[:whole:whole],
	}, true, nil
}

// fill reads once. Frames that were cut before are not valid afterwards.
func (r *reader) fill() error {
	switch {
	case r.pos == r.end:
		r.pos, r.end = 0, 0
	case len(r.buf)-r.end < headSize+maxFrame:
		r.end = copy(r.buf, r.buf[r.pos:r.end])
		r.pos = 0
	}
	n, err := r.from.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

func appendHead(b []byte, size int, typ, flags byte, stream uint32) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(size)<<8|uint32(typ)) //nolint:gosec // a payload has at most maxFrame bytes
	return binary.BigEndian.AppendUint32(append(b, flags), stream)
}

func appendFrame(b []byte, typ, flags byte, stream uint32, payload []byte) []byte {
	return append(appendHead(b, len(payload), typ, flags, stream), payload...)
}

func appendReset(b []byte, stream uint32, code errorCode) []byte {
	return binary.BigEndian.AppendUint32(appendHead(b, 4, typeReset, 0, stream), uint32(code))
}

// appendWindowUpdate appends nothing for an increment of 0.
func appendWindowUpdate(b []byte, stream uint32, increment int64) []byte {
	if increment <= 0 {
		return b
	}
	return binary.BigEndian.AppendUint32(appendHead(b, 4, typeWindowUpdate, 0, stream), uint32(min(increment, maxWindow)))
}

func appendGoAway(b []byte, last uint32, code errorCode, text string) []byte {
	b = appendHead(b, 8+len(text), typeGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, text...)
}

func appendSetting(b []byte, id uint16, value uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, id), value)
}

// eachSetting calls f with each setting of a SETTINGS frame.
func eachSetting(payload []byte, f func(id uint16, value uint32) error) error {
	for ; len(payload) >= settingSize; payload = payload[settingSize:] {
		if err := f(binary.BigEndian.Uint16(payload), binary.BigEndian.Uint32(payload[2:])); err != nil {
			return err
		}
	}
	return nil
}

// appendBlock appends a header block as HEADERS and as many CONTINUATION as it takes.
func appendBlock(b []byte, flags byte, stream uint32, block []byte) []byte {
	typ := typeHeaders
	for {
		n := min(len(block), maxFrame)
		if n == len(block) {
			return appendFrame(b, typ, flags|flagEndHeaders, stream, block)
		}
		b = appendFrame(b, typ, flags, stream, block[:n])
		block, typ, flags = block[n:], typeContinuation, 0
	}
}
