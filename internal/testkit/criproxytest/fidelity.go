package criproxytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/testkit"
)

const (
	// callLimit is the deadline of calls that have one, and bounds every wait.
	callLimit = 30 * time.Second
	// shortLimit is a deadline that passes.
	shortLimit = 200 * time.Millisecond
)

const limit = 16 << 20

// observed is everything that both ends see of one call.
type observed struct {
	Header, Trailer metadata.MD
	HeaderFirst     bool     // the header came before the client had sent anything
	Messages        []string // see inShort
	Code, Text      string
	Details         []string
	Runtime         Seen
}

// Fidelity makes every call of the table twice, directly to the echo and through the proxy at an endpoint, and compares
// everything that both ends see; then all of them at once. The proxy may be another program. Under the race detector
// the heavy rows run with the content types of containerd alone; make race runs them with those of CRI-O without it.
func Fidelity(t *testing.T, echo *Echo, proxied string) {
	t.Helper()
	direct, through := link(t, echo.Endpoint()), link(t, proxied)
	table := slices.DeleteFunc(rows(), func(r row) bool {
		return echo.exact && (r.subtype != "" || testkit.Raced && r.heavy())
	})
	for _, r := range table {
		t.Run(r.name, func(t *testing.T) { compare(t, echo, direct, through, r) })
	}
	t.Run("at once", func(t *testing.T) {
		for _, r := range table {
			if r.heavy() {
				continue
			}
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				compare(t, echo, direct, through, r)
			})
		}
	})
}

func (r row) heavy() bool {
	size := 0
	for _, m := range r.send {
		size += len(m)
	}
	return max(size, r.do.Size) >= limit
}

func compare(t *testing.T, echo *Echo, direct, through *grpc.ClientConn, r row) {
	t.Helper()
	want, got := observe(t, echo, direct, r), observe(t, echo, through, r)
	if want.Code == "Unavailable" {
		t.Fatalf("the direct call did not get through: %s", want.Text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("direct and proxied differ (-direct +proxied):\n%.4000s", diff)
	}
}

func link(tb testing.TB, endpoint string) *grpc.ClientConn {
	tb.Helper()
	cc, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(RawCodec{}), grpc.MaxCallRecvMsgSize(limit)))
	testkit.Must(tb, err)
	tb.Cleanup(func() { _ = cc.Close() }) // a row may have closed it
	return cc
}

func observe(t *testing.T, echo *Echo, cc *grpc.ClientConn, r row) observed {
	t.Helper()
	if r.cut == disconnects {
		cc = link(t, cc.Target()) // the other rows need theirs
	}
	id := fmt.Sprint(echo.numbers.Add(1))
	call := echo.of(id)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer time.AfterFunc(callLimit, cancel).Stop() // a call that hangs fails its row and no other
	if r.do.Deadline > 0 {
		ctx, cancel = context.WithTimeout(ctx, r.do.Deadline)
		defer cancel()
	}
	ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs(append([]string{"call", id, "do", r.do.String()}, r.md...)...))
	end := map[cut]func(){noCut: func() {}, cancels: cancel, disconnects: func() { _ = cc.Close() }}[r.cut]
	answered, stop := make(chan struct{}), make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for _, c := range []chan struct{}{call.hangs, answered} {
			select {
			case <-c:
			case <-stop:
				return
			}
		}
		end()
	})
	var o observed
	s := status.Convert(r.make(ctx, cc, &o, answered))
	close(stop)
	cutting.Wait()
	o.Code = s.Code().String()
	if !r.passes() {
		o.Text = s.Message() // when a deadline passes, that of the end which is first to see it
	}
	for _, d := range s.Proto().GetDetails() {
		o.Details = append(o.Details, fmt.Sprintf("%s %x", d.GetTypeUrl(), d.GetValue()))
	}
	o.Header, o.Trailer = own(o.Header), own(o.Trailer)
	if r.unseen {
		// A runtime refuses such a message before any code of its own could set a header.
		o.Header, o.Trailer = nil, nil
		return o
	}
	wait, done := context.WithTimeout(t.Context(), callLimit)
	defer done()
	select {
	case o.Runtime = <-call.seen:
	case <-wait.Done():
		t.Error("the runtime did not see the end of the call")
	}
	return o
}

// make makes the call as a stream in both directions. It closes answered when the answers of the row have come.
func (r row) make(ctx context.Context, cc *grpc.ClientConn, o *observed, answered chan struct{}) error {
	if r.answers == 0 {
		close(answered)
	}
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, r.method,
		grpc.CallContentSubtype(r.subtype))
	if err != nil {
		return err
	}
	if r.do.HeaderFirst {
		if o.Header, err = stream.Header(); err != nil {
			return err
		}
		o.HeaderFirst = true
	}
	receive := func() error {
		var m []byte
		if err := stream.RecvMsg(&m); err != nil {
			return err
		}
		o.Messages = append(o.Messages, inShort(m))
		if len(o.Messages) == r.answers {
			close(answered)
		}
		return nil
	}
	send := r.send
	for ; r.lockstep && len(send) > 0; send = send[1:] {
		if err := stream.SendMsg(&send[0]); err != nil {
			return err
		}
		if err := receive(); err != nil {
			return err
		}
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		for _, m := range send {
			if err := stream.SendMsg(&m); err != nil {
				return // RecvMsg returns the status
			}
		}
		if !r.open {
			_ = stream.CloseSend() // RecvMsg returns its error
		}
	})
	for err = receive(); err == nil; err = receive() {
	}
	sending.Wait()
	if r.cut == noCut && !r.passes() {
		// Of a call that was cut off, grpc may have thrown away what had come.
		if !r.do.HeaderFirst {
			o.Header, _ = stream.Header()
		}
		o.Trailer = stream.Trailer()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (r row) passes() bool { return r.do.Deadline == shortLimit }
