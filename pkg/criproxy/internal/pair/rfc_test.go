package pair_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Frame types and flags, as they are written raw.
const (
	data, headers, priority, reset, settings, push, ping, goAway, windowUpdate, continuation, extension = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x16

	endStream, ack, endHeaders, padded, prioritized = 1, 1, 4, 8, 0x20
)

// What may come of a case.
const (
	protocol    = "PROTOCOL_ERROR"
	frameSize   = "FRAME_SIZE_ERROR"
	flowControl = "FLOW_CONTROL_ERROR"
	compression = "COMPRESSION_ERROR"
	closed      = "STREAM_CLOSED"
	goingAway   = "GOAWAY "
	resetting   = "RST_STREAM "
	answered    = "grpc-status 0"
	ignored     = ""
)

func (c *strictClient) raw(typ, flags byte, stream uint32, payload ...byte) {
	_ = c.fr.WriteRawFrame(http2.FrameType(typ), http2.Flags(flags), stream, payload)
}

// head sends a header block in one frame.
func (c *strictClient) head(stream uint32, flags byte, fields ...string) {
	c.raw(headers, flags|endHeaders, stream, c.block(fields...)...)
}

// A conformance is a rule of RFC 9113 or RFC 7541 that binds a server, with a client that breaks or uses it on stream 1.
type conformance struct {
	section, name, want string
	do                  func(c *strictClient)
}

// replaced returns the fields of a request with another value of one field, or without it if the value is "-".
func replaced(name, value string) []string {
	var fields []string
	all := request(forwarded)
	for i := 0; i < len(all); i += 2 {
		switch {
		case all[i] != name:
			fields = append(fields, all[i], all[i+1])
		case value != "-":
			fields = append(fields, name, value)
		}
	}
	return fields
}

func whole(c *strictClient, method string, fields ...string) {
	c.head(1, 0, request(method, fields...)...)
	c.raw(data, endStream, 1, framed([]byte("x"))...)
}

// conformances is the table; the cases of h2spec that concern a server that does not push, and some that it lacks.
func conformances() []conformance {
	all := []conformance{
		{"9113 4.1", "extension frame is ignored", answered, func(c *strictClient) { c.raw(extension, 0xff, 0, 1, 2, 3); whole(c, forwarded) }},
		{"9218 7.1", "PRIORITY_UPDATE is ignored", answered, func(c *strictClient) { c.raw(priorityUpdate, 0, 0, 0, 0, 0, 1, 'u'); whole(c, forwarded) }},
		{"9113 4.1", "undefined flags are ignored", answered, func(c *strictClient) { c.raw(ping, 0x16, 0, make([]byte, 8)...); whole(c, forwarded) }},
		{"9113 4.1", "reserved bit of the stream is ignored", answered, func(c *strictClient) {
			_, _ = c.conn.Write(append([]byte{0, 0, 8, ping, 0, 0x80, 0, 0, 0}, make([]byte, 8)...))
			whole(c, forwarded)
		}},
		{"9113 4.2", "DATA of 16384 bytes", answered, func(c *strictClient) {
			c.open(forwarded)
			c.raw(data, endStream, 1, framed(make([]byte, 16384-5))...)
		}},
		{"9113 4.2", "frame larger than SETTINGS_MAX_FRAME_SIZE", goingAway + frameSize, func(c *strictClient) {
			c.open(forwarded)
			c.raw(data, 0, 1, make([]byte, 16385)...)
		}},
		{"9113 4.2", "large HEADERS", goingAway + frameSize, func(c *strictClient) { c.raw(headers, endHeaders, 1, make([]byte, 16385)...) }},
		{"9113 4.3", "invalid header block", goingAway + compression, func(c *strictClient) { c.raw(headers, endHeaders|endStream, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f) }},
		{"9113 4.3", "PRIORITY within a header block", goingAway + protocol, func(c *strictClient) {
			c.raw(headers, 0, 1, c.block(request(forwarded)...)...)
			c.raw(priority, 0, 1, 0, 0, 0, 0, 1)
		}},
		{"9113 4.3", "HEADERS of another stream within a header block", goingAway + protocol, func(c *strictClient) {
			c.raw(headers, 0, 1, c.block(request(forwarded)...)...)
			c.head(3, 0, request(forwarded)...)
		}},
		{"9113 5.1", "idle: DATA", goingAway + protocol, func(c *strictClient) { c.raw(data, endStream, 1, 'x') }},
		{"9113 5.1", "idle: RST_STREAM", goingAway + protocol, func(c *strictClient) { c.raw(reset, 0, 1, 0, 0, 0, 8) }},
		{"9113 5.1", "idle: WINDOW_UPDATE", goingAway + protocol, func(c *strictClient) { c.raw(windowUpdate, 0, 1, 0, 0, 0, 8) }},
		{"9113 5.1", "idle: CONTINUATION", goingAway + protocol, func(c *strictClient) { c.raw(continuation, endHeaders, 1, c.block(request(forwarded)...)...) }},
		{"9113 5.1", "idle: PRIORITY is allowed", answered, func(c *strictClient) { c.raw(priority, 0, 7, 0, 0, 0, 0, 1); whole(c, forwarded) }},
		{"9113 5.1", "half-closed: DATA to the runtime", resetting + closed, func(c *strictClient) {
			c.call(forwarded, nil, "do-hang", "1")
			c.raw(data, 0, 1, 'x')
		}},
		{"9113 5.1", "half-closed: DATA to a handler", resetting + closed, func(c *strictClient) {
			c.call(local, nil, "do-hang", "1")
			c.raw(data, 0, 1, 'x')
		}},
		{"9113 5.1", "half-closed: HEADERS", resetting + closed, func(c *strictClient) {
			c.call(forwarded, nil, "do-hang", "1")
			c.head(1, endStream, "x-trailer", "t")
		}},
		{"9113 5.1", "half-closed: CONTINUATION", goingAway + protocol, func(c *strictClient) {
			c.call(forwarded, nil, "do-hang", "1")
			c.raw(continuation, endHeaders, 1, 0x82)
		}},
		{"9113 5.1", "half-closed: WINDOW_UPDATE and PRIORITY are allowed", answered, func(c *strictClient) {
			c.call(forwarded, nil, "do-sleep", "50")
			c.raw(windowUpdate, 0, 1, 0, 0, 0, 1)
			c.raw(priority, 0, 1, 0, 0, 0, 0, 1)
		}},
		{"9113 5.1", "closed by RST_STREAM: DATA and trailers are ignored", ignored, func(c *strictClient) {
			c.open(forwarded)
			c.raw(reset, 0, 1, 0, 0, 0, 8)
			c.raw(data, 0, 1, 'x')
			c.head(1, endStream, "x-trailer", "t")
		}},
		{"9113 5.1", "closed by RST_STREAM: HEADERS", goingAway + protocol, func(c *strictClient) {
			c.open(forwarded)
			c.raw(reset, 0, 1, 0, 0, 0, 8)
			c.head(1, 0, request(forwarded)...)
		}},
		{"9113 5.1", "closed by END_STREAM: DATA and trailers are ignored", ignored, func(c *strictClient) {
			if got := c.outcome(c.call(forwarded, nil)); got != answered {
				c.t.Error(got)
			}
			c.raw(data, 0, 1, 'x')
			c.head(1, endStream, "x-trailer", "t")
		}},
		{"9113 5.1", "closed: WINDOW_UPDATE, PRIORITY and RST_STREAM are allowed", answered, func(c *strictClient) {
			if got := c.outcome(c.call(local, nil)); got != answered {
				c.t.Error(got)
			}
			c.raw(windowUpdate, 0, 1, 0, 0, 0, 1)
			c.raw(priority, 0, 1, 0, 0, 0, 0, 3)
			c.raw(reset, 0, 1, 0, 0, 0, 8)
			c.next = 1
			c.head(3, 0, request(local)...)
			c.raw(data, endStream, 3, framed(nil)...)
			if got := c.outcome(3); got != answered {
				c.t.Error(got)
			}
			c.raw(priority, 0, 1, 0, 0, 0, 0, 3)
			c.head(5, endStream, request("/other.Service/Method")...)
			c.head(7, endStream, request("/other.Service/Method")...)
		}},
		{"9113 5.1.1", "even stream", goingAway + protocol, func(c *strictClient) { c.head(2, endStream, request(forwarded)...) }},
		{"9113 5.1.1", "stream lower than the last one", goingAway + protocol, func(c *strictClient) {
			c.head(5, 0, request(forwarded)...)
			c.head(3, 0, request(forwarded)...)
		}},
		{"9113 5.4.1", "GOAWAY has a reason and the connection is closed", goingAway + protocol, func(c *strictClient) { c.raw(ping, 0, 1, make([]byte, 8)...) }},
		{"9113 5.5", "unknown frame within a header block", goingAway + protocol, func(c *strictClient) {
			c.raw(headers, 0, 1, c.block(request(forwarded)...)...)
			c.raw(extension, 0, 0)
		}},
		{"9113 6.1", "DATA on stream 0", goingAway + protocol, func(c *strictClient) { c.raw(data, endStream, 0, 'x') }},
		{"9113 6.1", "padded DATA to the runtime", answered, func(c *strictClient) { c.open(forwarded); c.raw(data, padded|endStream, 1, 2, 0, 0, 0, 0, 0, 9, 9) }},
		{"9113 6.1", "padded DATA to a handler", answered, func(c *strictClient) { c.open(local); c.raw(data, padded|endStream, 1, 2, 0, 0, 0, 0, 0, 9, 9) }},
		{"9113 6.1", "too much padding to the runtime", goingAway + protocol, func(c *strictClient) { c.open(forwarded); c.raw(data, padded|endStream, 1, 6, 1, 2, 3) }},
		{"9113 6.1", "too much padding to a handler", goingAway + protocol, func(c *strictClient) { c.open(local); c.raw(data, padded|endStream, 1, 6, 1, 2, 3) }},
		{"9113 6.1", "padding without its length", goingAway + frameSize, func(c *strictClient) { c.open(local); c.raw(data, padded|endStream, 1) }},
		{"9113 6.2", "HEADERS on stream 0", goingAway + protocol, func(c *strictClient) { c.head(0, endStream, request(forwarded)...) }},
		{"9113 6.2", "HEADERS with padding and priority", answered, func(c *strictClient) {
			b := append([]byte{2, 0, 0, 0, 0, 16}, c.block(request(forwarded)...)...)
			c.raw(headers, endHeaders|padded|prioritized, 1, append(b, 0, 0)...)
			c.raw(data, endStream, 1, framed(nil)...)
		}},
		{"9113 6.2", "too much padding", goingAway + protocol, func(c *strictClient) { c.raw(headers, endHeaders|padded, 1, 0xff, 1, 2) }},
		{"9113 6.2", "priority cut off", goingAway + frameSize, func(c *strictClient) { c.raw(headers, endHeaders|prioritized, 1, 0, 0) }},
		{"9113 6.3", "PRIORITY on stream 0", goingAway + protocol, func(c *strictClient) { c.raw(priority, 0, 0, 0, 0, 0, 0, 1) }},
		{"9113 6.3", "PRIORITY of another length than 5", resetting + frameSize, func(c *strictClient) { c.open(forwarded, "do-hang", "1"); c.raw(priority, 0, 1, 0, 0, 0, 0) }},
		{"7540 5.3.1", "stream that depends on itself", resetting + protocol, func(c *strictClient) { c.open(forwarded, "do-hang", "1"); c.raw(priority, 0, 1, 0, 0, 0, 1, 1) }},
		{"9113 6.4", "RST_STREAM on stream 0", goingAway + protocol, func(c *strictClient) { c.raw(reset, 0, 0, 0, 0, 0, 8) }},
		{"9113 6.4", "RST_STREAM of another length than 4", goingAway + frameSize, func(c *strictClient) { c.open(forwarded); c.raw(reset, 0, 1, 0, 0, 8) }},
		{"9113 6.5", "ACK with a payload", goingAway + frameSize, func(c *strictClient) { c.raw(settings, ack, 0, make([]byte, 6)...) }},
		{"9113 6.5", "SETTINGS on a stream", goingAway + protocol, func(c *strictClient) { c.raw(settings, 0, 1, make([]byte, 6)...) }},
		{"9113 6.5", "SETTINGS of a length that is not a multiple of 6", goingAway + frameSize, func(c *strictClient) { c.raw(settings, 0, 0, 0, 3, 0) }},
		{"9113 6.5.2", "ENABLE_PUSH neither 0 nor 1", goingAway + protocol, func(c *strictClient) { c.raw(settings, 0, 0, 0, 2, 0, 0, 0, 2) }},
		{"9113 6.5.2", "INITIAL_WINDOW_SIZE above the maximum", goingAway + flowControl, func(c *strictClient) { c.raw(settings, 0, 0, 0, 4, 0x80, 0, 0, 0) }},
		{"9113 6.5.2", "MAX_FRAME_SIZE below the minimum", goingAway + protocol, func(c *strictClient) { c.raw(settings, 0, 0, 0, 5, 0, 0, 0x3f, 0xff) }},
		{"9113 6.5.2", "MAX_FRAME_SIZE above the maximum", goingAway + protocol, func(c *strictClient) { c.raw(settings, 0, 0, 0, 5, 1, 0, 0, 0) }},
		{"9113 6.5.2", "unknown setting is ignored", answered, func(c *strictClient) { c.raw(settings, 0, 0, 0, 0xff, 0, 0, 0, 1); whole(c, forwarded) }},
		{"9113 6.6", "PUSH_PROMISE of a client", goingAway + protocol, func(c *strictClient) { c.raw(push, endHeaders, 1, 0, 0, 0, 2) }},
		{"9113 6.7", "PING on a stream", goingAway + protocol, func(c *strictClient) { c.raw(ping, 0, 1, make([]byte, 8)...) }},
		{"9113 6.7", "PING of another length than 8", goingAway + frameSize, func(c *strictClient) { c.raw(ping, 0, 0, 1, 2, 3) }},
		{"9113 6.7", "PING ACK that nothing has asked for is ignored", answered, func(c *strictClient) { c.raw(ping, ack, 0, []byte("pullgate")...); whole(c, forwarded) }},
		{"9113 6.8", "GOAWAY on a stream", goingAway + protocol, func(c *strictClient) { c.raw(goAway, 0, 1, make([]byte, 8)...) }},
		{"9113 6.8", "GOAWAY too short", goingAway + frameSize, func(c *strictClient) { c.raw(goAway, 0, 0, 0, 0) }},
		{"9113 6.9", "increment of 0 on the connection", goingAway + protocol, func(c *strictClient) { c.raw(windowUpdate, 0, 0, 0, 0, 0, 0) }},
		{"9113 6.9", "increment of 0 on a stream to the runtime", resetting + protocol, func(c *strictClient) { c.open(forwarded); c.raw(windowUpdate, 0, 1, 0, 0, 0, 0) }},
		{"9113 6.9", "increment of 0 on a stream to a handler", resetting + protocol, func(c *strictClient) { c.open(local); c.raw(windowUpdate, 0, 1, 0, 0, 0, 0) }},
		{"9113 6.9", "WINDOW_UPDATE of another length than 4", goingAway + frameSize, func(c *strictClient) { c.raw(windowUpdate, 0, 0, 0, 0, 1) }},
		{"9113 6.9.1", "window of the connection above the maximum", goingAway + flowControl, func(c *strictClient) {
			c.raw(windowUpdate, 0, 0, 0x7f, 0xff, 0xff, 0xff)
			c.raw(windowUpdate, 0, 0, 0x7f, 0xff, 0xff, 0xff)
		}},
		{"9113 6.9.1", "window of a stream above the maximum", resetting + flowControl, func(c *strictClient) {
			c.open(local)
			c.raw(windowUpdate, 0, 1, 0x7f, 0xff, 0xff, 0xff)
			c.raw(windowUpdate, 0, 1, 0x7f, 0xff, 0xff, 0xff)
		}},
		{"9113 6.9.2", "INITIAL_WINDOW_SIZE changes the window of open streams", answered, func(c *strictClient) {
			c.raw(settings, 0, 0, 0, 4, 0, 0, 0, 0)
			c.call(local, []byte("hello"))
			c.raw(settings, 0, 0, 0, 4, 0, 0, 0, 1)
			c.raw(settings, 0, 0, 0, 4, 0, 0, 0, 100)
		}},
		{"9113 6.9.2", "window that becomes negative", answered, func(c *strictClient) {
			c.raw(settings, 0, 0, 0, 4, 0, 0, 0, 3)
			c.call(local, []byte("hello"))
			c.raw(settings, 0, 0, 0, 4, 0, 0, 0, 2)
			c.raw(windowUpdate, 0, 1, 0, 0, 0, 100)
			c.raw(settings, 0, 0, 0, 4, 0, 0, 0, 100)
		}},
		{"9113 6.10", "several CONTINUATION", answered, func(c *strictClient) {
			b := c.block(request(forwarded)...)
			c.raw(headers, 0, 1, b[:3]...)
			c.raw(continuation, 0, 1, b[3:9]...)
			c.raw(continuation, 0, 1)
			c.raw(continuation, endHeaders, 1, b[9:]...)
			c.raw(data, endStream, 1, framed(nil)...)
		}},
		{"9113 6.10", "another frame before CONTINUATION", goingAway + protocol, func(c *strictClient) {
			c.raw(headers, 0, 1, c.block(request(forwarded)...)...)
			c.raw(data, endStream, 1, 'x')
		}},
		{"9113 6.10", "CONTINUATION on stream 0", goingAway + protocol, func(c *strictClient) {
			c.raw(headers, 0, 1, c.block(request(forwarded)...)...)
			c.raw(continuation, endHeaders, 0, 0x82)
		}},
		{"9113 6.10", "CONTINUATION after END_HEADERS", goingAway + protocol, func(c *strictClient) {
			c.head(1, 0, request(forwarded)...)
			c.raw(continuation, endHeaders, 1, 0x82)
		}},
		{"9113 8.1", "second HEADERS without END_STREAM", goingAway + protocol, func(c *strictClient) {
			c.open(forwarded, "do-hang", "1")
			c.head(1, 0, "x-trailer", "t")
		}},
		{"9113 8.1", "trailers to a handler", answered, func(c *strictClient) {
			c.open(local)
			c.raw(data, 0, 1, framed(nil)...)
			c.head(1, endStream, "x-trailer", "t")
		}},
		{"9113 8.1", "pseudo header in trailers", resetting + protocol, func(c *strictClient) {
			c.open(forwarded)
			c.head(1, endStream, ":method", "POST")
		}},
		{"9113 8.1.1", "content-length that DATA does not have", resetting + protocol, func(c *strictClient) { whole(c, forwarded, "content-length", "1") }},
		{"9113 8.1.1", "content-length that several DATA do not have", resetting + protocol, func(c *strictClient) {
			c.head(1, 0, request(local, "content-length", "7")...)
			c.raw(data, 0, 1, framed(nil)...)
			c.raw(data, endStream, 1, 'x')
		}},
		{"9113 8.1.1", "content-length without DATA", resetting + protocol, func(c *strictClient) { c.head(1, endStream, request(forwarded, "content-length", "1")...) }},
		{"9113 8.1.1", "content-length that is correct", answered, func(c *strictClient) { whole(c, forwarded, "content-length", "6") }},
		{"9113 8.2", "name in upper case", resetting + protocol, func(c *strictClient) { whole(c, forwarded, "X-Test", "x") }},
		{"9113 8.2.1", "name with a space", resetting + protocol, func(c *strictClient) { whole(c, forwarded, "x test", "x") }},
		{"9113 8.2.1", "name with a colon", resetting + protocol, func(c *strictClient) { whole(c, forwarded, "x:test", "x") }},
		{"9113 8.2.1", "name that is not a token", resetting + protocol, func(c *strictClient) { whole(c, forwarded, "x@test", "x") }},
		{"9113 8.2.1", "empty name", resetting + protocol, func(c *strictClient) { whole(c, forwarded, "", "x") }},
		{"9113 8.2.1", "value with a line feed", resetting + protocol, func(c *strictClient) { whole(c, forwarded, "x-test", "a\nb") }},
		{"9113 8.2.1", "value with NUL", resetting + protocol, func(c *strictClient) { whole(c, forwarded, "x-test", "a\x00b") }},
		{"9113 8.2.1", "value with a space around it", resetting + protocol, func(c *strictClient) { whole(c, forwarded, "x-test", " a") }},
		{"9113 8.2.2", "te other than trailers", resetting + protocol, func(c *strictClient) { c.head(1, endStream, replaced("te", "gzip")...) }},
		{"9113 8.3", "unknown pseudo header", resetting + protocol, func(c *strictClient) {
			c.head(1, endStream, append([]string{":test", "x"}, request(forwarded)...)...)
		}},
		{"9113 8.3", "pseudo header of a response", resetting + protocol, func(c *strictClient) {
			c.head(1, endStream, append([]string{":status", "200"}, request(forwarded)...)...)
		}},
		{"9113 8.3", "pseudo header after a field", resetting + protocol, func(c *strictClient) {
			c.head(1, endStream, append(replaced(":path", "-"), ":path", forwarded)...)
		}},
		{"9113 8.3.1", "empty :path", resetting + protocol, func(c *strictClient) { c.head(1, endStream, replaced(":path", "")...) }},
		{"9113 8.3.1", "request without :authority is allowed", answered, func(c *strictClient) {
			fields := replaced(":authority", "-")
			fields[5] = local
			c.head(1, 0, fields...)
			c.raw(data, endStream, 1, framed(nil)...)
		}},
		{"9113 8.5", "CONNECT", resetting + protocol, func(c *strictClient) { c.head(1, endStream, ":method", "CONNECT", ":authority", "localhost") }},
		{"7541 2.3.3", "index that no table has", goingAway + compression, func(c *strictClient) { c.raw(headers, endHeaders, 1, 0x80|70) }},
		{"7541 2.3.3", "name index that no table has", goingAway + compression, func(c *strictClient) { c.raw(headers, endHeaders, 1, 0x40|60, 1, 'x', 0x40|62, 0x7f) }},
		{"7541 4.2", "update of the table's size at the end of a block", goingAway + compression, func(c *strictClient) {
			c.raw(headers, endHeaders, 1, append(c.block(request(forwarded)...), 0x20)...)
		}},
		{"7541 4.2", "two updates at the beginning", answered, func(c *strictClient) {
			c.raw(headers, endHeaders, 1, append([]byte{0x20, 0x3f, 0xe1, 0x01}, c.block(request(forwarded)...)...)...)
			c.raw(data, endStream, 1, framed(nil)...)
		}},
		{"7541 5.2", "Huffman padding longer than 7 bits", goingAway + compression, func(c *strictClient) {
			c.raw(headers, endHeaders, 1, append(c.block(request(forwarded)...), 0x00, 0x85, 0xf2, 0xb2, 0x4a, 0x84, 0xff, 0x84, 0x49, 0x50, 0x9f, 0xff)...)
		}},
		{"7541 5.2", "Huffman padding that is not EOS", goingAway + compression, func(c *strictClient) {
			c.raw(headers, endHeaders, 1, append(c.block(request(forwarded)...), 0x00, 0x83, 0x49, 0x50, 0x90, 0x83, 0x49, 0x50, 0x90)...)
		}},
		{"7541 6.1", "index 0", goingAway + compression, func(c *strictClient) { c.raw(headers, endHeaders, 1, 0x80) }},
		{"7541 6.3", "update above SETTINGS_HEADER_TABLE_SIZE", goingAway + compression, func(c *strictClient) {
			c.raw(headers, endHeaders, 1, append([]byte{0x3f, 0xe2, 0x1f}, c.block(request(forwarded)...)...)...)
		}},
	}
	for _, name := range []string{":method", ":scheme", ":path"} {
		all = append(all, conformance{"9113 8.3.1", "request without " + name, resetting + protocol, func(c *strictClient) { c.head(1, endStream, replaced(name, "-")...) }})
	}
	for _, name := range []string{":method", ":scheme", ":path", ":authority"} {
		all = append(all, conformance{"9113 8.3.1", "two " + name, resetting + protocol, func(c *strictClient) {
			fields := request(forwarded)
			for i := 0; i < len(fields); i += 2 {
				if fields[i] == name {
					fields = append([]string{name, fields[i+1]}, fields...)
					break
				}
			}
			c.head(1, endStream, fields...)
		}})
	}
	for _, name := range []string{"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"} {
		all = append(all, conformance{"9113 8.2.2", "field of a connection: " + name, resetting + protocol, func(c *strictClient) { whole(c, forwarded, name, "x") }})
	}
	return all
}

// meanwhile makes calls until everything that was sent before is handled, and says how a stream has ended
// by then; ignored if it has not.
func (c *strictClient) meanwhile(stream uint32) string {
	got := make([]string, stream/2+1)
	for c.next = 51; c.next < 55; { // the second call is read after the answers to what came before the first are written
		id := c.call(local, nil)
		c.collect(got, func(f http2.Frame) bool {
			h, ok := f.(*http2.MetaHeadersFrame)
			return c.t.Failed() || ok && h.StreamID == id && h.StreamEnded()
		})
	}
	return got[stream/2]
}

func TestConformance(t *testing.T) {
	r := newRig(t, true)
	before := usage()
	for _, tc := range conformances() {
		t.Run(tc.section+": "+tc.name, func(t *testing.T) {
			c := newStrictClient(t, r.path)
			tc.do(c)
			stream := uint32(1)
			if strings.HasPrefix(tc.name, "closed: WINDOW_UPDATE") {
				stream = 7
				tc.want = "grpc-status 12"
			}
			outcome := c.outcome
			if tc.want == ignored {
				outcome = c.meanwhile
			}
			if got := outcome(stream); got != tc.want {
				t.Errorf("%q; want %q", got, tc.want)
			}
			if !strings.HasPrefix(tc.want, goingAway) { // the connection must still be usable
				c.next = 101
				if got := c.outcome(c.call(local, []byte("x"))); got != answered {
					t.Errorf("next call: %s; want its answer", got)
				}
			}
			_ = c.conn.Close()
		})
	}
	r.settled()
	before.returnsTo(t, "clients that break the rules")
}

func TestConnectionPreface(t *testing.T) {
	r := newRig(t, true)
	for _, tc := range []struct {
		section, name, want string
		bytes               []byte
	}{
		{"9113 3.4", "HTTP/1.1", goingAway + protocol, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		{"9113 3.4", "preface that is not complete", "closed", []byte(http2.ClientPreface[:10])},
		{"9113 3.4", "PING instead of SETTINGS", goingAway + protocol, append([]byte(http2.ClientPreface), 0, 0, 8, ping, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)},
		{"9113 3.4", "ACK instead of SETTINGS", goingAway + protocol, append([]byte(http2.ClientPreface), 0, 0, 0, settings, ack, 0, 0, 0, 0)},
	} {
		t.Run(tc.section+": "+tc.name, func(t *testing.T) {
			if tc.want == "closed" && testing.Short() {
				t.Skip("waits for the limit of a handshake")
			}
			c := connect(t, r.path)
			_, _ = c.conn.Write(tc.bytes)
			if tc.want == "closed" {
				_ = c.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.Copy(io.Discard, c.conn); err != nil {
					t.Errorf("client that sends nothing: %v; want its connection closed", err)
				}
				return
			}
			if got := c.outcome(1); got != tc.want {
				t.Errorf("%s; want %s", got, tc.want)
			}
		})
	}
}

// The limits in the first SETTINGS are enforced.
func TestLimits(t *testing.T) {
	r := newRig(t, true)
	c := newStrictClient(t, r.path)
	limits := map[http2.SettingID]uint32{}
	f, err := c.read()
	if s, ok := f.(*http2.SettingsFrame); err != nil || !ok || s.ForeachSetting(func(s http2.Setting) error { limits[s.ID] = s.Val; return nil }) != nil {
		t.Fatalf("first frame = %v, %v; want SETTINGS", f, err)
	}
	if limits[http2.SettingMaxConcurrentStreams] != 1024 || limits[http2.SettingMaxHeaderListSize] != 256<<10 {
		t.Errorf("limits are %v; want 1024 streams and 256 KiB of headers", limits)
	}
	for _, method := range []string{forwarded, local} {
		c := newStrictClient(t, r.path)
		for range 1024 {
			c.call(method, nil, "do-hang", "1")
		}
		c.open(method)
		if got := c.outcome(2*1024 + 1); got != resetting+"REFUSED_STREAM" {
			t.Errorf("%s: call above the limit of streams: %s; want it refused", method, got)
		}
		_ = c.conn.Close()
	}
	huge := newStrictClient(t, r.path)
	var b []byte
	for i := range 3 {
		b = append(b, huge.block(fmt.Sprint("x-", i), strings.Repeat("v", 100_000))...)
	}
	b = append(huge.block(request(forwarded)...), b...)
	for i := 0; i < len(b); i += 16384 {
		typ, flags := byte(continuation), byte(0)
		if i == 0 {
			typ = headers
		}
		if i+16384 >= len(b) {
			flags = endHeaders
		}
		huge.raw(typ, flags, 1, b[i:min(len(b), i+16384)]...)
	}
	if got := huge.outcome(1); got != resetting+"ENHANCE_YOUR_CALM" && got != goingAway+"ENHANCE_YOUR_CALM" {
		t.Errorf("header list above the limit: %s; want it refused", got)
	}
	_ = huge.conn.Close()
	_ = c.conn.Close()
	r.settled()
}
