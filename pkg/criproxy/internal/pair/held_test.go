package pair_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/metadata"

	"github.com/pullgate/pullgate/pkg/criproxy/internal/pair"
)

// A heldRuntime is a runtime that answers each request with itself, and notes what RFC 9113 forbids. It gives all window of the connection back at
// once, or none.
type heldRuntime struct {
	conn   net.Conn
	keeps  bool // the window
	fr     *http2.Framer
	calls  map[uint32]*heldRequest
	faults []string
}

// A heldRequest is a call as its runtime or its handler has read it.
type heldRequest struct {
	method, call string
	message      []byte
	granted      uint32 // by WINDOW_UPDATE
	done         bool
}

func (rt *heldRuntime) fault(format string, args ...any) {
	rt.faults = append(rt.faults, fmt.Sprintf(format, args...))
}

func (rt *heldRuntime) serve() {
	defer func() { _ = rt.conn.Close() }()
	if _, err := io.ReadFull(rt.conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	rt.fr = http2.NewFramer(rt.conn, rt.conn)
	rt.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = rt.fr.WriteSettings()
	last := uint32(0)
	for {
		f, err := rt.fr.ReadFrame()
		if stream := (http2.StreamError{}); errors.As(err, &stream) || errors.As(err, new(http2.ConnectionError)) {
			rt.fault("%v", err)
			return
		}
		if err != nil {
			return
		}
		id := f.Header().StreamID
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = rt.fr.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = rt.fr.WritePing(true, f.Data)
			}
		case *http2.MetaHeadersFrame:
			c := rt.calls[id]
			switch {
			case c == nil && id <= last:
				rt.fault("stream %d is opened after %d", id, last)
				return
			case c == nil:
				last = id
				c = &heldRequest{method: f.PseudoValue("path")}
				for _, h := range f.RegularFields() {
					if h.Name == "x-call" {
						c.call += h.Value
					}
				}
				rt.calls[id] = c
			case c.done:
				rt.fault("HEADERS on stream %d, which has ended", id)
			}
			if f.StreamEnded() {
				rt.answer(id, c)
			}
		case *http2.DataFrame:
			if f.Length > 0 && !rt.keeps {
				_ = rt.fr.WriteWindowUpdate(0, f.Length)
			}
			c := rt.calls[id]
			if c == nil || c.done {
				rt.fault("DATA on stream %d, which is not open", id)
				return
			}
			c.message = append(c.message, f.Data()...)
			if f.StreamEnded() {
				rt.answer(id, c)
			}
		case *http2.RSTStreamFrame:
			if c := rt.calls[id]; c == nil {
				rt.fault("RST_STREAM on stream %d, which was not opened", id)
			} else {
				c.done = true
			}
		case *http2.WindowUpdateFrame:
			if c := rt.calls[id]; c != nil {
				c.granted += f.Increment
			} else if id > 0 {
				rt.fault("WINDOW_UPDATE on stream %d, which was not opened", id)
			}
		}
	}
}

func (rt *heldRuntime) answer(id uint32, c *heldRequest) {
	c.done = true
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	enc.SetMaxDynamicTableSize(0)
	_ = enc.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	_ = enc.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
	_ = rt.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.Bytes(), EndHeaders: true})
	if len(c.message) > 0 {
		_ = rt.fr.WriteData(id, false, c.message)
	}
	b.Reset()
	_ = enc.WriteField(hpack.HeaderField{Name: "grpc-status", Value: "0"})
	_ = rt.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.Bytes(), EndHeaders: true, EndStream: true})
}

// A heldClient makes calls as a list of steps says, and counts what comes back.
type heldClient struct {
	*strictClient
	out            bytes.Buffer
	calls          []*heldCall
	used           int // of the window of the connection, by requests
	unacknowledged int // SETTINGS

	runtime net.Conn
	lost    bool // it was closed
}

// A heldCall is one call of a heldClient.
type heldCall struct {
	id      uint32
	method  string
	message []byte // all that was sent of the request
	ended   bool   // the request
	broken  bool   // the call may end in any way
	granted uint32 // by WINDOW_UPDATE
	before  uint32 // what of it was granted before the end of the request

	// Of the answer.
	body  []byte
	over  bool
	reset bool
}

func (c *heldClient) data(call *heldCall, end bool, b, padding []byte) {
	n := len(b)
	if padding != nil {
		n += 1 + len(padding)
	}
	if c.used += n; c.used > 60_000 { // the windows of the test are not refilled while it writes
		c.used -= n
		return
	}
	if call.ended {
		call.broken = true
	} else {
		call.message = append(call.message, b...)
	}
	call.ended = call.ended || end
	if padding != nil {
		_ = c.fr.WriteDataPadded(call.id, end, b, padding)
	} else {
		_ = c.fr.WriteData(call.id, end, b)
	}
}

// step writes the frames of one step, and sends them if it is the end of a write.
func (c *heldClient) step(b byte) {
	at := int(b >> 4)
	if b&0xf == 0 {
		methods := []string{bypassed, bypassed, bypassed, observed, ahead, local, forwarded, "/test.Service/Stream"}
		call := &heldCall{method: methods[at%len(methods)], id: c.next}
		c.next += 2
		more := []string{"x-call", fmt.Sprint(call.id)}
		if at >= len(methods) {
			more = append(more, "x-call-bin", fmt.Sprint(call.id), "grpc-timeout", fmt.Sprint(100+call.id)+"S", "grpc-accept-encoding", "gzip")
		}
		if at == 15 {
			more, call.broken = append(more, "content-length", "3"), true
		}
		block := c.block(request(call.method, more...)...)
		cut := len(block)
		if at%5 == 4 {
			cut /= 2
		}
		_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: call.id, BlockFragment: block[:cut], EndHeaders: cut == len(block)})
		if cut < len(block) {
			c.send()
			_ = c.fr.WriteContinuation(call.id, true, block[cut:])
		}
		c.calls = append(c.calls, call)
		return
	}
	if len(c.calls) == 0 {
		return
	}
	call := c.calls[max(0, len(c.calls)-1-at)]
	text := []byte(fmt.Sprint("pass ", call.id))
	switch b & 0xf {
	case 1, 2:
		c.data(call, true, framed(text), nil)
	case 3:
		c.data(call, true, framed([]byte(fmt.Sprint("handle ", call.id))), nil)
	case 4:
		c.data(call, true, framed(text), make([]byte, at*17))
	case 5: // in pieces
		if whole := framed(text); len(call.message) == 0 {
			c.data(call, false, whole[:3], nil)
		} else if len(call.message) == 3 {
			c.data(call, true, whole[3:], nil)
		}
	case 6:
		c.data(call, at%2 == 0, nil, nil)
	case 7:
		call.broken = true
		_ = c.fr.WriteRSTStream(call.id, http2.ErrCodeCancel)
	case 8:
		call.granted += 1 + uint32(at)
		if !call.ended {
			call.before += 1 + uint32(at)
		}
		_ = c.fr.WriteWindowUpdate(call.id, 1+uint32(at))
	case 9:
		call.broken = true
		if at%2 == 0 {
			_ = c.fr.WriteWindowUpdate(call.id, 0)
		} else {
			c.raw(priority, 0, call.id, 0)
		}
	case 10:
		if call.ended {
			call.broken = true
		}
		call.ended = true
		_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: call.id, BlockFragment: c.block("x-trailer", fmt.Sprint(call.id)), EndHeaders: true, EndStream: true})
	case 11:
		if c.unacknowledged > 90 { // the pair accepts 100
			return
		}
		c.settings([]uint32{65_535, 30_000, 40_000, 20_000}[at%4])
	case 12:
		_ = c.fr.WritePing(false, [8]byte{b})
	case 13:
		_ = c.fr.WriteGoAway(0, http2.ErrCodeNo, nil)
	case 14:
		if c.send(); at == 0 {
			c.loseRuntime()
		}
	default:
		c.send()
	}
}

func (c *heldClient) settings(window uint32) {
	c.unacknowledged++
	_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
}

func (c *heldClient) loseRuntime() {
	c.lost = true
	_ = c.runtime.Close()
}

func (c *heldClient) send() {
	_, _ = c.conn.Write(c.out.Bytes())
	c.out.Reset()
}

// waits reports whether a request is complete whose answer has not come.
func (c *heldClient) waits() bool {
	return slices.ContainsFunc(c.calls, func(call *heldCall) bool { return !call.broken && call.ended && !call.over })
}

// readUntilAcknowledged reads until all SETTINGS are acknowledged, and returns how much window the runtime and the pair have given back.
func (c *heldClient) readUntilAcknowledged(fr *http2.Framer) (returned int, err error) {
	byID := map[uint32]*heldCall{}
	for _, call := range c.calls {
		byID[call.id] = call
	}
	for c.unacknowledged > 0 {
		f, err := fr.ReadFrame()
		if err != nil {
			return returned, err
		}
		call := byID[f.Header().StreamID]
		switch f := f.(type) {
		case *http2.WindowUpdateFrame:
			if call == nil {
				returned += int(f.Increment)
			}
		case *http2.DataFrame:
			call.body = append(call.body, f.Data()...)
		case *http2.MetaHeadersFrame:
			if call.over && !call.reset {
				return returned, fmt.Errorf("HEADERS on stream %d, which has ended", call.id)
			}
			call.over = f.StreamEnded()
		case *http2.RSTStreamFrame:
			call.over, call.reset = true, true
		case *http2.GoAwayFrame:
			return returned, fmt.Errorf("%v %s", f, f.DebugData())
		case *http2.SettingsFrame:
			if f.IsAck() {
				c.unacknowledged--
			}
		}
	}
	return returned, nil
}

// A client may make any calls in any order of their frames: each whole request gets its own answer, the runtime gets only what a bypass has passed, on
// streams in their order and with their own header lists, and the client gets back all of the window that its requests have used.
func FuzzHeldCalls(f *testing.F) {
	f.Add([]byte{0x00, 0x00, 0x00, 0x01, 0x11, 0x21})
	f.Add([]byte{0x00, 0x00, 0x00, 0x21, 0x13, 0x01, 0xf, 0x30, 0x01})
	f.Add([]byte{0x00, 0x00, 0x11, 0x17, 0x01})
	f.Add([]byte{0x00, 0x40, 0x50, 0x60, 0x31, 0x21, 0x11, 0x01})
	f.Add([]byte{0x80, 0x00, 0x11, 0x01, 0x0f, 0x00, 0x60, 0x12, 0x40, 0x01})
	f.Add([]byte{0x00, 0x00, 0x0e, 0x11, 0x01, 0x0f, 0x00, 0x60, 0x12, 0x40, 0x01})
	f.Add([]byte{0x00, 0x00, 0x11, 0x1a, 0x05, 0x05, 0x40, 0x24, 0x0b, 0x1b, 0x04})
	random := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		b := make([]byte, 60)
		for i := range b {
			if b[i] = byte(random.IntN(256)); random.IntN(2) == 0 {
				b[i] &= 0x31 // calls and their requests
			}
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		steps = steps[:min(len(steps), 400)]
		runtimeEnd, dialed := sockets(t)
		rt := &heldRuntime{conn: runtimeEnd, keeps: len(steps) > 0 && steps[0]&0x80 != 0, calls: map[uint32]*heldRequest{}}
		var ends sync.WaitGroup
		ends.Go(rt.serve)
		rig := &rig{t: t, observed: make(chan []byte, 1000)}
		var mu sync.Mutex
		handled := map[string]*heldRequest{}
		clientEnd, end := rig.between(dialed, func(ctx context.Context, c *pair.Call) error {
			md, _ := metadata.FromIncomingContext(ctx)
			mu.Lock()
			handled[md.Get("x-call")[0]] = &heldRequest{method: c.Method, message: framed(c.Request)}
			mu.Unlock()
			return c.Send(c.Request)
		})

		_ = clientEnd.SetDeadline(time.Now().Add(5 * time.Second))
		c := &heldClient{strictClient: &strictClient{t: t, conn: clientEnd, next: 1}, runtime: runtimeEnd}
		c.fr = http2.NewFramer(&c.out, nil)
		c.fr.AllowIllegalWrites = true
		c.enc = hpack.NewEncoder(&c.buf)
		c.out.WriteString(http2.ClientPreface)
		c.settings(65_535)
		_ = c.fr.WriteWindowUpdate(0, 1<<30)
		c.send()
		for _, b := range steps {
			c.step(b)
		}
		returned := 0
		fr := http2.NewFramer(io.Discard, clientEnd)
		fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		for round, end := 0, time.Now().Add(3*time.Second); round == 0 || time.Now().Before(end) && (returned != c.used || c.waits()); round++ {
			c.settings(65_535)
			c.send()
			n, err := c.readUntilAcknowledged(fr)
			if returned += n; err != nil {
				t.Fatalf("%v, after steps %x, %q", err, steps, rt.faults)
			}
			if rt.keeps {
				c.loseRuntime() // what it has kept is given back by the pair
			}
		}
		end()
		ends.Wait()
		if rig.panics.Load() > 0 {
			t.Error("a panic")
		}
		for _, fault := range rt.faults {
			t.Error("runtime: " + fault)
		}
		if returned != c.used {
			t.Errorf("requests used %d bytes of the window of the connection, %d came back", c.used, returned)
		}
		for _, call := range c.calls {
			at, by := rt.calls[call.id], handled[fmt.Sprint(call.id)]
			if at != nil {
				cut := c.lost && len(at.message) == 0 // the runtime was closed behind the HEADERS
				if !call.broken && !c.lost && call.method != ahead && (at.granted < call.before || at.granted > call.granted) {
					t.Errorf("%s %d: the runtime has %d bytes of window more; want %d to %d", call.method, call.id, at.granted, call.before, call.granted)
				}
				judged := call.method == local || call.method == bypassed && !cut && !bytes.HasPrefix(at.message, framed([]byte(fmt.Sprint("pass ", call.id))))
				if judged || at.method != call.method || at.call != fmt.Sprint(call.id) || !bytes.HasPrefix(call.message, at.message) {
					t.Errorf("%s %d %q arrived at the runtime as %s %s %q", call.method, call.id, call.message, at.method, at.call, at.message)
				}
			}
			if by != nil && (by.method != call.method || !bytes.Equal(by.message, call.message) || at != nil && call.method != ahead) {
				t.Errorf("%s %d %q arrived at the handler as %s %q", call.method, call.id, call.message, by.method, by.message)
			}
			if !call.broken && (call.ended && !call.over || call.over && !call.ended && !c.lost) {
				t.Errorf("%s %d %q: request ended %t, answer ended %t", call.method, call.id, call.message, call.ended, call.over)
			}
			if !call.broken && !call.reset && len(call.body) > 0 && !bytes.Equal(call.body, call.message) {
				t.Errorf("%s %d %q is answered by %q", call.method, call.id, call.message, call.body)
			}
		}
		if t.Failed() {
			t.Logf("steps %x", steps)
		}
	})
}

// A call that is held while the runtime goes is one for its handler: the runtime would not take it.
func TestRuntimeThatGoesWhileCallsAreHeld(t *testing.T) {
	for name, leave := range map[string]func(s *scripted){
		"GOAWAY": func(s *scripted) { _ = s.fr.WriteGoAway(0, http2.ErrCodeNo, nil); _ = s.fr.WritePing(true, [8]byte{1}) },
		"end":    func(s *scripted) { _ = s.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r, c, s := newScripted(t)
			c.open(bypassed)
			c.open(ahead)
			_ = c.fr.WriteSettings() // is acknowledged by the runtime, or at its end by the pair
			s.until(0, http2.FrameSettings)
			s.until(0, http2.FrameSettings)
			leave(s)
			acked := false
			c.collect(nil, func(f http2.Frame) bool {
				switch f := f.(type) {
				case *http2.GoAwayFrame:
					return true
				case *http2.SettingsFrame:
					again := acked && f.IsAck()
					acked = acked || f.IsAck()
					return again
				}
				return false
			})
			got := make([]string, 2)
			c.atOnce(func(c *strictClient) {
				for _, id := range []uint32{1, 3} {
					_ = c.fr.WriteData(id, true, framed([]byte("pass")))
				}
			})
			c.collect(got, func(http2.Frame) bool { return got[0] != "" && got[1] != "" })
			if got[0] != "grpc-status 0" || got[1] != "grpc-status 0" || r.ran.Load() != 2 {
				t.Errorf("%q, %d handled; want both", got, r.ran.Load())
			}
		})
	}
}
