package criproxy_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

// otherLimit is how long a call may take while others wait. Without a wait it takes less than a millisecond.
const otherLimit = 10 * time.Second

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
	"/runtime.v1.RuntimeService/NotYetInvented",
}

// A crowd makes calls that wait, on one connection to a runtime or a proxy.
type crowd struct {
	t       *testing.T
	runtime *waitingRuntime
	direct  *grpc.ClientConn // another one, to the runtime
	cc      *grpc.ClientConn
	calls   sync.WaitGroup
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
		_, stop := serveWith(t, criproxytest.Listen(t, r.socket+".proxy"), criproxy.Config{Runtime: up, Image: up, Handlers: map[string]criproxy.Handler{
			runtimeapi.ImageService_PullImage_FullMethodName:         forward,
			runtimeapi.ImageService_ImageStatus_FullMethodName:       forward,
			runtimeapi.RuntimeService_CreateContainer_FullMethodName: waitOrForward,
		}})
		t.Cleanup(stop)
		endpoint += ".proxy"
	}
	c.cc = client(t, endpoint)
	return c
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
		s, err := c.cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(criproxytest.RawCodec{}))
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

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2].Round(time.Microsecond)
}

// A kubelet makes the calls of all pods on one connection. Calls that wait, in a handler, at the runtime or for a slow reader, stop no other
// call on it. With PULLGATE_STARVATION set, 10,000 wait.
func TestWaitingCallsStopNoOtherCall(t *testing.T) {
	many := 1000
	if os.Getenv("PULLGATE_STARVATION") != "" {
		many = 10000
	}
	for name, tc := range map[string]struct {
		where, method string
		calls, size   int
	}{
		"exec probes that hang":               {atRuntime, runtimeapi.RuntimeService_ExecSync_FullMethodName, many, 10},
		"pulls":                               {atRuntime, runtimeapi.ImageService_PullImage_FullMethodName, many, 650},
		"pulls of 16 kB":                      {atRuntime, runtimeapi.ImageService_PullImage_FullMethodName, 12, 16000},
		"pulls of 1.7 MB":                     {atRuntime, runtimeapi.ImageService_PullImage_FullMethodName, 40, 1700000},
		"containers":                          {atHandler, runtimeapi.RuntimeService_CreateContainer_FullMethodName, many, 100},
		"containers of 16 kB":                 {atHandler, runtimeapi.RuntimeService_CreateContainer_FullMethodName, 14, 15500},
		"containers of 1.7 MB":                {atHandler, runtimeapi.RuntimeService_CreateContainer_FullMethodName, 40, 1700000},
		"streams":                             {atRuntime, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, many, 10},
		"streams of a client that reads none": {atReader, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, many / 10, 10},
	} {
		for _, way := range []string{"direct", "proxied"} {
			if way == "direct" && tc.where == atHandler {
				continue
			}
			t.Run(name+"/"+way, func(t *testing.T) {
				c := newCrowd(t, way == "proxied")
				ctx, cancel := context.WithCancel(t.Context())
				defer func() { cancel(); c.calls.Wait() }()
				message := bytes.Repeat([]byte{'x'}, tc.size)
				for range tc.calls {
					c.wait(ctx, tc.where, tc.method, message)
				}
				for began := time.Now(); c.runtime.waits.Load() < int64(tc.calls); time.Sleep(time.Millisecond) {
					if time.Since(began) > 6*otherLimit {
						t.Fatalf("%d of %d calls have arrived", c.runtime.waits.Load(), tc.calls)
					}
				}
				var alone, beside []time.Duration
				for range 5 {
					for _, method := range otherMethods {
						alone = append(alone, c.other(c.direct, method))
						beside = append(beside, c.other(c.cc, method))
					}
				}
				t.Logf("medians beside %d calls that wait: %v, on another connection to the runtime %v", tc.calls, median(beside), median(alone))
			})
		}
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
	t.Logf("%d calls beside %d that have waited: median %v, longest %v; on another connection to the runtime %v and %v",
		len(beside), c.runtime.waits.Load(), median(beside), slices.Max(beside), median(alone), slices.Max(alone))
}
