package pair_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
	"github.com/pullgate/pullgate/pkg/criproxy/internal/pair"
)

// newRigWithWriteLimit returns a rig whose runtime may take no bytes for a moment only.
func newRigWithWriteLimit(t *testing.T, path string, limit time.Duration) *rig {
	t.Helper()
	r := newRigBefore(t, path)
	r.replace(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.backend.path)
	}, limit)
	return r
}

// replace replaces the server, before the first connection to it.
func (r *rig) replace(dial func(context.Context) (net.Conn, error), writeLimit time.Duration) {
	r.t.Helper()
	r.server.Shutdown(r.t.Context())
	if err := <-r.served; err != nil {
		r.t.Fatal(err)
	}
	r.server = pair.NewServer(r.config(dial))
	r.server.SetWriteLimit(writeLimit)
	r.serve()
}

// ends waits until there is no pair.
func (r *rig) ends() {
	r.t.Helper()
	var pairs int
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if pairs, _, _ = r.server.Load(); pairs == 0 {
			return
		}
	}
	r.t.Errorf("%d pairs are left of clients that are gone", pairs)
}

// A runtime that takes no bytes keeps no pair of a client that is gone.
func TestRuntimeThatDoesNotReadKeepsNoPair(t *testing.T) {
	l := criproxytest.Listen(t, t.TempDir()+"/s")
	defer func() { _ = l.Close() }()
	r := newRigWithWriteLimit(t, l.Addr().String(), time.Second)
	c := newStrictClient(t, r.path)
	runtime, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = runtime.Close() }()
	if err := http2.NewFramer(runtime, runtime).WriteSettings(); err != nil {
		t.Fatal(err)
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	for id := c.open(forwarded); c.fr.WriteData(id, false, make([]byte, 16384)) == nil; {
	}
	_ = c.conn.Close()
	r.ends()
}

// A client may make its pair wait in both directions: responses for window that an answer of a handler has used, requests for a
// server of grpc-go, which does not read while too many of its own frames are not taken. Nothing is left of it when it is gone.
func TestClientThatMakesBothDirectionsWait(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the limit of a write")
	}
	r := newRigWithWriteLimit(t, "", 4*time.Second) // longer than the client takes to fill the sockets
	r.backend.start(t)
	c := newStrictClient(t, r.path, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	if got := c.outcome(c.call(local, nil, "do-size", "40000")); got != answered {
		t.Fatal(got)
	}
	c.discard()
	c.call(forwarded, nil, "do-size", "60000")
	for end := time.Now().Add(10 * time.Second); r.server.Waits() == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	for range 90 {
		_ = c.fr.WriteSettings()
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	for c.next < 200_000 {
		id := c.call("/test.Service/Stream", nil)
		_ = c.conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		if id > 1800 && c.fr.WriteRSTStream(id-1800, http2.ErrCodeCancel) != nil {
			break
		}
	}
	if c.next >= 200_000 {
		t.Error("requests did not wait for the runtime: the test shows nothing")
	}
	_ = c.conn.Close()
	r.ends()
}

// Calls whose runtime is absent are limited as those of handlers are: a client that does not read their answers may
// reset them, which does not end the goroutines that wait to send.
func TestUnreadAnswersOfAnAbsentRuntimeAreLimited(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	r := newRig(t, false)
	before := usage()
	c := newStrictClient(t, r.path)
	_ = c.conn.SetWriteDeadline(time.Now().Add(30 * time.Second))
	for range 20 {
		first := c.next
		for range 1000 {
			c.head(c.next, endStream, request(forwarded)...)
			c.next += 2
		}
		r.steady() // their answers wait
		for id := first; id < c.next; id += 2 {
			_ = c.fr.WriteRSTStream(id, http2.ErrCodeCancel)
		}
	}
	if _, calls, _ := r.server.Load(); calls > 2048 {
		t.Errorf("%d calls of one client are kept; want about 1024", calls)
	}
	_ = c.conn.Close()
	r.settled()
	before.returnsTo(t, "calls whose answers are not read")
}

// Frames of SETTINGS cost about as much as their bytes, however many streams there are.
func TestManySettingsInAFrameAreCheap(t *testing.T) {
	r := newRig(t, true)
	c := newStrictClient(t, r.path, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.discard()
	const calls = 1000
	for range calls {
		c.call(local, []byte("x")) // its answer waits for window
	}
	r.opens(calls)
	const most = 16384 / 6
	opened := calls
	frames := func(values int) time.Duration {
		frame := bytes.Repeat([]byte{0, 4, 0, 0, 0, 0}, values)
		began := time.Now()
		for range 20 {
			c.raw(settings, 0, 0, frame...)
		}
		c.call(local, nil)
		opened++
		r.opens(opened)
		return time.Since(began)
	}
	// Side by side, because a busy machine slows down both. If each value cost as much as a frame, it would be 2730 times as long.
	if one, all := frames(1), frames(most); all > 100*one {
		t.Errorf("20 SETTINGS frames of %d values took %v, of one value %v; want about the same", most, all, one)
	}
}

// Header lists that are kept for handlers are bounded for each connection. By HPACK a list of 256 KiB costs its client 100 bytes.
func TestBytesOfHeaderListsAreBounded(t *testing.T) {
	r := newRig(t, true)
	before := usage()
	c := newStrictClient(t, r.path)
	for i := range 1000 {
		b := c.block(request(local, "do-hang", "1", "x-bin", strings.Repeat("z", 3900))...)
		const newest = 0x80 | 62
		c.raw(headers, endHeaders, uint32(2*i+1), append(b, bytes.Repeat([]byte{newest}, 60)...)...)
	}
	if got := c.outcome(2*1000 - 1); got != resetting+"REFUSED_STREAM" {
		t.Errorf("call with a large header list after 999 of them = %s; want it refused", got)
	}
	if now := usage(); now.heap > before.heap+150 {
		t.Errorf("heap has grown from %d to %d MB", before.heap, now.heap)
	}
	_ = c.conn.Close()
	r.settled()
	before.returnsTo(t, "large header lists")
}

// Answers of handlers that the client does not take are bounded for each connection.
func TestBytesOfUnreadAnswersAreBounded(t *testing.T) {
	r := newRig(t, true)
	before := usage()
	c := newStrictClient(t, r.path, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.discard()
	for range 200 {
		c.call(local, nil, "do-size", fmt.Sprint(1<<20))
	}
	var calls, kept int
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && (kept < 60<<20 || calls > 70); time.Sleep(time.Millisecond) {
		_, calls, kept = r.server.Load()
	}
	now := usage()
	for end := time.Now().Add(10 * time.Second); now.heap > before.heap+100 && time.Now().Before(end); now = usage() {
		time.Sleep(10 * time.Millisecond) // some handlers still have an answer that was not accepted
	}
	if kept > 65<<20 || now.heap > before.heap+100 {
		t.Errorf("%d bytes of 200 MiB are kept, and the heap has grown from %d to %d MB; want 64 MiB", kept, before.heap, now.heap)
	}
	_ = c.conn.Close()
	r.settled()
	before.returnsTo(t, "answers that are not read")
}

// Handlers read the encoding of protobuf. A runtime may have a codec for another content type, and would read another message.
func TestContentTypeOfAnotherCodec(t *testing.T) {
	r := newRig(t, true)
	for _, method := range []string{local, bypassed, observed} {
		for _, contentType := range []string{"application/grpc+json", "application/grpc;json", "application/grpc+PROTO", "application/grpc+"} {
			c := newStrictClient(t, r.path)
			c.head(1, 0, ":method", "POST", ":scheme", "http", ":path", method, ":authority", "localhost", "content-type", contentType, "te", "trailers")
			c.raw(data, endStream, 1, framed([]byte("pass"))...)
			if got := c.outcome(1); got != resetting+protocol {
				t.Errorf("%s with content type %s = %s; want it reset", method, contentType, got)
			}
		}
	}
	if n := r.backend.calls.Load(); n != 0 {
		t.Errorf("%d calls reached the runtime", n)
	}
}

// A client that is one too many does not reach the runtime, not even for a moment.
func TestConnectionsThatAreTooManyAreNotMade(t *testing.T) {
	const limit, more = 1024, 100
	r := newRig(t, true)
	var dialled atomic.Int64
	r.replace(func(ctx context.Context) (net.Conn, error) {
		dialled.Add(1)
		return (&net.Dialer{}).DialContext(ctx, "unix", r.backend.path)
	}, time.Minute)
	clients := make([]*strictClient, limit+more)
	for i := range clients {
		clients[i] = connect(t, r.path)
	}
	closed := 0
	for _, c := range clients {
		_ = c.conn.SetReadDeadline(time.Now().Add(4 * time.Second))
		if _, err := c.conn.Read(make([]byte, 1)); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			closed++
		}
	}
	if closed != more {
		t.Errorf("%d of %d connections are closed; want %d", closed, len(clients), more)
	}
	if n := dialled.Load(); n > limit {
		t.Errorf("%d connections to the runtime were made for %d clients", n, limit)
	}
}

// Connections on which nothing was called, which any client may have, do not delay the attempts to find an absent runtime.
func TestIdleClientsDoNotDelayTheReturnOfTheRuntime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	r := newRig(t, true)
	var dialled atomic.Int64
	r.replace(func(ctx context.Context) (net.Conn, error) {
		dialled.Add(1)
		return (&net.Dialer{}).DialContext(ctx, "unix", r.backend.path)
	}, time.Minute)
	const clients = 20
	for range clients {
		c := newStrictClient(t, r.path)
		c.mustRead() // it is paired
	}
	r.backend.server.Stop()
	attempts := func(limit time.Duration, want int64) {
		t.Helper()
		for end := time.Now().Add(limit); dialled.Load() < want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d attempts in %v; want %d", dialled.Load(), limit, want)
			}
		}
	}
	attempts(10*time.Second, 2*clients+1) // each pair has tried
	dialled.Store(0)
	attempts(2*time.Second, 10) // about 20 are made
}

// A client may give no window before all of it is used. An answer that was kept from it must not take a part that it never uses.
func TestClientThatGivesWindowWhenAllIsUsed(t *testing.T) {
	r := newRig(t, true)
	c := newStrictClient(t, r.path, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	const all = 65535
	left := uint32(all)
	ends := func(id uint32) {
		for {
			_ = c.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			f, err := c.fr.ReadFrame()
			if err != nil {
				t.Fatalf("stream %d does not end; %d bytes of the window are left: %v", id, left, err)
			}
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if !f.IsAck() {
					_ = c.fr.WriteSettingsAck()
				}
			case *http2.DataFrame:
				if left -= f.Length; left == 0 {
					left = all
					_ = c.fr.WriteWindowUpdate(0, all)
				}
			case *http2.MetaHeadersFrame:
				if f.StreamID == id && f.StreamEnded() {
					return
				}
			}
		}
	}
	ends(c.call(ahead, nil, "do-size", "16000", "do-hide", "1"))
	ends(c.call(forwarded, nil, "do-size", "200000"))
}
