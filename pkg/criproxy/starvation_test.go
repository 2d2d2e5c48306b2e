package criproxy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

// otherLimit is how long a call may take while others wait. Without a wait it takes less than a millisecond. With
// PULLGATE_STARVATION set, no call may take longer than longestAlone allows.
const otherLimit = 10 * time.Second

// longestAlone is how long a call may take on a machine that does nothing else. On a busy one it may take as long as
// three times the longest of those without a proxy: meanwhile on another connection to the runtime, or before beside as
// many calls that waited at the runtime.
const longestAlone = 200 * time.Millisecond

// Where calls wait. Each is the metadata that make a call wait there.
const (
	atHandler = "wait-in-a-handler"
	atRuntime = "wait"
	atReader  = "flood" // at the runtime and in the proxy, for a client that does not read
)

// otherMethods are the methods of the calls that are made while others wait. Some of them have a handler.
var otherMethods = []string{
	runtimeapi.RuntimeService_Version_FullMethodName, runtimeapi.ImageService_ImageStatus_FullMethodName,
	runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, runtimeapi.RuntimeService_RunPodSandbox_FullMethodName,
	runtimeapi.RuntimeService_CreateContainer_FullMethodName, runtimeapi.RuntimeService_ExecSync_FullMethodName,
	runtimeapi.ImageService_PullImage_FullMethodName, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName,
	"/runtime.v1.RuntimeService/NotYetInvented",
}

// A crowd makes calls that wait, on one connection to a runtime or a proxy.
type crowd struct {
	t        *testing.T
	runtime  *waitingRuntime
	endpoint string
	direct   *grpc.ClientConn // another one, to the runtime
	cc       *grpc.ClientConn
	calls    sync.WaitGroup
	directly time.Duration // the longest call beside those that wait without a proxy; 0 if unknown
}

func newCrowd(t *testing.T, proxied bool) *crowd {
	t.Helper()
	r := newWaitingRuntime(t)
	endpoint := "unix://" + r.socket
	c := &crowd{t: t, runtime: r, direct: client(t, endpoint)}
	if proxied {
		up := upstream(t, endpoint)
		waitOrForward := func(ctx context.Context, call *criproxy.Call) ([]byte, error) {
			if len(metadata.ValueFromIncomingContext(ctx, atHandler)) > 0 {
				r.waits.Add(1)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return call.Forward(ctx)
		}
		_, stop := serveWith(t, criproxytest.Listen(t, r.socket+".proxy"),
			criproxy.Config{Runtime: up, Image: up, Handlers: map[string]criproxy.Handler{
				runtimeapi.ImageService_PullImage_FullMethodName:         forward,
				runtimeapi.ImageService_ImageStatus_FullMethodName:       forward,
				runtimeapi.RuntimeService_CreateContainer_FullMethodName: waitOrForward,
			}})
		t.Cleanup(stop)
		endpoint += ".proxy"
	}
	// Of what it does not read the client takes 64 KiB for each call, and no more if it measures that the connection is
	// fast.
	c.cc, c.endpoint = client(t, endpoint, grpc.WithInitialWindowSize(64<<10)), endpoint
	return c
}

// arrived waits until so many calls wait, and until those that do not read have got what they take.
func (c *crowd) arrived(calls int) {
	c.t.Helper()
	for began := time.Now(); c.runtime.waits.Load() < int64(calls); time.Sleep(time.Millisecond) {
		if time.Since(began) > 6*otherLimit {
			c.t.Fatalf("%d of %d calls have arrived", c.runtime.waits.Load(), calls)
		}
	}
	for sent := int64(0); sent != c.runtime.sent.Load(); time.Sleep(time.Second) {
		sent = c.runtime.sent.Load()
	}
}

// maxUnread is the memory that client, proxy and runtime together may have in use for a call whose messages are not
// read.
const maxUnread = 512 << 10

func memoryInUse() int {
	var s goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&s)
	return int(s.HeapInuse + s.StackInuse)
}

// others makes calls of every kind beside those that wait, and on another connection to the runtime. It returns how
// long the longest took.
func (c *crowd) others(waiting int) (longest time.Duration) {
	c.t.Helper()
	var alone, beside []time.Duration
	for range 5 {
		for _, method := range otherMethods {
			alone = append(alone, c.other(c.direct, method))
			beside = append(beside, c.other(c.cc, method))
		}
	}
	c.compare(alone, beside, waiting)
	return slices.Max(beside)
}

// compare compares calls beside those that wait with calls on another connection to the runtime.
func (c *crowd) compare(alone, beside []time.Duration, waiting int) {
	c.t.Helper()
	longest := slices.Max(beside)
	median := func(all []time.Duration) time.Duration { return testkit.Median(all).Round(time.Microsecond) }
	c.t.Logf("%d calls beside %d that wait: median %v, longest %v; on another connection to the runtime %v and %v",
		len(beside), waiting, median(beside), longest, median(alone), slices.Max(alone))
	if most := max(longestAlone, 3*slices.Max(alone), 3*c.directly); os.Getenv("PULLGATE_STARVATION") != "" &&
		longest > most {
		c.t.Errorf("a call took %v beside those that wait; want %v at most", longest, most)
	}
}

// wait makes a call that waits until ctx ends.
func (c *crowd) wait(ctx context.Context, where, method string, message []byte) {
	md := metadata.Pairs(where, "1")
	if where == atReader {
		md.Set(atRuntime, "1")
	}
	ctx = metadata.NewOutgoingContext(ctx, md)
	c.calls.Go(func() {
		if where != atReader {
			_, _ = criproxytest.CallRaw(ctx, c.cc, method, message)
			return
		}
		s, err := c.cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method,
			grpc.ForceCodecV2(criproxytest.RawCodec{}))
		if err == nil && s.SendMsg(&message) == nil && s.CloseSend() == nil {
			<-ctx.Done()
		}
	})
}

// other makes another call, and returns how long it takes.
func (c *crowd) other(cc *grpc.ClientConn, method string) time.Duration {
	ctx, stop := context.WithTimeout(c.t.Context(), otherLimit)
	defer stop()
	began := time.Now()
	if _, err := criproxytest.CallRaw(ctx, cc, method, bytes.Repeat([]byte{'y'}, 3000)); err != nil {
		c.t.Errorf("another call, %s: %v", method, err)
	}
	return time.Since(began)
}

// crowdSize is how many calls wait: more than some limit of 1,024, and 10,000 with PULLGATE_STARVATION set.
func crowdSize() int {
	if os.Getenv("PULLGATE_STARVATION") != "" {
		return 10000
	}
	return 1100
}

// A kubelet makes the calls of all pods on one connection. Calls that wait, in a handler, at the runtime or for a slow
// reader, stop no other call on it. They use up the window of the connection (16 kB, 650 bytes), its streams (exec
// probes, streams), memory (1.7 MB), a goroutine each (containers, streams), or the queues of messages (a client that
// reads none).
func TestWaitingCallsStopNoOtherCall(t *testing.T) {
	many := crowdSize()
	for name, tc := range map[string]struct {
		where, method string
		calls, size   int
	}{
		"exec probes that hang": {atRuntime, runtimeapi.RuntimeService_ExecSync_FullMethodName, many, 10},
		"pulls":                 {atRuntime, runtimeapi.ImageService_PullImage_FullMethodName, many, 650},
		"pulls of 16 kB":        {atRuntime, runtimeapi.ImageService_PullImage_FullMethodName, 12, 16000},
		"pulls of 1.7 MB":       {atRuntime, runtimeapi.ImageService_PullImage_FullMethodName, 40, 1700000},
		"containers":            {atHandler, runtimeapi.RuntimeService_CreateContainer_FullMethodName, many, 100},
		"containers of 16 kB":   {atHandler, runtimeapi.RuntimeService_CreateContainer_FullMethodName, 60, 15500},
		"containers of 1.7 MB":  {atHandler, runtimeapi.RuntimeService_CreateContainer_FullMethodName, 40, 1700000},
		"streams":               {atRuntime, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, many, 10},
		"streams of a client that reads none": {
			atReader, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, many,
			10,
		},
	} {
		var directly time.Duration
		for _, way := range []string{"direct", "proxied"} {
			if way == "direct" && tc.where == atHandler {
				continue
			}
			t.Run(name+"/"+way, func(t *testing.T) {
				c := newCrowd(t, way == "proxied")
				c.directly = directly
				ctx, cancel := context.WithCancel(t.Context())
				defer func() { cancel(); c.calls.Wait() }()
				message := bytes.Repeat([]byte{'x'}, tc.size)
				for range tc.calls {
					c.wait(ctx, tc.where, tc.method, message)
				}
				c.arrived(tc.calls)
				if each := memoryInUse() / tc.calls; tc.where == atReader && each > maxUnread {
					t.Errorf("a call whose messages are not read takes %d bytes; want %d at most", each, maxUnread)
				} else {
					t.Logf("%d bytes in use for each call", each)
				}
				directly = c.others(tc.calls)
			})
		}
	}
}

// Connections take file descriptors and a place in the queue of the socket. Those that say nothing, that make no call,
// or whose calls wait stop no other call, on another connection and on a new one. The process may have 20,000 files.
func TestConnectionsStopNoOtherCall(t *testing.T) {
	const preface, settings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	many := crowdSize() / 10 * 9
	for name, connect := range map[string]func(c *crowd, ctx context.Context) io.Closer{
		"that say nothing": func(c *crowd, _ context.Context) io.Closer { return c.dial() },
		"without a call": func(c *crowd, _ context.Context) io.Closer {
			conn := c.dial()
			_, err := io.WriteString(conn, preface+settings)
			if err == nil {
				_, err = io.ReadFull(conn, make([]byte, 2*len(settings))) // the server's SETTINGS, and its acknowledgement of ours
			}
			if err != nil {
				c.t.Error(err)
			}
			return conn
		},
		"with a call that waits": func(c *crowd, ctx context.Context) io.Closer {
			cc := client(c.t, c.endpoint, grpc.WithDefaultCallOptions(grpc.WaitForReady(true))) // its queue may be full
			c.calls.Go(func() {
				_, _ = criproxytest.CallRaw(metadata.AppendToOutgoingContext(ctx, atRuntime, "1"), cc,
					runtimeapi.RuntimeService_ExecSync_FullMethodName, []byte("x"))
			})
			return cc
		},
	} {
		for _, way := range []string{"direct", "proxied"} {
			t.Run(name+"/"+way, func(t *testing.T) {
				c := newCrowd(t, way == "proxied")
				ctx, cancel := context.WithCancel(t.Context())
				defer func() { cancel(); c.calls.Wait() }()
				for range many {
					conn := connect(c, ctx)
					defer func() { _ = conn.Close() }()
				}
				if strings.Contains(name, "waits") {
					c.arrived(many)
				}
				c.others(many)
				c.cc = client(t, c.endpoint)
				c.others(many)
			})
		}
	}
}

// dial makes a connection that only the caller uses. While the queue of the socket is full, it tries again.
func (c *crowd) dial() net.Conn {
	for {
		conn, err := (&net.Dialer{}).DialContext(c.t.Context(), "unix", strings.TrimPrefix(c.endpoint, "unix://"))
		if err == nil {
			return conn
		}
		if !errors.Is(err, syscall.EAGAIN) {
			c.t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// A kubelet's calls are answered while more and more calls of one tenant wait, up to 10,000 of them, of which some end.
// PULLGATE_STARVATION is how long, such as 10m.
func TestKubeletBesideATenantThatWaits(t *testing.T) {
	limit := 2 * time.Second
	if text := os.Getenv("PULLGATE_STARVATION"); text != "" {
		var err error
		if limit, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	c := newCrowd(t, true)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer func() { cancel(); c.calls.Wait() }()
	var callers sync.WaitGroup
	callers.Go(func() {
		waiting := make([]context.CancelFunc, 10000)
		for ctx.Err() == nil {
			one, end := context.WithCancel(ctx)
			message := make([]byte, rand.IntN(2000))
			switch n := rand.IntN(1000); {
			case n < 2:
				c.wait(one, atRuntime, runtimeapi.ImageService_PullImage_FullMethodName, make([]byte, 1700000))
			case n < 4:
				c.wait(one, atReader, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, nil)
			case n < 300:
				c.wait(one, atHandler, runtimeapi.RuntimeService_CreateContainer_FullMethodName, message)
			case n < 600:
				c.wait(one, atRuntime, runtimeapi.ImageService_PullImage_FullMethodName, message)
			default:
				c.wait(one, atRuntime, runtimeapi.RuntimeService_ExecSync_FullMethodName, message)
			}
			i := rand.IntN(len(waiting))
			if waiting[i] != nil {
				waiting[i]()
			}
			waiting[i] = end
			time.Sleep(time.Millisecond)
		}
		for _, end := range waiting {
			if end != nil {
				end()
			}
		}
	})
	var mu sync.Mutex
	var alone, beside []time.Duration
	for range 8 {
		callers.Go(func() {
			for ctx.Err() == nil {
				method := otherMethods[rand.IntN(len(otherMethods))]
				a, b := c.other(c.direct, method), c.other(c.cc, method)
				mu.Lock()
				alone, beside = append(alone, a), append(beside, b)
				mu.Unlock()
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	callers.Wait()
	c.compare(alone, beside, int(c.runtime.waits.Load()))
}
