package pair_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
	"github.com/pullgate/pullgate/pkg/criproxy/internal/pair"
)

// sockets returns two sockets that are connected with each other.
func sockets(tb testing.TB) (a, b net.Conn) {
	tb.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		if conns[i], err = net.FileConn(f); err != nil {
			tb.Fatal(err)
		}
		_ = f.Close()
	}
	return conns[0], conns[1]
}

// A once is a listener that accepts one connection.
type once struct {
	conns chan net.Conn
	done  chan struct{}
	close func()
}

func listenOnce(c net.Conn) *once {
	l := &once{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.done) })
	l.conns <- c
	return l
}

func (l *once) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *once) Close() error { l.close(); return nil }
func (*once) Addr() net.Addr { return &net.UnixAddr{} }

// between serves one client, whose end of the connection it returns, with dialed as the only connection to the runtime, and with another handler.
// end closes the connections and waits until the server has ended.
func (r *rig) between(dialed net.Conn, handle func(context.Context, *pair.Call) error) (client net.Conn, end func()) {
	var dials atomic.Int64
	config := r.config(func(context.Context) (net.Conn, error) {
		if dials.Add(1) > 1 {
			return nil, errors.New("only one connection")
		}
		return dialed, nil
	})
	routes := config.Route
	config.Route = func(method string) *pair.Route {
		route := *routes(method)
		if route.Handle != nil {
			route.Handle = handle
		}
		return &route
	}
	server := pair.NewServer(config)
	client, accepted := sockets(r.t)
	proxied := make(chan error, 1)
	go func() { proxied <- server.Serve(listenOnce(accepted)) }()
	return client, func() {
		_ = client.Close()
		ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
		defer cancel()
		server.Shutdown(ctx)
		if err := <-proxied; err != nil {
			r.t.Errorf("Serve = %v", err)
		}
		if dials.Load() == 0 {
			_ = dialed.Close()
		}
	}
}

// A reading is one call as a reader of HTTP/2 has read it.
type reading struct {
	method   string
	metadata metadata.MD
	message  []byte // the first one; nil if there is none
	whole    bool   // it is all of the request
}

func (r *reading) String() string { return fmt.Sprintf("%s %v %q", r.method, r.metadata, r.message) }

// withoutPriority returns frames without PRIORITY and PRIORITY_UPDATE. Of a malformed one x/net ends the connection, while the first is an error of
// its stream alone (RFC 9113 6.3), and the second an extension (RFC 9218) that pairs ignore. Within a header block they are kept: there they are an error.
func withoutPriority(frames []byte) []byte {
	var kept []byte
	for open := false; len(frames) >= 9; {
		n := min(9+int(frames[0])<<16+int(frames[1])<<8+int(frames[2]), len(frames))
		if frames[3] != priority && frames[3] != priorityUpdate || open {
			kept = append(kept, frames[:n]...)
		}
		if frames[3] == headers || frames[3] == continuation {
			open = frames[4]&endHeaders == 0
		}
		frames = frames[n:]
	}
	return append(kept, frames...)
}

const priorityUpdate = 0x10

// readings reads the frames of a client as x/net does, on which grpc-go is built.
func readings(frames []byte) []*reading {
	fr := http2.NewFramer(io.Discard, bytes.NewReader(withoutPriority(frames)))
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	fr.SetMaxReadFrameSize(16384)
	var all []*reading
	byStream, bodies, ended := map[uint32]*reading{}, map[uint32][]byte{}, map[uint32]bool{}
	for {
		f, err := fr.ReadFrame()
		if errors.As(err, &http2.StreamError{}) {
			continue
		}
		if err != nil {
			break
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if byStream[f.StreamID] == nil {
				r := &reading{method: f.PseudoValue("path"), metadata: metadata.MD{}}
				for _, h := range f.Fields {
					if h.Name == ":authority" || !h.IsPseudo() {
						r.metadata.Append(h.Name, h.Value)
					}
				}
				byStream[f.StreamID] = r
				all = append(all, r)
			}
			ended[f.StreamID] = ended[f.StreamID] || f.StreamEnded()
		case *http2.DataFrame:
			if !ended[f.StreamID] {
				bodies[f.StreamID] = append(bodies[f.StreamID], f.Data()...)
				ended[f.StreamID] = f.StreamEnded()
			}
		}
	}
	for id, r := range byStream {
		if b := bodies[id]; len(b) >= 5 {
			if n := int(b[1])<<24 | int(b[2])<<16 | int(b[3])<<8 | int(b[4]); n <= len(b)-5 {
				r.message, r.whole = b[5:5+n], n == len(b)-5 && b[0] == 0 && ended[id]
			}
		}
	}
	return all
}

// readsAs reports whether a call that has arrived is one that was sent.
func (r *reading) readsAs(sent *reading) bool {
	if r.method != sent.method || r.message != nil && !bytes.Equal(r.message, sent.message) || r.whole && !sent.whole {
		return false
	}
	for key, values := range r.metadata {
		want := sent.metadata.Get(key)
		if len(want) == 0 && (key == ":authority" || key == "grpc-accept-encoding") {
			continue // of grpc-go itself
		}
		if len(want) != len(values) {
			return false
		}
		for i, value := range values {
			if raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(want[i], "=")); strings.HasSuffix(key, "-bin") && err == nil {
				want[i] = string(raw)
			}
			if value != want[i] {
				return false
			}
		}
	}
	return true
}

// arrivals are the calls that reach a runtime, or a handler.
type arrivals struct {
	mu  sync.Mutex
	all []*reading
}

func (a *arrivals) add(r *reading) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, r)
}

// A client may send any bytes: nothing panics, and each call that arrives at the runtime, as a server of grpc-go reads it, or at a
// handler, is one that the client has sent. No call with a handler arrives at the runtime.
func FuzzRequests(f *testing.F) {
	for _, c := range conformances() {
		if strings.HasPrefix(c.name, "closed") {
			continue // it reads
		}
		recorded := &recorder{}
		client := &strictClient{t: f, conn: recorded, fr: http2.NewFramer(recorded, recorded), next: 1}
		client.fr.AllowIllegalWrites = true
		client.enc = hpack.NewEncoder(&client.buf)
		c.do(client)
		f.Add(recorded.Bytes())
		client.call(local, []byte("next"))
		client.call(ahead, []byte("next"))
		f.Add(recorded.Bytes())
	}
	together := &recorder{}
	client := &strictClient{t: f, conn: together, fr: http2.NewFramer(together, together), next: 1}
	client.enc = hpack.NewEncoder(&client.buf)
	for _, method := range []string{bypassed, bypassed, ahead, observed, local, bypassed} {
		client.open(method, "x-call", fmt.Sprint(client.next))
	}
	for i, message := range []string{"pass", "handle", "pass", "pass", "local", "pass"} {
		_ = client.fr.WriteData(uint32(11-2*i), true, framed([]byte(message)))
	}
	f.Add(together.Bytes())
	f.Fuzz(func(t *testing.T, frames []byte) {
		frames = append(bytes.Clone(frames[:min(len(frames), 100_000)]), 0, 0, 8, ping, 0, 0, 0, 0, 0)
		frames = append(frames, "the end "...)
		var atRuntime, atHandler arrivals
		runtimeEnd, dialed := sockets(t)
		runtime := grpc.NewServer(grpc.ForceServerCodecV2(criproxytest.RawCodec{}), grpc.WaitForHandlers(true), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			r := &reading{}
			r.method, _ = grpc.MethodFromServerStream(s)
			r.metadata, _ = metadata.FromIncomingContext(s.Context())
			var in []byte
			if s.RecvMsg(&in) == nil {
				r.message = append([]byte{}, in...)
			}
			atRuntime.add(r)
			return nil
		}))
		served := make(chan struct{})
		go func() { defer close(served); _ = runtime.Serve(listenOnce(runtimeEnd)) }()
		rig := &rig{t: t, observed: make(chan []byte, 1000)}
		clientEnd, end := rig.between(dialed, func(ctx context.Context, c *pair.Call) error {
			md, _ := metadata.FromIncomingContext(ctx)
			atHandler.add(&reading{c.Method, md, append([]byte{}, c.Request...), true})
			return c.Send(c.Request)
		})
		routes := rig.config(nil).Route

		_ = clientEnd.SetDeadline(time.Now().Add(100 * time.Millisecond))
		go func() {
			b := append([]byte(http2.ClientPreface), 0, 0, 0, settings, 0, 0, 0, 0, 0)
			_, _ = clientEnd.Write(append(b, frames...))
		}()
		waitForEnd(clientEnd)
		end()
		runtime.Stop()
		<-served
		sent := readings(frames)
		check := func(where string, r *reading) {
			if !slices.ContainsFunc(sent, r.readsAs) {
				t.Errorf("%s arrived at the %s, and was not sent", r, where)
			}
		}
		for _, r := range atRuntime.all {
			check("runtime", r)
			if route := routes(r.method); route.Refuse != nil || route.Handle != nil && (route.Bypass == nil || r.message != nil && !passes(route, r.message)) {
				t.Errorf("%s arrived at the runtime, and should not", r)
			}
		}
		for _, r := range atHandler.all {
			check("handler", r)
		}
	})
}

func passes(route *pair.Route, request []byte) bool {
	way, _ := route.Bypass(request)
	return way != pair.Handled
}

// waitForEnd reads until the PING at the end is answered, or the connection ends.
func waitForEnd(c net.Conn) {
	fr := http2.NewFramer(io.Discard, c)
	fr.SetMaxReadFrameSize(1 << 20)
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		if p, ok := f.(*http2.PingFrame); ok && p.IsAck() && string(p.Data[:]) == "the end " {
			return
		}
	}
}

// A recorder is a connection that keeps what is written.
type recorder struct {
	net.Conn
	bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error)    { return r.Buffer.Write(b) }
func (*recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (*recorder) Close() error                     { return nil }
func (*recorder) SetReadDeadline(time.Time) error  { return nil }
func (*recorder) SetWriteDeadline(time.Time) error { return nil }

// A runtime may send any bytes: nothing panics or waits for ever, every call is counted once, and of what comes on the stream of a call that was
// sent ahead, nothing reaches the client but what its handler says.
func FuzzResponses(f *testing.F) {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	block := func(fields ...string) []byte {
		b.Reset()
		for i := 0; i < len(fields); i += 2 {
			_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
		return bytes.Clone(b.Bytes())
	}
	seed := func(write func(fr *http2.Framer)) {
		var out bytes.Buffer
		fr := http2.NewFramer(&out, nil)
		fr.AllowIllegalWrites = true
		write(fr)
		f.Add(out.Bytes())
	}
	header, trailer := block(":status", "200", "content-type", "application/grpc"), block("grpc-status", "0", "grpc-message", "")
	answer := func(fr *http2.Framer, id uint32) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: header, EndHeaders: true})
		_ = fr.WriteData(id, false, framed([]byte("answer")))
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: trailer, EndHeaders: true, EndStream: true})
	}
	for _, write := range []func(fr *http2.Framer){
		func(fr *http2.Framer) { answer(fr, 1) },
		func(fr *http2.Framer) { answer(fr, 1); answer(fr, 5); answer(fr, 7) },
		func(fr *http2.Framer) { answer(fr, 3) },  // a local call
		func(fr *http2.Framer) { answer(fr, 9) },  // a call that was sent ahead
		func(fr *http2.Framer) { answer(fr, 11) }, // no call
		func(fr *http2.Framer) { answer(fr, 9); answer(fr, 1); answer(fr, 9) },
		func(fr *http2.Framer) { _ = fr.WriteRSTStream(9, http2.ErrCodeNo); answer(fr, 9) },
		func(fr *http2.Framer) {
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 9, BlockFragment: header, EndHeaders: true})
			_ = fr.WriteData(9, false, make([]byte, 16384))
			_ = fr.WriteData(9, false, make([]byte, 16384))
			_ = fr.WriteData(9, false, make([]byte, 16384))
			_ = fr.WriteGoAway(1, http2.ErrCodeNo, nil)
		},
		func(fr *http2.Framer) { answer(fr, 5); answer(fr, 5) },
		func(fr *http2.Framer) { _ = fr.WriteSettingsAck(); _ = fr.WriteSettingsAck(); answer(fr, 1) },
		func(fr *http2.Framer) {
			_ = fr.WriteSettingsAck()
			_ = fr.WriteSettingsAck()
			_ = fr.WriteSettingsAck()
		},
		func(fr *http2.Framer) {
			_ = fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		},
		func(fr *http2.Framer) { _ = fr.WriteGoAway(1, http2.ErrCodeNo, nil); answer(fr, 1) },
		func(fr *http2.Framer) { _ = fr.WriteGoAway(1<<31-1, http2.ErrCodeNo, []byte("x")); answer(fr, 1) },
		func(fr *http2.Framer) {
			_ = fr.WriteRSTStream(1, http2.ErrCodeRefusedStream)
			_ = fr.WriteRSTStream(5, http2.ErrCodeNo)
		},
		func(fr *http2.Framer) { _ = fr.WritePing(false, [8]byte{1}); _ = fr.WritePing(true, [8]byte{2}) },
		func(fr *http2.Framer) {
			_ = fr.WriteWindowUpdate(0, 1)
			_ = fr.WriteWindowUpdate(1, 1)
			_ = fr.WriteWindowUpdate(0, 1<<31-1)
		},
		func(fr *http2.Framer) {
			_ = fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: header, EndHeaders: true})
		},
		func(fr *http2.Framer) {
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header[:1]})
			_ = fr.WriteContinuation(1, false, header[1:])
			_ = fr.WriteContinuation(1, true, nil)
		},
		func(fr *http2.Framer) {
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header[:1]})
			_ = fr.WritePing(false, [8]byte{})
		},
		func(fr *http2.Framer) { _ = fr.WriteDataPadded(1, true, framed(nil), make([]byte, 9)) },
		func(fr *http2.Framer) { _ = fr.WriteRawFrame(0x16, 0, 1, []byte("x")); answer(fr, 1) },
	} {
		seed(write)
	}
	f.Fuzz(func(t *testing.T, frames []byte) {
		frames = frames[:min(len(frames), 100_000)]
		runtimeEnd, dialed := sockets(t)
		var dials atomic.Int64
		rig := &rig{t: t, observed: make(chan []byte, 1000), hides: true}
		server := pair.NewServer(rig.config(func(context.Context) (net.Conn, error) {
			if dials.Add(1) > 1 {
				return nil, errors.New("only one connection")
			}
			return dialed, nil
		}))
		clientEnd, accepted := sockets(t)
		proxied := make(chan error, 1)
		go func() { proxied <- server.Serve(listenOnce(accepted)) }()
		client := &strictClient{t: t, conn: clientEnd, fr: http2.NewFramer(clientEnd, clientEnd), next: 1}
		client.enc = hpack.NewEncoder(&client.buf)
		_, _ = io.WriteString(clientEnd, http2.ClientPreface)
		_ = client.fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 100})
		client.call(forwarded, []byte("x"))
		client.call(local, []byte("x"))
		client.call(observed, []byte("x"))
		client.open("/test.Service/Stream")
		client.call(ahead, []byte("x"))

		var received bytes.Buffer
		var ends sync.WaitGroup
		_ = runtimeEnd.SetDeadline(time.Now().Add(time.Second))
		asked := make(chan struct{})
		ends.Go(func() {
			untilStream(runtimeEnd, 9)
			close(asked)
			_, _ = io.Copy(io.Discard, runtimeEnd)
		})
		ends.Go(func() { _, _ = io.Copy(&received, clientEnd) })
		_, _ = runtimeEnd.Write([]byte{0, 0, 0, settings, 0, 0, 0, 0, 0})
		<-asked // a runtime answers no call before it has it
		_ = runtimeEnd.SetDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = runtimeEnd.Write(frames)
		_ = client.fr.WritePing(false, [8]byte{})
		time.Sleep(2 * time.Millisecond) // for both to read
		_ = runtimeEnd.Close()
		_ = clientEnd.Close()
		ends.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		server.Shutdown(ctx)
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("Shutdown took %v", took)
		}
		if err := <-proxied; err != nil {
			t.Errorf("Serve = %v", err)
		}
		if dials.Load() == 0 {
			_ = dialed.Close()
		}
		if got := rig.ended.Load(); got > 5 {
			t.Errorf("%d calls counted; there were 5", got)
		}
		if rig.panics.Load() > 0 {
			t.Error("a panic")
		}
		onlyHidden(t, received.Bytes(), 9)
	})
}

// untilStream reads what a pair sends to a runtime, until a frame on a stream.
func untilStream(runtime io.Reader, stream uint32) {
	if _, err := io.ReadFull(runtime, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	fr := http2.NewFramer(io.Discard, runtime)
	for {
		if f, err := fr.ReadFrame(); err != nil || f.Header().StreamID == stream {
			return
		}
	}
}

// onlyHidden sees that a client has got nothing on a stream but the answer of a handler that hides.
func onlyHidden(t *testing.T, frames []byte, stream uint32) {
	t.Helper()
	fr := http2.NewFramer(io.Discard, bytes.NewReader(frames))
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		if f.Header().StreamID != stream {
			continue
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			if string(f.Data()) != string(framed([]byte("hidden"))) {
				t.Errorf("client has DATA %q on the stream of a call that was sent ahead", f.Data())
			}
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				if !slices.Contains([]string{":status 200", "content-type application/grpc", "grpc-status 0", "grpc-message "}, h.Name+" "+h.Value) {
					t.Errorf("client has %v on the stream of a call that was sent ahead", h)
				}
			}
		default:
			t.Errorf("client has %v on the stream of a call that was sent ahead", f)
		}
	}
}
