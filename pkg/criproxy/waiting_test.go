package criproxy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

// A waitingRuntime answers each call with its message, unless its metadata say that it waits for the end of the call,
// or that it fails with a text of so many bytes, or as unavailable.
type waitingRuntime struct {
	socket string
	server *grpc.Server
	waits  atomic.Int64 // calls that wait, or have waited
	sent   atomic.Int64 // messages to clients that do not read
}

func newWaitingRuntime(t *testing.T) *waitingRuntime {
	t.Helper()
	r := &waitingRuntime{socket: filepath.Join(criproxytest.SocketDir(t), "runtime.sock")}
	r.start(t)
	t.Cleanup(func() { r.server.Stop() })
	return r
}

// start serves on the socket, also while an earlier server still answers its calls.
func (r *waitingRuntime) start(t *testing.T) {
	t.Helper()
	_ = os.Remove(r.socket)
	l := criproxytest.Listen(t, r.socket)
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	r.server = criproxytest.Serve(l, r.handle, grpc.WaitForHandlers(true))
}

func (r *waitingRuntime) handle(_ any, s grpc.ServerStream) error {
	var m []byte
	if err := s.RecvMsg(&m); err != nil {
		return err
	}
	md, _ := metadata.FromIncomingContext(s.Context())
	if len(md.Get("wait")) > 0 {
		r.waits.Add(1)
		if len(md.Get("flood")) > 0 { // as much as the client takes
			for m = make([]byte, 64<<10); s.SendMsg(&m) == nil; {
				r.sent.Add(1)
			}
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
	if len(md.Get("unavailable")) > 0 {
		return status.Error(codes.Unavailable, "busy")
	}
	if fail := md.Get("fail"); len(fail) > 0 {
		var size int
		if _, err := fmt.Sscan(fail[0], &size); err != nil {
			return err
		}
		return status.Error(codes.Unknown, strings.Repeat("A", size))
	}
	return s.SendMsg(&m)
}

func forward(ctx context.Context, c *criproxy.Call) ([]byte, error) { return c.Forward(ctx) }

// A long error text reaches its client, and ends no other call.
func TestLongErrorEndsOneCall(t *testing.T) {
	r := newWaitingRuntime(t)
	proxied, _ := serveBefore(t, "unix://"+r.socket)
	for _, endpoint := range []string{"unix://" + r.socket, proxied} {
		cc := client(t, endpoint)
		before := r.waits.Load()
		ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(t.Context(), metadata.Pairs("wait", "1")))
		waiting := make(chan error, 1)
		go func() {
			_, err := criproxytest.CallRaw(ctx, cc, runtimeapi.RuntimeService_RunPodSandbox_FullMethodName, nil)
			waiting <- err
		}()
		for r.waits.Load() == before {
			time.Sleep(time.Millisecond)
		}
		for _, size := range []int{200 << 10, 300 << 10, 4 << 20} {
			_, err := criproxytest.CallRaw(metadata.NewOutgoingContext(t.Context(), metadata.Pairs("fail", fmt.Sprint(size))),
				cc, runtimeapi.RuntimeService_ExecSync_FullMethodName, nil)
			if s := status.Convert(err); s.Code() != codes.Unknown || len(s.Message()) != size {
				t.Errorf("%s: an error of %d bytes became %v with %d bytes", endpoint, size, s.Code(), len(s.Message()))
			}
		}
		cancel()
		if err := <-waiting; status.Code(err) != codes.Canceled {
			t.Errorf("%s: another call ended with %v; want Canceled", endpoint, err)
		}
	}
}

// The runtime restarts gracefully, again and again, under 64 callers. No call fails.
func TestGracefulRestartsOfTheRuntimeFailNoCall(t *testing.T) {
	restarts := 30
	if testing.Short() {
		restarts = 5
	}
	r := newWaitingRuntime(t)
	proxied, _ := serveBefore(t, "unix://"+r.socket)
	cc := client(t, proxied)
	var callers errgroup.Group
	var answered atomic.Int64
	over := make(chan struct{})
	for caller := range 64 {
		method := runtimeapi.RuntimeService_Version_FullMethodName
		if caller%2 == 0 {
			method = runtimeapi.ImageService_ImageStatus_FullMethodName // has a handler
		}
		callers.Go(func() error {
			return until(over, func() error {
				got, err := criproxytest.CallRaw(t.Context(), cc, method, []byte("x"))
				answered.Add(1)
				if err == nil && string(got) != "x" {
					err = errors.New("another answer")
				}
				return err
			})
		})
	}
	for range restarts {
		for before := answered.Load(); answered.Load() < before+2*64; {
			time.Sleep(time.Millisecond)
		}
		old := r.server
		r.start(t)
		old.GracefulStop()
	}
	close(over)
	if err := callers.Wait(); err != nil {
		t.Errorf("of %d calls one failed: %v; want none", answered.Load(), err)
	}
}
