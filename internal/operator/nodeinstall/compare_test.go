package nodeinstall_test

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/operator/nodeinstall"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

type noMetrics struct{}

func (noMetrics) ForwardedCall(string, string, bool, time.Duration) {}
func (noMetrics) Panic()                                            {}

// before returns the endpoint of a proxy before a runtime, with a handler for one method; "" is none.
func before(t *testing.T, runtime, method string, handle criproxy.Handler) string {
	t.Helper()
	up := testkit.Value(criproxy.Dial(runtime))(t)
	c := criproxy.Config{Runtime: up, Image: up, Metrics: noMetrics{}, Log: klog.Background()}
	if method != "" {
		c.Handlers = map[string]criproxy.Handler{method: handle}
	}
	s := criproxy.New(c)
	socket := filepath.Join(t.TempDir(), "s")
	l := testkit.Value(net.Listen("unix", socket))(t)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Shutdown(context.WithoutCancel(t.Context()))
		testkit.Must(t, <-done, up.Close())
	})
	return "unix://" + socket
}

// A proxy that answers one call otherwise than the runtime is found, whichever it is.
func TestCompareCRI(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	k := criproxytest.NewKubelet(t, r.Endpoint())
	p := k.Pod("team-a")
	testkit.Must(t, k.Sandbox(t.Context(), p))
	same := before(t, r.Endpoint(), "", nil)
	if err := nodeinstall.CompareCRI(t.Context(), same, r.Endpoint(), r.Endpoint()); err != nil {
		t.Errorf("CompareCRI of a transparent proxy = %v", err)
	}
	fails := func(context.Context, *criproxy.Call) ([]byte, error) {
		return nil, status.Error(codes.Internal, "wrong")
	}
	adds := func(ctx context.Context, c *criproxy.Call) ([]byte, error) { // a field that the runtime does not send
		answer, err := c.Forward(ctx)
		return protowire.AppendVarint(protowire.AppendTag(answer, 999, protowire.VarintType), 1), err
	}
	for n, tc := range []struct {
		method string
		handle criproxy.Handler
		want   string
	}{
		{"RuntimeService/Version", fails, "Version through pullgated answers otherwise than the runtime: error Internal"},
		{"RuntimeService/Version", adds, "Version through pullgated"},
		{"RuntimeService/Status", fails, "Status through"},
		{"RuntimeService/ListPodSandbox", fails, "ListPodSandbox through"},
		{"RuntimeService/ListPodSandbox", adds, "ListPodSandbox through"},
		{"RuntimeService/ListContainers", fails, "ListContainers through"},
		{"RuntimeService/RuntimeConfig", fails, "RuntimeConfig through"},
		{"RuntimeService/PodSandboxStatus", fails, "PodSandboxStatus through"},
		{"ImageService/ListImages", adds, "ListImages through"},
		{"ImageService/ImageFsInfo", fails, "ImageFsInfo through"},
	} {
		t.Run(strconv.Itoa(n), func(t *testing.T) { // a socket has a short path
			t.Parallel()
			wrong := before(t, r.Endpoint(), "/runtime.v1."+tc.method, tc.handle)
			err := nodeinstall.CompareCRI(t.Context(), wrong, r.Endpoint(), r.Endpoint())
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("CompareCRI = %v; want %q", err, tc.want)
			}
		})
	}
}
