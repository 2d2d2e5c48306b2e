package pair_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Calls of every kind at once, small and large, some cancelled, under three ways of flow control.
func TestMixedLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	calls := 40
	if raced {
		calls = 15
	}
	r := newRig(t, true)
	before := usage()
	for name, options := range map[string][]grpc.DialOption{
		"measured windows": nil,
		"large windows":    {grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(4 << 20)},
		"small windows":    {grpc.WithStaticConnWindowSize(65535), grpc.WithStaticStreamWindowSize(65535)},
	} {
		t.Run(name, func(t *testing.T) {
			cc := dial(t, r.path, options...)
			var callers sync.WaitGroup
			for caller := range 32 {
				callers.Go(func() {
					for i := range calls {
						if err := anyCall(t.Context(), cc, fmt.Appendf(nil, "%d %d", caller, i)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for range 4 {
				callers.Go(func() {
					if err := stream(t.Context(), cc, 2000, 500); err != nil {
						t.Error(err)
					}
				})
			}
			callers.Wait()
			r.settled()
			_ = cc.Close()
		})
	}
	if n := r.backend.local.Load(); n != 0 {
		t.Errorf("%d calls that have a handler reached the runtime", n)
	}
	before.returnsTo(t, "a mixed load")
}

// anyCall makes one call of a random kind.
func anyCall(ctx context.Context, cc *grpc.ClientConn, in []byte) error {
	method := []string{forwarded, local, bypassed, observed, ahead}[rand.IntN(5)]
	in = append([]byte([]string{"pass", "handle"}[rand.IntN(2)]), in...)
	switch rand.IntN(8) {
	case 0:
		ctx, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(2000))*time.Microsecond)
		defer cancel()
		_, _ = call(ctx, cc, method, in, "do-sleep", "1")
	case 1:
		n := 1 + rand.IntN(300_000)
		if out, err := call(ctx, cc, method, in, "do-size", fmt.Sprint(n)); err != nil || len(out) != n {
			return fmt.Errorf("%s of %d bytes = %d, %w", method, n, len(out), err)
		}
	case 2:
		in = bytes.Repeat([]byte("x"), 1+rand.IntN(300_000))
		if out, err := call(ctx, cc, method, in); err != nil || !bytes.Equal(out, in) {
			return fmt.Errorf("%s with %d bytes = %d, %w", method, len(in), len(out), err)
		}
	case 3:
		if _, err := call(ctx, cc, method, in, "do-fail", "7"); status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "nö %\n" {
			return fmt.Errorf("%s that fails = %w", method, err)
		}
	case 4:
		if _, err := call(ctx, cc, "/other.Service/Method", in); status.Code(err) != codes.Unimplemented {
			return fmt.Errorf("call of another service = %w", err)
		}
	default:
		if out, err := call(ctx, cc, method, in); err != nil || !bytes.Equal(out, in) {
			return fmt.Errorf("%s = %q, %w", method, out, err)
		}
	}
	return nil
}

// stream reads n messages of a stream.
func stream(ctx context.Context, cc *grpc.ClientConn, n, size int) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "do-n", fmt.Sprint(n))
	s, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Service/Stream")
	if err != nil {
		return err
	}
	in := bytes.Repeat([]byte("e"), size)
	if err := errors.Join(s.SendMsg(&in), s.CloseSend()); err != nil {
		return err
	}
	for got := 0; ; got++ {
		var out []byte
		if err := s.RecvMsg(&out); err != nil {
			if !errors.Is(err, io.EOF) || got != n {
				return fmt.Errorf("stream ended after %d of %d messages: %w", got, n, err)
			}
			return nil
		}
	}
}

func TestLargestMessages(t *testing.T) {
	r := newRig(t, true)
	cc := dial(t, r.path)
	in := bytes.Repeat([]byte("x"), 16<<20)
	for _, method := range []string{forwarded, local, bypassed, observed, ahead} {
		if out, err := call(t.Context(), cc, method, in); err != nil || !bytes.Equal(out, in) {
			t.Errorf("%s of 16 MiB = %d bytes, %v", method, len(out), err)
		}
		if _, err := call(t.Context(), cc, method, append(slices.Clone(in), 'x')); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s of more than 16 MiB = %v; want ResourceExhausted", method, err)
		}
		if _, err := call(t.Context(), cc, method, []byte("after")); err != nil {
			t.Errorf("%s after it = %v", method, err)
		}
	}
	r.settled()
}

func TestThousandConcurrentCalls(t *testing.T) {
	r := newRig(t, true)
	cc := dial(t, r.path)
	for _, method := range []string{forwarded, local, ahead} {
		var callers sync.WaitGroup
		for range 1000 {
			callers.Go(func() {
				if _, err := call(t.Context(), cc, method, []byte("x"), "do-sleep", "100"); err != nil {
					t.Errorf("%s = %v", method, err)
				}
			})
		}
		callers.Wait()
	}
	r.settled()
}

// A client of grpc-go measures its windows by a PING for each answer. A runtime that has sent nothing since the last PING takes that for
// abuse and ends the connection.
func TestLocalAnswersCauseNoPingsToTheRuntime(t *testing.T) {
	r := newRig(t, true)
	cc := dial(t, r.path)
	for i := range 2000 {
		method := local
		if i > 1500 && i%2 == 0 {
			method = forwarded
		}
		if _, err := call(t.Context(), cc, method, []byte("x")); err != nil {
			t.Fatalf("call %d = %v", i, err)
		}
	}
	if n, _, _ := r.server.Load(); n != 1 {
		t.Errorf("%d connections; want the first one only", n)
	}
}

func TestLocalCallThatEndsEarly(t *testing.T) {
	r := newRig(t, true)
	cc := dial(t, r.path)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := call(ctx, cc, local, nil, "do-hang", "1"); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("call whose deadline passes = %v", err)
	}
	canceled, end := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, end)
	if _, err := call(canceled, cc, local, nil, "do-hang", "1"); status.Code(err) != codes.Canceled {
		t.Errorf("call that is cancelled = %v", err)
	}
	if _, err := call(t.Context(), cc, local, nil, "do-panic", "1"); status.Code(err) != codes.Internal || r.panics.Load() != 1 {
		t.Errorf("call that panics = %v, %d panics", err, r.panics.Load())
	}
	r.settled()
	if got := r.ended.Load(); got != 3 {
		t.Errorf("%d calls counted; want 3", got)
	}
}

// A client that still sends when its call ends gets the end that the runtime meant, however late that is written.
func TestCallsThatEndBeforeTheirRequests(t *testing.T) {
	const refused = "RST_STREAM REFUSED_STREAM"
	for _, tc := range []struct {
		name, want string
		end        func(s *scripted, id uint32)
	}{
		{"status and RST_STREAM", "grpc-status 8", func(s *scripted, id uint32) {
			s.header(id)
			s.trailer(id, "8")
			_ = s.fr.WriteRSTStream(id, http2.ErrCodeNo)
		}},
		{"RST_STREAM", refused, func(s *scripted, id uint32) { _ = s.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream) }},
		{"GOAWAY", refused, func(s *scripted, _ uint32) { _ = s.fr.WriteGoAway(0, http2.ErrCodeNo, nil) }},
		{"lost runtime", "grpc-status 14", func(s *scripted, _ uint32) { _ = s.conn.Close() }},
	} {
		for rest, send := range map[string]func(c *strictClient, id uint32){
			"DATA":     func(c *strictClient, id uint32) { _ = c.fr.WriteData(id, true, []byte("x")) },
			"trailers": func(c *strictClient, id uint32) { c.head(id, endStream, "x-trailer", "t") },
		} {
			t.Run(tc.name+" and "+rest, func(t *testing.T) {
				r, c, s := newScripted(t)
				c.mustRead() // SETTINGS of the runtime
				id := c.open(forwarded)
				_ = c.fr.WriteData(id, false, framed([]byte("xx"))[:6])
				s.until(id, http2.FrameData)
				release, err := r.server.HoldWrites()
				if err != nil {
					t.Fatal(err)
				}
				defer release()
				s.atOnce(func() { tc.end(s, id) })
				r.settled() // the end is read, and not written
				send(c, id)
				for i := range 2 { // when the second call is open, what was sent before the first is handled
					c.call(local, nil)
					r.opens(i + 1)
				}
				release()
				got := make([]string, 1)
				c.collect(got, func(http2.Frame) bool { return got[0] != "" || t.Failed() })
				if got[0] != tc.want {
					t.Errorf("%s; want %s", got[0], tc.want)
				}
			})
		}
	}
}

// A bypass decides by the request; an observer has seen the answer when the client has it.
func TestBypassAndObserver(t *testing.T) {
	r := newRig(t, true)
	cc := dial(t, r.path)
	for request, want := range map[string]int64{"handle me": 1, "pass me": 0} {
		before := r.ran.Load()
		if out, err := call(t.Context(), cc, bypassed, []byte(request)); err != nil || string(out) != request {
			t.Errorf("%q = %q, %v", request, out, err)
		}
		if got := r.ran.Load() - before; got != want {
			t.Errorf("%q ran %d handlers; want %d", request, got, want)
		}
	}
	for _, size := range []int{1, 10_000, 100_000, 3 << 20} {
		if _, err := call(t.Context(), cc, observed, []byte("x"), "do-size", fmt.Sprint(size)); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-r.observed:
			if len(got) != size {
				t.Errorf("observer has %d bytes; want %d", len(got), size)
			}
		default:
			t.Errorf("the client has an answer of %d bytes before the observer", size)
		}
	}
	if _, err := call(t.Context(), cc, observed, []byte("x"), "do-fail", "5"); status.Code(err) != codes.NotFound || len(r.observed) != 0 {
		t.Errorf("call that fails = %v, %d observed", err, len(r.observed))
	}
	r.settled()
}

// A call whose request comes in pieces has its handler, and the bypass is not asked.
func TestRequestInPiecesIsHandled(t *testing.T) {
	r := newRig(t, true)
	c := newStrictClient(t, r.path)
	id := c.open(bypassed)
	for i, b := range framed([]byte("pass")) {
		if err := c.fr.WriteData(id, i == 8, []byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.outcome(id); got != "grpc-status 0" || r.ran.Load() != 1 || r.backend.calls.Load() != 0 {
		t.Errorf("%s, %d handled, %d forwarded; want it handled", got, r.ran.Load(), r.backend.calls.Load())
	}
	other := c.open(bypassed) // held while another call comes
	next := c.call(forwarded, []byte("x"))
	if got := c.outcome(next); got != "grpc-status 0" {
		t.Errorf("call behind a held one: %s", got)
	}
	if err := c.fr.WriteData(other, true, framed([]byte("pass"))); err != nil {
		t.Fatal(err)
	}
	if got := c.outcome(other); got != "grpc-status 0" || r.ran.Load() != 2 {
		t.Errorf("%s, %d handled; want the second one handled", got, r.ran.Load())
	}
}

// A client with many calls sends their HEADERS first. Those that the bypass passes reach the runtime, in the order of their streams.
func TestCallsThatAreHeldTogether(t *testing.T) {
	const ok = "grpc-status 0"
	request := func(c *strictClient, id uint32, message string) {
		_ = c.fr.WriteData(id, true, framed([]byte(message)))
	}
	for _, tc := range []struct {
		name               string
		writes             []func(c *strictClient) // each is one write
		outcomes           []string                // of the streams, in their order
		handled, forwarded int64
	}{
		{"HEADERS first", []func(c *strictClient){func(c *strictClient) {
			c.open(bypassed)
			c.open(observed)
			c.open(bypassed)
			for _, id := range []uint32{1, 3, 5} {
				request(c, id, "pass")
			}
		}}, []string{ok, ok, ok}, 0, 3},
		{"requests in reverse order", []func(c *strictClient){func(c *strictClient) {
			c.open(bypassed)
			c.open(bypassed)
			c.open(bypassed)
			for _, id := range []uint32{5, 3, 1} {
				request(c, id, "pass")
			}
		}}, []string{ok, ok, ok}, 0, 3},
		{"one is for the handler", []func(c *strictClient){func(c *strictClient) {
			c.open(bypassed)
			c.open(bypassed)
			c.open(bypassed)
			request(c, 1, "pass")
			request(c, 3, "handle")
			request(c, 5, "pass")
		}}, []string{ok, ok, ok}, 1, 2},
		{"a request comes later than the next one", []func(c *strictClient){
			func(c *strictClient) { c.open(bypassed); c.open(bypassed); request(c, 3, "pass") },
			func(c *strictClient) { request(c, 1, "pass") },
		}, []string{ok, ok}, 1, 1},
		{"requests come later, in order", []func(c *strictClient){
			func(c *strictClient) { c.open(bypassed); c.open(bypassed) },
			func(c *strictClient) { request(c, 1, "pass") },
			func(c *strictClient) { request(c, 3, "pass") },
		}, []string{ok, ok}, 0, 2},
		{"a forwarded call before the request", []func(c *strictClient){func(c *strictClient) {
			c.open(bypassed)
			c.call(forwarded, []byte("x"))
			request(c, 1, "pass")
		}}, []string{ok, ok}, 1, 1},
		{"a forwarded call after the request", []func(c *strictClient){func(c *strictClient) {
			c.open(bypassed)
			c.open(bypassed)
			request(c, 1, "pass")
			request(c, 3, "pass")
			c.call(forwarded, []byte("x"))
		}}, []string{ok, ok, ok}, 0, 3},
		{"a local call among them", []func(c *strictClient){func(c *strictClient) {
			c.open(bypassed)
			c.call(local, []byte("x"))
			c.open(bypassed)
			request(c, 1, "pass")
			request(c, 5, "pass")
		}}, []string{ok, ok, ok}, 1, 2},
		{"one is reset", []func(c *strictClient){func(c *strictClient) {
			c.open(bypassed)
			c.open(bypassed)
			request(c, 1, "pass")
			_ = c.fr.WriteRSTStream(1, http2.ErrCodeCancel)
			request(c, 3, "pass")
		}}, []string{"", ok}, 0, 1},
		{"DATA after the end", []func(c *strictClient){func(c *strictClient) {
			c.open(bypassed)
			c.open(bypassed)
			request(c, 1, "pass")
			request(c, 1, "pass")
			request(c, 3, "pass")
		}}, []string{"RST_STREAM STREAM_CLOSED", ok}, 0, 1},
		{"trailers after the end", []func(c *strictClient){func(c *strictClient) {
			c.open(bypassed)
			c.open(bypassed)
			request(c, 1, "pass")
			_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block("x-t", "1"), EndHeaders: true, EndStream: true})
			request(c, 3, "pass")
		}}, []string{"RST_STREAM STREAM_CLOSED", ok}, 0, 1},
		{"a wrong length", []func(c *strictClient){func(c *strictClient) {
			c.open(bypassed, "content-length", "3")
			c.open(bypassed)
			request(c, 1, "pass")
			request(c, 3, "pass")
		}}, []string{"RST_STREAM PROTOCOL_ERROR", ok}, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, true)
			c := newStrictClient(t, r.path)
			got := make([]string, len(tc.outcomes))
			for i, write := range tc.writes {
				c.atOnce(write)
				_ = c.fr.WritePing(false, [8]byte{byte(i)})
				c.collect(got, func(f http2.Frame) bool { // until it is read
					p, ok := f.(*http2.PingFrame)
					return ok && p.IsAck() && p.Data == [8]byte{byte(i)}
				})
			}
			if !slices.Equal(got, tc.outcomes) {
				c.collect(got, func(http2.Frame) bool { return slices.Equal(got, tc.outcomes) })
			}
			if !slices.Equal(got, tc.outcomes) {
				t.Errorf("%q; want %q", got, tc.outcomes)
			}
			r.settled()
			// A call that was reset may have reached the runtime before.
			if handled, forwarded := r.ran.Load(), r.backend.calls.Load(); handled != tc.handled || forwarded < tc.forwarded || forwarded > int64(len(tc.outcomes))-handled {
				t.Errorf("%d handled, %d forwarded; want %d and %d", handled, forwarded, tc.handled, tc.forwarded)
			}
		})
	}
}

// atOnce sends the frames of several writes in one.
func (c *strictClient) atOnce(write func(c *strictClient)) {
	var all bytes.Buffer
	single := c.fr
	c.fr = http2.NewFramer(&all, nil)
	c.fr.AllowIllegalWrites = true
	write(c)
	c.fr = single
	if _, err := c.conn.Write(all.Bytes()); err != nil {
		c.t.Fatal(err)
	}
}

// collect reads until a frame, and notes how the first streams end.
func (c *strictClient) collect(outcomes []string, until func(f http2.Frame) bool) {
	for {
		f, err := c.read()
		if err != nil {
			c.t.Error(err)
			return
		}
		if at := int(f.Header().StreamID-1) / 2; f.Header().StreamID > 0 && at < len(outcomes) {
			switch f := f.(type) {
			case *http2.RSTStreamFrame:
				outcomes[at] = "RST_STREAM " + f.ErrCode.String()
			case *http2.MetaHeadersFrame:
				if f.StreamEnded() {
					outcomes[at] = "grpc-status " + fieldOf(f, "grpc-status")
				}
			}
		}
		if until(f) {
			return
		}
	}
}

func fieldOf(f *http2.MetaHeadersFrame, name string) string {
	for _, h := range f.Fields {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}
