package pair_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
	"github.com/pullgate/pullgate/pkg/criproxy/drain"
	"github.com/pullgate/pullgate/pkg/criproxy/internal/pair"
)

// The methods of the rig: forwarded is answered by the runtime, local by a handler, bypassed by the runtime if its request
// begins with "pass", and observed by the runtime, with an observer. Calls of ahead are sent ahead; their handler hides the answer if it
// has do-hide, and makes the call by itself if it has no answer.
const (
	forwarded = "/test.Service/Forwarded"
	local     = "/test.Service/Local"
	bypassed  = "/test.Service/Bypassed"
	observed  = "/test.Service/Observed"
	ahead     = "/test.Service/Ahead"
)

// A backend is the runtime of the rig. Metadata of a call say what it does; see play.
type backend struct {
	path   string
	server *grpc.Server
	calls  atomic.Int64
	local  atomic.Int64 // calls that a handler should have answered
}

func (b *backend) start(tb testing.TB) {
	tb.Helper()
	_ = os.Remove(b.path)
	l := criproxytest.Listen(tb, b.path)
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	b.server = grpc.NewServer(grpc.ForceServerCodecV2(criproxytest.RawCodec{}), grpc.UnknownServiceHandler(b.handle), grpc.MaxRecvMsgSize(16<<20), grpc.WaitForHandlers(true))
	go func(s *grpc.Server) { _ = s.Serve(l) }(b.server) // ends with Stop
}

func (b *backend) handle(_ any, s grpc.ServerStream) error {
	b.calls.Add(1)
	if m, _ := grpc.MethodFromServerStream(s); m == local {
		b.local.Add(1)
	}
	var in []byte
	if err := s.RecvMsg(&in); err != nil {
		return err
	}
	md, _ := metadata.FromIncomingContext(s.Context())
	out, err := play(s.Context(), md, in)
	if err != nil {
		return err
	}
	if err := s.SetHeader(metadata.Pairs("x-header", "h", "x-header-bin", "\x00\xff")); err != nil {
		return err
	}
	s.SetTrailer(metadata.Pairs("x-trailer", "t"))
	for range max(1, number(md, "do-n")) {
		if err := s.SendMsg(&out); err != nil {
			return err
		}
	}
	return nil
}

func number(md metadata.MD, key string) int {
	if v := md.Get(key); len(v) > 0 {
		n, _ := strconv.Atoi(v[0])
		return n
	}
	return 0
}

// play does what the metadata say: do-sleep, do-hang, do-fail, do-size.
func play(ctx context.Context, md metadata.MD, in []byte) ([]byte, error) {
	if ms := number(md, "do-sleep"); ms > 0 {
		time.Sleep(time.Duration(ms) * time.Millisecond)
	}
	switch {
	case number(md, "do-hang") > 0:
		<-ctx.Done()
		return nil, ctx.Err()
	case number(md, "do-panic") > 0:
		panic("planted")
	case number(md, "do-fail") > 0:
		return nil, status.Error(codes.Code(number(md, "do-fail")), "nö %\n")
	case number(md, "do-size") > 0:
		return bytes.Repeat([]byte{'s'}, number(md, "do-size")), nil
	}
	return in, nil
}

// A rig is a server between a backend and clients.
type rig struct {
	t        testing.TB
	backend  *backend
	server   *pair.Server
	path     string
	ran      atomic.Int64 // handlers
	repeated atomic.Int64 // calls that were sent ahead, and made once more
	hides    bool         // calls that are sent ahead are answered by "hidden"
	waiting  atomic.Int64 // handlers of calls with do-wait, which wait for released
	released chan struct{}
	observed chan []byte
	panics   atomic.Int64
	ended    atomic.Int64
	served   chan error
}

func newRig(tb testing.TB, withBackend bool) *rig {
	tb.Helper()
	r := newRigBefore(tb, "")
	if withBackend {
		r.backend.start(tb)
	}
	return r
}

// newRigBefore returns a rig whose runtime is to listen on a path; "" is one of its own.
func newRigBefore(tb testing.TB, path string) *rig {
	tb.Helper()
	dir := criproxytest.SocketDir(tb)
	if path == "" {
		path = filepath.Join(dir, "r")
	}
	r := &rig{t: tb, backend: &backend{path: path}, path: filepath.Join(dir, "p"), served: make(chan error, 1), observed: make(chan []byte, 1000), released: make(chan struct{})}
	r.server = pair.NewServer(r.config(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.backend.path)
	}))
	r.serve()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 2*time.Second)
		defer cancel()
		r.server.Shutdown(ctx)
		if r.backend.server != nil {
			r.backend.server.Stop()
		}
	})
	return r
}

func (r *rig) serve() {
	l := criproxytest.Listen(r.t, r.path)
	go func() { r.served <- r.server.Serve(l) }() // ends with Shutdown
}

func (r *rig) config(dial func(context.Context) (net.Conn, error)) pair.Config {
	routes := map[string]*pair.Route{
		forwarded: {Unary: true},
		local:     {Unary: true, Handle: r.handle},
		bypassed: {Unary: true, Handle: r.handle, Bypass: func(request []byte) (pair.Way, func([]byte)) {
			if bytes.HasPrefix(request, []byte("pass")) {
				return pair.Forwarded, nil
			}
			return pair.Handled, nil
		}},
		observed: {Unary: true, Handle: r.handle, Bypass: func([]byte) (pair.Way, func([]byte)) {
			return pair.Forwarded, func(response []byte) { r.observed <- bytes.Clone(response) }
		}},
		ahead: {Unary: true, Handle: r.handleAhead, Bypass: func([]byte) (pair.Way, func([]byte)) { return pair.HandledAhead, nil }},
	}
	return pair.Config{
		Dial: dial,
		Route: func(method string) *pair.Route {
			if route := routes[method]; route != nil {
				return route
			}
			if strings.HasPrefix(method, "/test.") {
				return &pair.Route{} // a stream
			}
			return &pair.Route{Refuse: status.Error(codes.Unimplemented, "refused")}
		},
		Ended:    func(string, codes.Code, time.Duration) { r.ended.Add(1) },
		Panicked: func(string, any, []byte) error { r.panics.Add(1); return status.Error(codes.Internal, "panicked") },
		Away:     func(err error) error { return status.Errorf(codes.Unavailable, "away: %v", err) },
		Lost:     status.Error(codes.Unavailable, "lost"),
		Stopping: status.Error(codes.Unavailable, "stopping"),
		Calls:    &drain.Calls{},
		Log:      klog.Logger{},
	}
}

func (r *rig) handle(ctx context.Context, c *pair.Call) error {
	r.ran.Add(1)
	md, _ := metadata.FromIncomingContext(ctx)
	out, err := play(ctx, md, c.Request)
	if err != nil {
		return err
	}
	c.Header, c.Trailer = metadata.Pairs("x-header", "h", "x-header-bin", "\x00\xff"), metadata.Pairs("x-trailer", "t")
	for range max(1, number(md, "do-n")) {
		if err := c.Send(out); err != nil {
			return err
		}
	}
	return nil
}

// handleAhead hides what it has if the call has do-hide, after the time of do-judge. With do-wait it waits for released first.
func (r *rig) handleAhead(ctx context.Context, c *pair.Call) error {
	if r.hides {
		return c.Send([]byte("hidden"))
	}
	if c.Ahead == nil {
		r.repeated.Add(1)
		return r.handle(ctx, c)
	}
	message := c.Ahead.Message
	md, _ := metadata.FromIncomingContext(ctx)
	if number(md, "do-wait") > 0 {
		r.waiting.Add(1)
		<-r.released
	}
	time.Sleep(time.Duration(number(md, "do-judge")) * time.Millisecond)
	if number(md, "do-hide") > 0 {
		message = []byte("hidden")
	}
	c.Header, c.Trailer = c.Ahead.Header, c.Ahead.Trailer
	return c.Send(message)
}

func dial(tb testing.TB, path string, options ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	cc, err := grpc.NewClient("unix://"+path, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(criproxytest.RawCodec{}), grpc.MaxCallRecvMsgSize(32<<20)))...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = cc.Close() })
	return cc
}

// call makes a unary call, and sees that the metadata of its answer have come.
func call(ctx context.Context, cc *grpc.ClientConn, method string, in []byte, do ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, do...), 30*time.Second)
	defer cancel()
	var out []byte
	var header, trailer metadata.MD
	err := cc.Invoke(ctx, method, &in, &out, grpc.Header(&header), grpc.Trailer(&trailer))
	if err == nil && (fmt.Sprint(header.Get("x-header"), trailer.Get("x-trailer")) != "[h] [t]" || header.Get("x-header-bin")[0] != "\x00\xff") {
		err = fmt.Errorf("metadata lost: %v %v", header, trailer)
	}
	return out, err
}

// opens waits until so many calls are open at the runtime or have a handler.
func (r *rig) opens(want int) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, calls, _ := r.server.Load(); calls >= want {
			return
		}
	}
	r.t.Errorf("fewer than %d calls are open", want)
}

// steady waits until the same calls are open twice in a row.
func (r *rig) steady() {
	for last := -1; ; time.Sleep(5 * time.Millisecond) {
		_, calls, _ := r.server.Load()
		if calls == last {
			return
		}
		last = calls
	}
}

// settled waits until no call is open and nothing is kept.
func (r *rig) settled() {
	r.t.Helper()
	var calls, kept int
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, calls, kept = r.server.Load(); calls == 0 && kept == 0 {
			return
		}
	}
	r.t.Fatalf("%d calls are open and %d bytes kept when nothing is called", calls, kept)
}

// A base is what a process uses.
type base struct{ goroutines, files, heap int }

func usage() base {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd")
	return base{runtime.NumGoroutine(), len(files), int(m.HeapInuse >> 20)}
}

// returnsTo waits until the process uses no more than it did, but for some megabytes.
func (b base) returnsTo(tb testing.TB, what string) {
	tb.Helper()
	const slack = 12 // MB
	now := usage()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if now.goroutines <= b.goroutines && now.files <= b.files && now.heap <= b.heap+slack {
			return
		}
		now = usage()
	}
	stacks := make([]byte, 1<<20)
	tb.Errorf("after %s: %+v (goroutines, files, heap in MB); want %+v\n%s", what, now, b, stacks[:runtime.Stack(stacks, true)])
}

// A strictClient writes frames one by one, and reads them with the checks of x/net.
type strictClient struct {
	t    testing.TB
	conn net.Conn
	fr   *http2.Framer
	buf  bytes.Buffer
	enc  *hpack.Encoder
	next uint32
}

// connect connects without saying anything.
func connect(tb testing.TB, path string) *strictClient {
	tb.Helper()
	conn, err := (&net.Dialer{}).DialContext(tb.Context(), "unix", path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	c := &strictClient{t: tb, conn: conn, fr: http2.NewFramer(conn, conn), next: 1}
	c.fr.AllowIllegalWrites = true
	c.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.enc = hpack.NewEncoder(&c.buf)
	return c
}

func newStrictClient(tb testing.TB, path string, settings ...http2.Setting) *strictClient {
	tb.Helper()
	c := connect(tb, path)
	_, _ = io.WriteString(c.conn, http2.ClientPreface)
	_ = c.fr.WriteSettings(settings...)
	return c
}

// request returns the fields of a call.
func request(method string, more ...string) []string {
	return append([]string{":method", "POST", ":scheme", "http", ":path", method, ":authority", "localhost", "content-type", "application/grpc", "te", "trailers"}, more...)
}

func (c *strictClient) block(fields ...string) []byte {
	c.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = c.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(c.buf.Bytes())
}

func framed(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// open sends the HEADERS of a call.
func (c *strictClient) open(method string, more ...string) uint32 {
	id := c.next
	c.next += 2
	_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block(request(method, more...)...), EndHeaders: true})
	return id
}

// call sends a whole call.
func (c *strictClient) call(method string, message []byte, more ...string) uint32 {
	id := c.open(method, more...)
	_ = c.fr.WriteData(id, true, framed(message))
	return id
}

// read reads the next frame, and answers what has to be answered.
func (c *strictClient) read() (http2.Frame, error) { //nolint:ireturn // as http2.Framer does
	_ = c.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	f, err := c.fr.ReadFrame()
	if err != nil {
		return nil, err
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			_ = c.fr.WriteSettingsAck() // what was sent before the connection ended is still to be read
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = c.fr.WritePing(true, f.Data)
		}
	}
	return f, nil
}

// mustRead is read for a frame that must come.
func (c *strictClient) mustRead() http2.Frame { //nolint:ireturn // as http2.Framer does
	c.t.Helper()
	f, err := c.read()
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

// outcome reads until a stream or the connection ends, and says how.
func (c *strictClient) outcome(stream uint32) string {
	for {
		f, err := c.read()
		if err != nil {
			if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
				return "nothing"
			}
			return "closed"
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			return "GOAWAY " + f.ErrCode.String()
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return "RST_STREAM " + f.ErrCode.String()
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID == stream && f.StreamEnded() {
				for _, h := range f.Fields {
					if h.Name == "grpc-status" {
						return "grpc-status " + h.Value
					}
				}
				return "ended"
			}
		}
	}
}
