package criproxy_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

func TestUnaryCallUnderWayEndsWithUnavailable(t *testing.T) {
	runtime := criproxytest.NewRuntime(t)
	proxied, _ := serveBefore(t, runtime.Endpoint())
	runtime.Do(func(r *criproxytest.Runtime) { r.BeforeAnswer = func(string) { runtime.Stop() } })
	_, err := runtimeapi.NewRuntimeServiceClient(client(t, proxied)).Version(t.Context(), &runtimeapi.VersionRequest{})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("call under way when the runtime goes = %v; want Unavailable", err)
	}
}

// A runtime that accepts connections and sends nothing counts as absent: calls to it fail, and
// the runtime that replaces it is found.
func TestRuntimeThatSendsNothingCountsAsAbsent(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a handshake that does not come")
	}
	dir := criproxytest.SocketDir(t)
	socket := filepath.Join(dir, "runtime.sock")
	l := criproxytest.Listen(t, socket)
	proxied, _ := serveBefore(t, "unix://"+socket)
	runs := runtimeapi.NewRuntimeServiceClient(client(t, proxied))
	version := func(ctx context.Context) error {
		_, err := runs.Version(ctx, &runtimeapi.VersionRequest{})
		return err
	}
	limited, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := version(limited); status.Code(err) != codes.Unavailable {
		t.Errorf("first call to a runtime that sends nothing = %v; want Unavailable", err)
	}
	for range 20 {
		began := time.Now()
		if err := version(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("call to a runtime that sends nothing = %v; want Unavailable", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("a later call failed after %v; want at once", took)
		}
	}
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	echo := criproxytest.NewEcho(t)
	testkit.Must(t, os.Symlink(strings.TrimPrefix(echo.Endpoint(), "unix://"), socket))
	for back := time.Now(); version(t.Context()) != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(back) > 10*time.Second {
			t.Fatal("no call gets through 10 s after a runtime has replaced the one that sends nothing")
		}
	}
}

// A call that fails without an answer of the runtime says why; Unavailable of the runtime itself passes.
func TestReasonsOfCallsWithoutAnAnswer(t *testing.T) {
	reason := func(err error) string {
		for _, d := range status.Convert(err).Details() {
			if i, ok := d.(*errdetails.ErrorInfo); ok {
				return i.GetReason()
			}
		}
		return ""
	}
	r := newWaitingRuntime(t)
	proxied, _ := serveBefore(t, "unix://"+r.socket)
	cc := client(t, proxied)
	for _, method := range []string{
		runtimeapi.RuntimeService_Version_FullMethodName, runtimeapi.ImageService_ImageStatus_FullMethodName,
		"/runtime.v1.RuntimeService/NotYetInvented",
	} {
		_, err := criproxytest.CallRaw(metadata.NewOutgoingContext(t.Context(), metadata.Pairs("unavailable", "1")), cc,
			method, nil)
		if status.Code(err) != codes.Unavailable || reason(err) != "" || status.Convert(err).Message() != "busy" {
			t.Errorf("%s: Unavailable of the runtime became %v with reason %q", method, err, reason(err))
		}
		before := r.waits.Load()
		lost := make(chan error, 1)
		go func() {
			_, err := criproxytest.CallRaw(metadata.NewOutgoingContext(t.Context(), metadata.Pairs("wait", "1")), cc, method,
				nil)
			lost <- err
		}()
		for r.waits.Load() == before {
			time.Sleep(time.Millisecond)
		}
		r.server.Stop()
		if err := <-lost; status.Code(err) != codes.Unavailable || reason(err) != "RUNTIME_CONNECTION_LOST" {
			t.Errorf("%s: a call whose runtime stops = %v with reason %q", method, err, reason(err))
		}
		for began := time.Now(); ; time.Sleep(time.Millisecond) { // the state follows
			_, err := criproxytest.CallRaw(t.Context(), cc, method, nil)
			if status.Code(err) == codes.Unavailable && reason(err) == "RUNTIME_UNAVAILABLE" {
				break
			}
			if time.Since(began) > 10*time.Second {
				t.Fatalf("%s: a call without a runtime = %v with reason %q", method, err, reason(err))
			}
		}
		r.start(t)
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			if _, err := criproxytest.CallRaw(t.Context(), cc, method, nil); err == nil {
				break
			} else if time.Since(began) > 10*time.Second {
				t.Fatalf("%s: a call after the runtime is back = %v", method, err)
			}
		}
	}
}
