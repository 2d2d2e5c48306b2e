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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Calls of every kind at once, small and large, some cancelled, under three ways of flow control.
func TestMixedLoad(t *testing.T) {
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
					for i := range 40 {
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
