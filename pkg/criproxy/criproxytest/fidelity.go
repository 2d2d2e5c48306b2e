package criproxytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// callLimit is the deadline of calls that have one.
const callLimit = 30 * time.Second

// limit is the largest message that kubelets and containerd take.
const limit = 16 << 20

// Observed is everything that both ends see of one call.
type Observed struct {
	Header, Trailer metadata.MD
	HeaderFirst     bool     // the header came before the client had sent anything
	Messages        []string // see inShort
	Code, Text      string
	Details         []string
	Runtime         Seen
}

// A row is one property of forwarding.
type row struct {
	name   string
	method string
	// metadata of the request, in pairs.
	metadata []string
	send     [][]byte
	// headerFirst waits for the header before anything is sent, lockstep for each echo before the
	// next message.
	headerFirst, lockstep bool
	deadline              bool
	cancel                bool // the client cancels once the runtime has its messages
	// unseen says that the runtime does not see the call at all, or not to its end.
	unseen bool
}

const (
	knownUnary   = "/runtime.v1.RuntimeService/Version"
	knownStream  = "/runtime.v1.RuntimeService/GetContainerEvents"
	unknown      = "/runtime.v1.RuntimeService/NotYetInvented"
	unknownImage = "/runtime.v1.ImageService/NotYetInvented"
)

// rows is the table: one row a property.
func rows() []row {
	// Fields that no version of the CRI knows, and bytes that are no message at all.
	odd := []byte{0xfa, 0x3e, 0x03, 'n', 'e', 'w', 0x08, 0x96, 0x01}
	garbage := []byte{0xff, 0xff, 0xff, 0xff}
	big := bytes.Repeat([]byte{7}, limit)
	over := append(bytes.Clone(big), 7)
	one := [][]byte{odd}
	replies := func(n, size int) []string { return []string{doReplies, fmt.Sprint(n), doSize, fmt.Sprint(size)} }
	return []row{
		{name: "known unary method with unknown fields", method: knownUnary, send: one},
		{name: "known unary method with bytes that are no message", method: knownUnary, send: [][]byte{garbage}},
		{name: "known unary method with an empty message", method: knownUnary, send: [][]byte{{}}},
		{name: "known unary method that fails", method: knownUnary, send: one, metadata: append(replies(0, 0), doFail, "1")},
		{name: "unknown unary method", method: unknown, send: one},
		{name: "unknown unary method of the image service", method: unknownImage, send: one},
		{name: "unknown method that fails without a message", method: unknown, metadata: append(replies(0, 0), doFail, "1")},
		{name: "server stream", method: knownStream, send: one, metadata: replies(5, 3)},
		{name: "server stream of empty messages", method: knownStream, send: [][]byte{{}}, metadata: replies(3, 0)},
		{name: "server stream that fails after its messages", method: knownStream, send: one, metadata: append(replies(2, 1), doFail, "1")},
		{name: "client stream with half-close", method: unknown, send: [][]byte{odd, {}, garbage}, metadata: replies(1, 9)},
		{name: "stream without any message", method: unknown, metadata: replies(0, 0)},
		{name: "both directions in turn", method: unknown, send: [][]byte{odd, {}, garbage, odd}, lockstep: true},
		{name: "header before the first message", method: unknown, send: one, metadata: []string{doHeaderFirst, "1"}, headerFirst: true},
		{name: "repeated and binary metadata", method: knownUnary, send: one, metadata: []string{"k", "1", "k", "2", "k-bin", "\x00\x01\xff", "traceparent", "00-x"}},
		{name: "repeated and binary metadata of a stream", method: unknown, send: one, metadata: []string{"k", "1", "k", "2", "k-bin", "\x00\x01\xff"}},
		{name: "deadline of a unary call", method: knownUnary, send: one, deadline: true},
		{name: "deadline of a stream", method: unknown, send: one, deadline: true},
		{name: "client that cancels a unary call", method: knownUnary, send: one, metadata: []string{doHang, "1"}, cancel: true},
		{name: "client that cancels a stream", method: knownStream, send: one, metadata: []string{doHang, "1"}, cancel: true},
		{name: "request of 16 MiB", method: knownUnary, send: [][]byte{big}, metadata: replies(1, 1)},
		{name: "answer of 16 MiB", method: knownUnary, send: one, metadata: replies(1, limit)},
		{name: "stream of 16 MiB both ways", method: unknown, send: [][]byte{big}},
		{name: "request over 16 MiB", method: knownUnary, send: [][]byte{over}, unseen: true},
		{name: "request over 16 MiB on a stream", method: unknown, send: [][]byte{over}, unseen: true},
		{name: "answer over 16 MiB", method: knownUnary, send: one, metadata: replies(1, limit+1), unseen: true},
		{name: "answer over 16 MiB on a stream", method: unknown, send: one, metadata: replies(1, limit+1), unseen: true},
	}
}

// Fidelity makes every call of the table twice, directly to the echo and through the proxy that
// listens on the endpoint proxied, and compares everything that both ends see.
func Fidelity(t *testing.T, echo *Echo, proxied string) {
	t.Helper()
	direct, through := dial(t, echo.Endpoint()), dial(t, proxied)
	for _, r := range rows() {
		t.Run(r.name, func(t *testing.T) {
			want, got := observe(t, echo, direct, r), observe(t, echo, through, r)
			if want.Code == "Unavailable" {
				t.Fatalf("the direct call did not get through: %s", want.Text)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("direct and proxied differ (-direct +proxied):\n%.4000s", diff)
			}
		})
	}
}

func dial(tb testing.TB, endpoint string) *grpc.ClientConn {
	tb.Helper()
	cc, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(limit)))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = cc.Close() })
	return cc
}

func observe(t *testing.T, echo *Echo, cc *grpc.ClientConn, r row) Observed {
	t.Helper()
	id := fmt.Sprint(echo.calls.Add(1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if r.deadline {
		ctx, cancel = context.WithTimeout(ctx, callLimit)
		defer cancel()
	}
	ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs(append([]string{"call", id}, r.metadata...)...))
	var o Observed
	err := r.make(ctx, cancel, cc, &o)
	s := status.Convert(err)
	o.Code, o.Text = s.Code().String(), s.Message()
	for _, d := range s.Details() {
		o.Details = append(o.Details, fmt.Sprintf("%T %v", d, d))
	}
	o.Header, o.Trailer = own(o.Header), own(o.Trailer)
	o.Trailer.Delete("grpc-status-details-bin") // the details themselves are compared
	if r.unseen {
		// A runtime refuses such a message before any code of its own could set a header.
		o.Header, o.Trailer = nil, nil
		return o
	}
	wait, stop := context.WithTimeout(t.Context(), callLimit)
	defer stop()
	select {
	case o.Runtime = <-echo.of(id):
	case <-wait.Done():
		t.Error("the runtime did not see the end of the call")
	}
	return o
}

// make makes the call as a stream in both directions, which any method looks like on the wire.
func (r row) make(ctx context.Context, cancel context.CancelFunc, cc *grpc.ClientConn, o *Observed) error {
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, r.method)
	if err != nil {
		return err
	}
	if r.headerFirst {
		if o.Header, err = stream.Header(); err != nil {
			return err
		}
		o.HeaderFirst = true
	}
	for _, m := range r.send {
		if err := stream.SendMsg(&m); err != nil {
			break // the status is had from RecvMsg
		}
		if r.lockstep {
			var answer []byte
			if err := stream.RecvMsg(&answer); err != nil {
				return err
			}
			o.Messages = append(o.Messages, inShort(answer))
		}
	}
	_ = stream.CloseSend() // never fails in a way that RecvMsg would not tell
	if r.cancel {
		// Give the runtime the time to have the messages, or it could not tell them.
		time.Sleep(100 * time.Millisecond)
		cancel()
	}
	for {
		var m []byte
		if err = stream.RecvMsg(&m); err != nil {
			break
		}
		o.Messages = append(o.Messages, inShort(m))
	}
	if !r.headerFirst && !r.cancel {
		o.Header, _ = stream.Header()
	}
	if !r.cancel {
		o.Trailer = stream.Trailer()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
