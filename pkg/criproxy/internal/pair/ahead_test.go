package pair_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
)

// A call that is sent ahead reaches the runtime once, and its handler decides what the client gets.
func TestAhead(t *testing.T) {
	r := newRig(t, true)
	cc := dial(t, r.path)
	for _, tc := range []struct {
		name              string
		do                []string
		want              string
		code              codes.Code
		forwarded, repeat int64
	}{
		{"as it came", nil, "x", codes.OK, 1, 0},
		{"hidden", []string{"do-hide", "1"}, "hidden", codes.OK, 1, 0},
		{"handler that takes longer than the responses wait", []string{"do-judge", "50"}, "x", codes.OK, 1, 0},
		{"32 KiB", []string{"do-size", fmt.Sprint(32<<10 - 5), "do-hide", "1"}, "hidden", codes.OK, 1, 0},
		{"more than 32 KiB", []string{"do-size", fmt.Sprint(32<<10 - 4), "do-hide", "1"}, strings.Repeat("s", 32<<10-4), codes.OK, 1, 1},
		{"much more", []string{"do-size", "3000000"}, strings.Repeat("s", 3000000), codes.OK, 1, 1},
		{"error", []string{"do-fail", "5"}, "", codes.NotFound, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			calls, repeated := r.backend.calls.Load(), r.repeated.Load()
			out, err := call(t.Context(), cc, ahead, []byte("x"), tc.do...)
			if status.Code(err) != tc.code || string(out) != tc.want {
				t.Errorf("%d bytes, %v; want %d bytes, %v", len(out), err, len(tc.want), tc.code)
			}
			if calls, repeated = r.backend.calls.Load()-calls, r.repeated.Load()-repeated; calls != tc.forwarded || repeated != tc.repeat {
				t.Errorf("forwarded %d times, handled without an answer %d times; want %d, %d", calls, repeated, tc.forwarded, tc.repeat)
			}
		})
	}
	r.settled()
}

// counted waits until so many calls are counted, and sees that there are no more.
func (r *rig) counted(want int64) {
	r.t.Helper()
	for end := time.Now().Add(5 * time.Second); r.ended.Load() < want && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if got := r.ended.Load(); got != want {
		r.t.Errorf("%d calls counted; want %d", got, want)
	}
}

// A handler that waits holds up no other call of its connection.
func TestSlowHandlersOfCallsThatWentAhead(t *testing.T) {
	r := newRig(t, true)
	c := newStrictClient(t, r.path)
	var last uint32
	for i := range 5 {
		last = c.call(ahead, []byte("x"), "do-wait", "1")
		for end := time.Now().Add(10 * time.Second); r.waiting.Load() <= int64(i); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("handler %d does not run", i+1)
			}
		}
		if got := c.outcome(c.call(forwarded, []byte("x"))); got != "grpc-status 0" {
			t.Fatalf("call beside %d handlers that wait: %s", i+1, got)
		}
	}
	close(r.released)
	if got := c.outcome(last); got != "grpc-status 0" {
		t.Errorf("the last of them: %s", got)
	}
	r.settled()
}

// A scripted is a runtime that does what a test says, frame by frame.
type scripted struct {
	t    *testing.T
	conn net.Conn
	fr   *http2.Framer
	enc  *hpack.Encoder
	buf  bytes.Buffer
}

// newScripted returns a rig whose runtime is scripted, with a client and the first connection to the runtime.
func newScripted(t *testing.T, settings ...http2.Setting) (*rig, *strictClient, *scripted) {
	t.Helper()
	dir := criproxytest.SocketDir(t)
	path := filepath.Join(dir, "r")
	l := criproxytest.Listen(t, path)
	t.Cleanup(func() { _ = l.Close() })
	r := newRigBefore(t, path)
	c := newStrictClient(t, r.path, settings...)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s := &scripted{t: t, conn: conn, fr: http2.NewFramer(conn, conn)}
	s.fr.AllowIllegalWrites = true
	s.enc = hpack.NewEncoder(&s.buf)
	s.enc.SetMaxDynamicTableSizeLimit(0)
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		t.Fatal(err)
	}
	_ = s.fr.WriteSettings()
	_ = s.fr.WriteSettingsAck()
	return r, c, s
}

// atOnce sends the frames of several writes in one, so that they are read at once.
func (s *scripted) atOnce(write func()) {
	var all bytes.Buffer
	single := s.fr
	s.fr = http2.NewFramer(&all, nil)
	write()
	s.fr = single
	_, _ = s.conn.Write(all.Bytes())
}

// until reads until a frame of a kind comes on a stream.
func (s *scripted) until(id uint32, what http2.FrameType) http2.Frame { //nolint:ireturn // as http2.Framer does
	s.t.Helper()
	for {
		_ = s.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		f, err := s.fr.ReadFrame()
		if err != nil {
			s.t.Fatal(err)
		}
		if f.Header().StreamID == id && f.Header().Type == what {
			return f
		}
	}
}

func (s *scripted) headers(id uint32, end bool, fields ...string) {
	s.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = s.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.buf.Bytes(), EndHeaders: true, EndStream: end})
}

func (s *scripted) header(id uint32) {
	s.headers(id, false, ":status", "200", "content-type", "application/grpc", "x-secret", "planted")
}
func (s *scripted) data(id uint32, b []byte) { _ = s.fr.WriteData(id, false, b) }
func (s *scripted) trailer(id uint32, code string) {
	s.headers(id, true, "grpc-status", code, "x-secret", "planted")
}

// Whatever the runtime does with a call that was sent ahead, the client gets what the handler says and nothing before. The handler of the rig
// answers the request if it has no answer of the runtime.
func TestAheadWhateverTheRuntimeDoes(t *testing.T) {
	message := framed([]byte("planted"))
	for name, tc := range map[string]struct {
		do   func(r *rig, c *strictClient, s *scripted, id uint32)
		used bool // the answer of the runtime counts
	}{
		"in pieces": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			for i := range message {
				s.data(id, message[i:i+1])
				time.Sleep(time.Millisecond)
			}
			s.trailer(id, "0")
		}, true},
		"header in CONTINUATION": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.buf.Reset()
			_ = s.enc.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			_ = s.enc.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
			b := bytes.Clone(s.buf.Bytes())
			_ = s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:1]})
			_ = s.fr.WriteContinuation(id, false, b[1:3])
			_ = s.fr.WriteContinuation(id, true, b[3:])
			s.data(id, message)
			s.trailer(id, "0")
		}, true},
		"padded": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			_ = s.fr.WriteDataPadded(id, false, message, make([]byte, 200))
			s.trailer(id, "0")
		}, true},
		"no trailer": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			_ = s.fr.WriteData(id, true, message)
		}, false},
		"no message": {func(_ *rig, _ *strictClient, s *scripted, id uint32) { s.header(id); s.trailer(id, "0") }, false},
		"trailer only": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.headers(id, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "0")
		}, false},
		"error": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			s.data(id, message)
			s.trailer(id, "5")
		}, false},
		"no grpc-status": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			s.data(id, message)
			s.headers(id, true, "x", "y")
		}, false},
		"not gRPC": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.headers(id, false, ":status", "200", "content-type", "text/html")
			s.data(id, message)
			s.trailer(id, "0")
		}, false},
		"HTTP error": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.headers(id, false, ":status", "500", "content-type", "application/grpc")
			s.data(id, message)
			s.trailer(id, "0")
		}, false},
		"compressed": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			s.data(id, append([]byte{1}, message[1:]...))
			s.trailer(id, "0")
		}, false},
		"two messages": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			s.data(id, append(message, message...))
			s.trailer(id, "0")
		}, false},
		"half a message": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			s.data(id, binary.BigEndian.AppendUint32([]byte{0}, 1<<30))
			s.trailer(id, "0")
		}, false},
		"too large": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			for range 3 {
				s.data(id, make([]byte, 16384))
			}
			if f, ok := s.until(id, http2.FrameRSTStream).(*http2.RSTStreamFrame); !ok || f.ErrCode != http2.ErrCodeCancel {
				s.t.Error("the rest of a large answer is not cancelled")
			}
			s.data(id, make([]byte, 16384)) // it was on its way
			s.trailer(id, "0")
		}, false},
		"reset": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			_ = s.fr.WriteRSTStream(id, http2.ErrCodeInternal)
		}, false},
		"reset at once": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			_ = s.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream)
		}, false},
		"gone": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			s.data(id, message)
			_ = s.conn.Close()
		}, false},
		"violation": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			s.header(id)
			s.data(id, message)
			_ = s.fr.WriteRawFrame(http2.FrameRSTStream, 0, id, nil)
		}, false},
		"answer and violation in one write": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			conn := s.fr
			var out bytes.Buffer
			s.fr = http2.NewFramer(&out, nil)
			s.fr.AllowIllegalWrites = true
			s.header(id)
			s.data(id, message)
			s.trailer(id, "0")
			_ = s.fr.WriteRawFrame(http2.FramePing, 0, 0, nil)
			s.fr = conn
			_, _ = s.conn.Write(out.Bytes())
		}, true},
		"GOAWAY without the call": {func(_ *rig, _ *strictClient, s *scripted, _ uint32) { _ = s.fr.WriteGoAway(0, http2.ErrCodeNo, nil) }, false},
		"GOAWAY with the call": {func(_ *rig, _ *strictClient, s *scripted, id uint32) {
			_ = s.fr.WriteGoAway(id, http2.ErrCodeNo, nil)
			s.header(id)
			s.data(id, message)
			s.trailer(id, "0")
		}, true},
		"client lowers the windows": {func(_ *rig, c *strictClient, s *scripted, id uint32) {
			s.header(id)
			_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
			s.until(id, http2.FrameRSTStream)
			s.data(id, message)
			s.trailer(id, "0")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, c, s := newScripted(t)
			id := c.call(ahead, []byte("asked"), "do-hide", "1")
			s.until(id, http2.FrameData)
			tc.do(r, c, s, id)
			want := "asked" // the handler of the rig has made the call by itself
			if tc.used {
				want = "hidden"
			}
			var got []byte
			for ended := false; !ended; {
				f := c.mustRead()
				if f.Header().StreamID != id {
					continue
				}
				switch f := f.(type) {
				case *http2.DataFrame:
					got = append(got, f.Data()...)
				case *http2.MetaHeadersFrame:
					ended = f.StreamEnded()
					for _, h := range f.Fields {
						if h.Value == "planted" && !tc.used {
							t.Errorf("field of an answer that does not count: %v", h)
						}
						if h.Name == "grpc-status" && h.Value != "0" {
							t.Errorf("grpc-status %s", h.Value)
						}
					}
				case *http2.RSTStreamFrame:
					t.Fatal(f)
				}
			}
			if string(got) != string(framed([]byte(want))) {
				t.Errorf("client has %q; want %q", got, want)
			}
			r.settled()
			r.counted(1)
		})
	}
}

// Of an answer that comes after its call has ended, the client gets nothing.
func TestAheadThatTheClientResets(t *testing.T) {
	r, c, s := newScripted(t)
	id := c.call(ahead, []byte("asked"))
	s.until(id, http2.FrameData)
	s.header(id)
	_ = c.fr.WriteRSTStream(id, http2.ErrCodeCancel)
	s.until(id, http2.FrameRSTStream)
	for range 100 { // more than all windows
		s.data(id, bytes.Repeat([]byte("planted"), 2000))
	}
	s.until(0, http2.FrameWindowUpdate)
	s.trailer(id, "0")
	next := c.call(forwarded, []byte("x"))
	s.until(next, http2.FrameData)
	s.header(next)
	s.trailer(next, "0")
	for {
		f := c.mustRead()
		if f.Header().StreamID == id {
			t.Errorf("client has %v of a call that it has reset", f)
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok && h.StreamEnded() {
			break
		}
	}
	r.settled()
	r.counted(2)
	if n := r.ran.Load(); n != 0 {
		t.Errorf("%d handled; want 0", n)
	}
}

// A client that takes nothing holds up its own answers only, and each call once.
func TestAheadWithoutWindow(t *testing.T) {
	r, c, s := newScripted(t)
	fill := c.call(forwarded, []byte("x")) // uses the window of the connection
	s.until(fill, http2.FrameData)
	s.header(fill)
	for range 3 {
		s.data(fill, make([]byte, 16384))
	}
	s.data(fill, make([]byte, 16383))
	id := c.call(ahead, []byte("asked"), "do-hide", "1")
	s.until(id, http2.FrameData)
	s.header(id)
	s.data(id, framed([]byte("planted")))
	s.trailer(id, "0")
	for end := time.Now().Add(10 * time.Second); r.server.Waits() == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	_ = s.fr.WritePing(false, [8]byte{1}) // passes beside the answer that waits
	for got := 0; ; {
		f := c.mustRead()
		if d, ok := f.(*http2.DataFrame); ok {
			if got += int(d.Length); d.StreamID == id {
				t.Fatal("window exceeded")
			}
		}
		if p, ok := f.(*http2.PingFrame); ok && !p.IsAck() && got == 65535 {
			break
		}
	}
	_ = c.fr.WriteWindowUpdate(0, 1000)
	if got := c.outcome(id); got != "grpc-status 0" {
		t.Errorf("after the client has given window: %s", got)
	}
	s.trailer(fill, "0")
	r.settled()
}

// A connection that ends while calls are ahead leaves nothing behind.
func TestAheadWhenTheClientDisconnects(t *testing.T) {
	r, c, s := newScripted(t)
	before := usage()
	for range 50 {
		id := c.call(ahead, []byte("asked"))
		s.until(id, http2.FrameData)
	}
	_ = c.conn.Close()
	if _, err := io.Copy(io.Discard, s.conn); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	r.settled()
	before.returnsTo(t, "calls that were ahead")
	r.counted(50)
}

// A runtime that sends frames on a stream that the client has not opened loses its connection, and the client does not see them.
func TestRuntimeOnStreamsThatAreNotOpen(t *testing.T) {
	for name, send := range map[string]func(s *scripted){
		"HEADERS":       func(s *scripted) { s.header(9) },
		"DATA":          func(s *scripted) { s.data(9, []byte("planted")) },
		"RST_STREAM":    func(s *scripted) { _ = s.fr.WriteRSTStream(9, http2.ErrCodeCancel) },
		"WINDOW_UPDATE": func(s *scripted) { _ = s.fr.WriteWindowUpdate(9, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			_, c, s := newScripted(t)
			id := c.call(forwarded, []byte("x"))
			s.until(id, http2.FrameData)
			send(s)
			for {
				f := c.mustRead()
				if f.Header().StreamID == 9 {
					t.Errorf("client has %v", f)
				}
				if h, ok := f.(*http2.MetaHeadersFrame); ok && h.StreamID == id {
					break
				}
			}
			if _, err := io.Copy(io.Discard, s.conn); err != nil {
				t.Error(err)
			}
		})
	}
}
