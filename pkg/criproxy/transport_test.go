package criproxy

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
)

// tally is the metrics of a server under test.
type tally struct {
	mu     sync.Mutex
	codes  []string
	panics int
}

func (c *tally) ForwardedCall(_, code string, _ bool, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.codes = append(c.codes, code)
}

func (c *tally) Panic() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.panics++
}

// A clientStream is the client's end of a call, as a server sees it.
type clientStream struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // a stream carries the context of its call
	recv func() error
}

func (s *clientStream) Context() context.Context   { return s.ctx }
func (s *clientStream) RecvMsg(any) error          { return s.recv() }
func (*clientStream) SendHeader(metadata.MD) error { return nil }
func (*clientStream) SetTrailer(metadata.MD)       {}

type methodOf string

func (m methodOf) Method() string               { return string(m) }
func (methodOf) SetHeader(metadata.MD) error    { return nil }
func (methodOf) SendHeader(metadata.MD) error   { return nil }
func (methodOf) SetTrailer(metadata.MD) error   { return nil }
func (methodOf) SetSendCompressor(string) error { return nil }

// What goes wrong on the way to the runtime is what the client is told, and what is counted: the
// runtime itself only sees that the call was cancelled.
func TestStreamThatFailsTowardsTheRuntimeEndsWithTheCause(t *testing.T) {
	for name, tc := range map[string]struct {
		recv   func() error
		want   codes.Code
		panics int
	}{
		"panic":          {recv: func() error { panic("planted") }, want: codes.Internal, panics: 1},
		"too large":      {recv: func() error { return status.Error(codes.ResourceExhausted, "too large") }, want: codes.ResourceExhausted},
		"client is gone": {recv: func() error { return status.Error(codes.Canceled, "gone") }, want: codes.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			up, err := Dial(criproxytest.NewEcho(t).Endpoint())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = up.Close() }()
			var counted tally
			s := New(Config{Runtime: up, Image: up, Metrics: &counted, Log: klog.Logger{}})
			err = s.handle(nil, &clientStream{
				ctx:  grpc.NewContextWithServerTransportStream(t.Context(), methodOf("/runtime.v1.RuntimeService/NotYetInvented")),
				recv: tc.recv,
			})
			s.Shutdown(t.Context())
			if status.Code(err) != tc.want {
				t.Errorf("call = %v; want %v", err, tc.want)
			}
			if counted.panics != tc.panics || !slices.Equal(counted.codes, []string{tc.want.String()}) {
				t.Errorf("%d panics, codes %v counted; want %d, [%v]", counted.panics, counted.codes, tc.panics, tc.want)
			}
		})
	}
}

// states is a connection that goes through states, one at each wait.
type states struct {
	list     []connectivity.State
	connects int
}

func (s *states) GetState() connectivity.State { return s.list[0] }
func (s *states) Connect()                     { s.connects++ }

func (s *states) WaitForStateChange(context.Context, connectivity.State) bool {
	s.list = s.list[1:]
	return len(s.list) > 0
}

func TestWatchTellsEveryChange(t *testing.T) {
	const (
		idle, connecting, ready, failed = connectivity.Idle, connectivity.Connecting, connectivity.Ready, connectivity.TransientFailure
	)
	for name, tc := range map[string]struct {
		states   []connectivity.State
		want     []bool
		connects int
	}{
		"up from the start":     {states: []connectivity.State{ready}, want: []bool{true}},
		"comes up":              {states: []connectivity.State{idle, connecting, ready}, want: []bool{false, true}, connects: 1},
		"away for long":         {states: []connectivity.State{ready, idle, connecting, failed, connecting, ready}, want: []bool{true, false, true}, connects: 1},
		"back before we looked": {states: []connectivity.State{ready, ready}, want: []bool{true, false, true}},
		"never up":              {states: []connectivity.State{connecting, failed, connecting, failed}, want: []bool{false}},
	} {
		t.Run(name, func(t *testing.T) {
			conn := &states{list: tc.states}
			var got []bool
			watch(t.Context(), conn, func(up bool) { got = append(got, up) })
			if !slices.Equal(got, tc.want) || conn.connects != tc.connects {
				t.Errorf("told %v with %d connects; want %v with %d", got, conn.connects, tc.want, tc.connects)
			}
		})
	}
}
