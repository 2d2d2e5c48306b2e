package criproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
)

// buffers returns the pool of every client and server in these tests, which TestMain has set.
func buffers() *spoiling {
	pool, ok := mem.DefaultBufferPool().(*spoiling)
	if !ok {
		panic("the tests do not run on the pool that spoils what is given back")
	}
	return pool
}

// spoiling is a pool whose buffers are overwritten when they are given back, so that whoever still
// reads one sees other bytes than were sent, and the race detector sees the write. It counts
// those which are out.
type spoiling struct {
	mem.BufferPool
	out atomic.Int64
}

func (s *spoiling) Get(size int) *[]byte {
	b := s.BufferPool.Get(size)
	if counted(b) {
		s.out.Add(1)
	}
	return b
}

func (s *spoiling) Put(b *[]byte) {
	if counted(b) {
		s.out.Add(-1)
	}
	whole := (*b)[:cap(*b)]
	for i := range whole {
		whole[i] = 0xdb
	}
	s.BufferPool.Put(b)
}

// counted tells the buffers that come back: smaller ones are left to the garbage collector.
func counted(b *[]byte) bool { return !mem.IsBelowBufferPoolingThreshold(cap(*b)) }

// settles waits until no more buffers are out than there should be.
func (s *spoiling) settles(most int64) int64 {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && s.out.Load() > most; {
		time.Sleep(time.Millisecond)
	}
	return s.out.Load()
}

// Each reference to a message that passes is given back, once and not before the message is sent on. A
// reference too many shows as a buffer that stays out, one too few as other bytes or as a panic of grpc.
func TestBuffersAreGivenBack(t *testing.T) {
	message := bytes.Repeat([]byte{0xfa, 0x3e, 0x03, 'n', 'e', 'w'}, 20_000)
	for name, tc := range map[string]struct {
		method string
		do     []string
		fails  bool
	}{
		"unary call":                         {method: "/runtime.v1.RuntimeService/Version"},
		"unary call that fails":              {method: "/runtime.v1.RuntimeService/Version", do: []string{"do-replies", "0", "do-fail", "9"}, fails: true},
		"unary call that fails after all":    {method: "/runtime.v1.RuntimeService/Version", do: []string{"do-fail", "9"}, fails: true},
		"unary call with an answer too many": {method: "/runtime.v1.RuntimeService/Version", do: []string{"do-replies", "2", "do-size", strconv.Itoa(len(message))}, fails: true},
		"call that is read":                  {method: runtimeapi.ImageService_ImageStatus_FullMethodName},
		"call that is read and fails":        {method: runtimeapi.ImageService_ImageStatus_FullMethodName, do: []string{"do-fail", "9"}, fails: true},
		"stream":                             {method: "/runtime.v1.RuntimeService/NotYetInvented"},
		"stream that fails":                  {method: "/runtime.v1.RuntimeService/NotYetInvented", do: []string{"do-fail", "9"}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			echo := criproxytest.NewEcho(t)
			proxied, _ := serveBefore(t, echo.Endpoint())
			cc := client(t, proxied)
			call := func(ctx context.Context) error {
				ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs(tc.do...))
				got, err := criproxytest.CallRaw(ctx, cc, tc.method, message)
				if (err != nil) != tc.fails {
					return fmt.Errorf("call: %w", err)
				}
				if err == nil && !bytes.Equal(got, message) {
					return fmt.Errorf("%d bytes came back as %d others", len(message), len(got))
				}
				return nil
			}
			if err := call(t.Context()); err != nil { // the connections are made
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // what is on its way comes back
			before := buffers().out.Load()
			const calls = 50
			for range calls {
				if err := call(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			// A reference that we forget is forgotten at every call, and a message has several
			// buffers. grpc itself forgets one now and then, when the answer to a message comes
			// before SendMsg has noted that it was sent; the garbage collector has it then.
			most := before + 2*calls
			if after := buffers().settles(most); after > most {
				t.Errorf("%d buffers are out after %d calls, %d before", after, calls, before)
			}
		})
	}
}
