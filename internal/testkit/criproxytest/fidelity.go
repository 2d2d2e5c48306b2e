package criproxytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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

type row struct {
	name    string
	method  string
	do      Script
	md      []string // more metadata of the request, in pairs
	subtype string   // of the content type; "" for the content type that kubelets send, application/grpc
	send    [][]byte
	// lockstep waits for each echo before the next message. With Script.HeaderFirst, the header comes before the first.
	lockstep bool
	open     bool // the client never half-closes
	cut      cut  // ends the call once it hangs in the runtime and so many answers have come
	answers  int
	unseen   bool // the runtime does not see the call at all, or not to its end
}

// A cut is how a client ends a call that is under way.
type cut uint8

const (
	noCut       cut = iota
	cancels         // it cancels the call
	disconnects     // it closes its connection
)

const (
	known        = "/runtime.v1.RuntimeService/Version"
	knownStream  = "/runtime.v1.RuntimeService/GetContainerEvents"
	unknown      = "/runtime.v1.RuntimeService/NotYetInvented"
	unknownImage = "/runtime.v1.ImageService/NotYetInvented"
)

// readMethods are methods that a proxy which judges reads. The messages of the rows have nothing to judge or to change.
func readMethods() []string {
	return []string{
		runtimeapi.ImageService_ImageStatus_FullMethodName,
		runtimeapi.ImageService_RemoveImage_FullMethodName,
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName,
		runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName,
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName,
	}
}

func rows() []row { //nolint:revive // a table
	// Fields that no version of the CRI knows, and bytes that are not a message at all.
	odd := []byte{0xfa, 0x3e, 0x03, 'n', 'e', 'w', 0x08, 0x96, 0x01}
	garbage := []byte{0xff, 0xff, 0xff, 0xff}
	big := bytes.Repeat([]byte{7}, limit)
	over := append(bytes.Clone(big), 7)
	one := [][]byte{odd}
	many := make([][]byte, 2000)
	for i := range many {
		many[i] = bytes.Repeat([]byte{byte(i)}, i)
	}
	replies := func(n, size int) Script { return Script{Replies: n, Size: size} }
	fails := Script{Silent: true, Fail: 9}
	hangs := Script{Hang: true}
	bare := Script{Bare: true}
	bareFails := func(code uint32) Script { return Script{Silent: true, Bare: true, Fail: code} }
	lasts := func(d time.Duration) Script { return Script{Deadline: d, Hang: d == shortLimit} }
	pairs := []string{"k", "1", "k", "2", "k-bin", "\x00\x01\xff", "k-bin", "", "traceparent", "00-x"}
	const image = runtimeapi.ImageService_ImageStatus_FullMethodName
	all := []row{
		// Unary.
		{name: "known unary method with unknown fields", method: known, send: one},
		{name: "known unary method with bytes that are not a message", method: known, send: [][]byte{garbage}},
		{name: "known unary method with an empty message", method: known, send: [][]byte{{}}},
		{name: "known unary method that fails", method: known, send: one, do: fails},
		{name: "known unary method that fails without header and trailer", method: known, send: one, do: bareFails(9)},
		{name: "known unary method without header and trailer", method: known, send: one, do: bare},
		{name: "known unary method with an unknown code", method: known, send: one, do: Script{Silent: true, Fail: 77}},
		{name: "unknown unary method", method: unknown, send: one},
		{name: "unknown unary method of the image service", method: unknownImage, send: one},
		{name: "unknown method that is not implemented", method: unknown, send: one, do: bareFails(12)},
		{name: "unknown method that fails without a message", method: unknown, do: fails},
		{name: "unknown method with an unknown code", method: unknown, send: one, do: Script{Silent: true, Fail: 77}},

		// Streams.
		{name: "server stream", method: knownStream, send: one, do: replies(5, 3)},
		{name: "server stream of empty messages", method: knownStream, send: [][]byte{{}}, do: replies(3, 0)},
		{name: "server stream of many messages", method: knownStream, send: one, do: replies(3000, 1500)},
		{name: "failing server stream", method: knownStream, send: one, do: Script{Replies: 2, Size: 1, Fail: 9}},
		{name: "client stream with half-close", method: unknown, send: [][]byte{odd, {}, garbage}, do: replies(1, 9)},
		{name: "client stream of many messages", method: unknown, send: many, do: replies(1, 9)},
		{name: "both directions at once", method: unknown, send: many},
		{name: "both directions in turn", method: unknown, send: [][]byte{odd, {}, garbage, odd}, lockstep: true},
		{name: "stream without any message", method: unknown, do: Script{Silent: true}},
		{name: "stream that the runtime ends first", method: unknown, send: one, open: true, do: Script{Read: new(1)}},
		{
			name: "stream that fails before the client's end", method: unknown, send: one, open: true,
			do: Script{Read: new(1), Fail: 9},
		},
		{
			name: "stream that ends before it is read", method: unknown, open: true,
			do: Script{Read: new(0), Replies: 2, Size: 4},
		},
		{name: "header before the first message", method: unknown, send: one, do: Script{HeaderFirst: true}},

		// Metadata.
		{name: "repeated and binary metadata", method: known, send: one, md: pairs},
		{name: "repeated and binary metadata of a stream", method: unknown, send: one, md: pairs},
		{name: "large metadata", method: known, send: one, md: []string{"k", strings.Repeat("v", 32<<10)}},

		// Content types. A call of every other row has none but application/grpc.
		{name: "content subtype of a unary call", method: known, send: one, subtype: "proto"},
		{name: "content subtype of a stream", method: knownStream, send: one, subtype: "proto"},
		{name: "content subtype of a call that is read", method: image, send: one, subtype: "proto"},
		{name: "content subtype that no codec has", method: unknown, send: one, subtype: "x-new"},

		// Deadlines, and calls that end under way.
		{name: "deadline of a unary call", method: known, send: one, do: lasts(callLimit)},
		{name: "deadline of a stream", method: unknown, send: one, do: lasts(callLimit)},
		{name: "deadline of a unary call that passes", method: known, send: one, do: lasts(shortLimit)},
		{name: "deadline of a stream that passes", method: unknown, send: one, do: lasts(shortLimit)},
		{name: "client that cancels a unary call", method: known, send: one, do: hangs, cut: cancels},
		{name: "client that cancels a stream", method: knownStream, send: one, do: hangs, cut: cancels},
		{
			name: "client that cancels while it sends", method: unknown, send: one, open: true,
			do: Script{Hang: true, Read: new(1)}, cut: cancels,
		},
		{
			name: "client that cancels after the first messages", method: knownStream, send: one,
			do: Script{Replies: 2, Size: 1, Hang: true}, cut: cancels, answers: 2,
		},
		{name: "client that disconnects under a unary call", method: known, send: one, do: hangs, cut: disconnects},
		{
			name: "client that disconnects under a stream", method: unknown, send: one, open: true,
			do: Script{Hang: true, Read: new(1)}, cut: disconnects,
		},

		// Sizes.
		{name: "request of 16 MiB", method: known, send: [][]byte{big}, do: replies(1, 1)},
		{name: "answer of 16 MiB", method: known, send: one, do: replies(1, limit)},
		{name: "answer of 16 MiB to a method that is read", method: image, send: one, do: replies(1, limit)},
		{name: "stream of 16 MiB both ways", method: unknown, send: [][]byte{big}},
		{name: "request over 16 MiB", method: known, send: [][]byte{over}, unseen: true},
		{name: "request over 16 MiB to a method that is read", method: image, send: [][]byte{over}, unseen: true},
		{name: "request over 16 MiB on a stream", method: unknown, send: [][]byte{over}, unseen: true},
		{name: "answer over 16 MiB", method: known, send: one, do: replies(1, limit+1), unseen: true},
		{name: "answer over 16 MiB to one that is read", method: image, send: one, do: replies(1, limit+1), unseen: true},
		{name: "answer over 16 MiB on a stream", method: unknown, send: one, do: replies(1, limit+1), unseen: true},

		{
			name: "pull that fails", method: runtimeapi.ImageService_PullImage_FullMethodName, send: [][]byte{pull(odd)},
			do: fails,
		},
		{name: "image status with bytes that are not an answer", method: image, send: one, do: replies(1, 5)},
		{name: "client that cancels a call that is read", method: image, send: one, do: hangs, cut: cancels},
		{name: "deadline of a call that is read", method: image, send: one, do: lasts(callLimit)},
		{name: "metadata of a call that is read", method: image, send: one, md: pairs},
	}
	for _, m := range readMethods() {
		all = append(all,
			row{name: m + " with unknown fields", method: m, send: one},
			row{name: m + " that fails", method: m, send: one, do: fails},
			row{name: m + " that fails without header and trailer", method: m, send: one, do: bareFails(5)},
		)
	}
	return all
}

func pull(and []byte) []byte {
	m, err := proto.Marshal(&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "repo.test/fidelity:1"}})
	if err != nil {
		panic(err) // the message is a constant
	}
	return append(m, and...)
}
