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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"
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
		if took := time.Since(began); took > time.Second {
			t.Errorf("a later call failed after %v; want at once", took)
		}
	}
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	echo := criproxytest.NewEcho(t)
	if err := os.Symlink(strings.TrimPrefix(echo.Endpoint(), "unix://"), socket); err != nil {
		t.Fatal(err)
	}
	for back := time.Now(); version(t.Context()) != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(back) > 2*time.Second {
			t.Fatal("no call gets through 2 s after a runtime has replaced the one that sends nothing")
		}
	}
}
