package criproxy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

// counts is the metrics of a server under test.
type counts struct{ panics atomic.Int64 }

func (*counts) ForwardedCall(string, string, bool, time.Duration) {}
func (c *counts) Panic()                                          { c.panics.Add(1) }

// serveBefore starts a proxy before any endpoint and returns where it listens and how it stops.
func serveBefore(tb testing.TB, endpoint string) (proxied string, server *criproxy.Server) {
	tb.Helper()
	socket := endpoint[len("unix://"):] + ".proxy"
	server, stop := serveOn(tb, criproxytest.Listen(tb, socket), endpoint)
	tb.Cleanup(stop)
	return "unix://" + socket, server
}

// serveOn starts a proxy on a listener before any endpoint, and returns what stops it.
func serveOn(tb testing.TB, l net.Listener, endpoint string) (server *criproxy.Server, stop func()) {
	tb.Helper()
	up := upstream(tb, endpoint)
	// A call that a handler forwards is as transparent as one that has no handler.
	handlers := map[string]criproxy.Handler{runtimeapi.ImageService_ImageStatus_FullMethodName: forward}
	server, end := serveWith(tb, l, criproxy.Config{Runtime: up, Image: up, Handlers: handlers})
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	watched := make(chan struct{})
	go func() { defer close(watched); up.Watch(ctx, func(bool) {}) }()
	return server, func() {
		end()
		cancel()
		<-watched
		if err := up.Close(); err != nil {
			tb.Error(err)
		}
	}
}

// upstream returns the connection to an endpoint. It is closed at the end of the test.
func upstream(tb testing.TB, endpoint string) *criproxy.Upstream {
	tb.Helper()
	up := testkit.Value(criproxy.Dial(endpoint))(tb)
	tb.Cleanup(func() { _ = up.Close() }) // a test may have closed it
	return up
}

// serveWith starts a server on a listener, and returns what stops it.
func serveWith(tb testing.TB, l net.Listener, c criproxy.Config) (server *criproxy.Server, stop func()) {
	tb.Helper()
	if c.Metrics == nil {
		c.Metrics = &counts{}
	}
	server = criproxy.New(c)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	return server, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 5*time.Second)
		defer cancel()
		server.Shutdown(ctx)
		if err := <-done; err != nil {
			tb.Error(err)
		}
	}
}

func TestForwardingIsTransparent(t *testing.T) {
	for _, profile := range []criproxytest.Profile{criproxytest.Containerd, criproxytest.CRIO} {
		t.Run(profile.String(), func(t *testing.T) {
			echo := criproxytest.NewEchoAs(t, profile)
			proxied, _ := serveBefore(t, echo.Endpoint())
			criproxytest.Fidelity(t, echo, proxied)
		})
	}
}

func client(tb testing.TB, endpoint string, options ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	cc := testkit.Value(grpc.NewClient(endpoint, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()))...))(tb)
	tb.Cleanup(func() { _ = cc.Close() })
	return cc
}

// Only runtime.v1 is forwarded: other APIs on the runtime's socket would bypass the handlers, and a method whose name a
// runtime could decode to another one as well.
func TestOtherServicesAreNotPassedOn(t *testing.T) {
	echo := criproxytest.NewEcho(t)
	proxied, _ := serveBefore(t, echo.Endpoint())
	cc := client(t, proxied)
	for _, method := range []string{
		"/containerd.services.images.v1.Images/List", "/grpc.health.v1.Health/Check",
		"/runtime.v1alpha2.ImageService/ListImages",
		"/runtime.v1.RuntimeService2/Version", "/runtime.v1/Version",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
		"/runtime.v1.ImageService/Image%53tatus", "/runtime.v1.ImageService//ImageStatus",
		"//runtime.v1.ImageService/ImageStatus", "/runtime.v1.ImageService/ImageStatus/",
		"/runtime.v1.ImageService/ImageStatus?x", "/runtime.v1.ImageService/./ImageStatus",
		"/runtime.v1.ImageService/", "/runtime.v1.ImageService/ImageStatus#", "/RUNTIME.v1.ImageService/ImageStatus",
	} {
		if _, err := criproxytest.CallRaw(t.Context(), cc, method, nil); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s = %v; want Unimplemented", method, err)
		}
	}
}

func TestReconnectAfterTheRuntimeRestarts(t *testing.T) {
	runtime := criproxytest.NewRuntime(t)
	proxied, _ := serveBefore(t, runtime.Endpoint())
	runs := runtimeapi.NewRuntimeServiceClient(client(t, proxied))
	version := func() error {
		_, err := runs.Version(t.Context(), &runtimeapi.VersionRequest{})
		return err
	}
	testkit.Must(t, version())
	for range 3 {
		runtime.Stop()
		for down := time.Now(); time.Since(down) < 300*time.Millisecond; { // the back-off grows
			began := time.Now()
			if err := version(); status.Code(err) != codes.Unavailable {
				t.Errorf("Version without a runtime = %v; want Unavailable", err)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("a call without a runtime failed after %v; want at once", took)
			}
		}
		runtime.Start(t)
		back := time.Now()
		for err := version(); err != nil; err = version() {
			if time.Since(back) > 10*time.Second {
				t.Fatalf("Version fails 10 s after the runtime is back: %v", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func TestOpenStreamEndsWithUnavailable(t *testing.T) {
	for name, end := range map[string]func(*criproxytest.Echo, *criproxy.Server){
		"when the runtime stops": func(e *criproxytest.Echo, _ *criproxy.Server) { e.Stop() },
		"when the proxy stops": func(_ *criproxytest.Echo, s *criproxy.Server) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			s.Shutdown(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			echo := criproxytest.NewEcho(t)
			proxied, server := serveBefore(t, echo.Endpoint())
			stream, err := client(t, proxied).NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
				"/runtime.v1.RuntimeService/GetContainerEvents")
			testkit.Must(t, err)
			testkit.Must(t, stream.SendMsg(&runtimeapi.GetEventsRequest{}))
			testkit.Must(t, stream.RecvMsg(&runtimeapi.ContainerEventResponse{}))
			began := time.Now()
			go end(echo, server)
			err = stream.RecvMsg(&runtimeapi.ContainerEventResponse{})
			if status.Code(err) != codes.Unavailable || errors.Is(err, io.EOF) {
				t.Errorf("stream ended with %v; want Unavailable", err)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("stream ended after %v; want at once", took)
			}
		})
	}
}

// A handler that panics answers Internal and is counted; other calls are not affected.
func TestPanicIsAnsweredAndCounted(t *testing.T) {
	echo := criproxytest.NewEcho(t)
	up := upstream(t, echo.Endpoint())
	l := criproxytest.Listen(t, strings.TrimPrefix(echo.Endpoint(), "unix://")+".proxy")
	counted := &counts{}
	_, stop := serveWith(t, l, criproxy.Config{
		Runtime: up, Image: up, Metrics: counted,
		Handlers: map[string]criproxy.Handler{
			runtimeapi.ImageService_PullImage_FullMethodName: func(context.Context, *criproxy.Call) ([]byte, error) {
				panic("a defect")
			},
		},
	})
	defer stop()
	cc := client(t, "unix://"+l.Addr().String())
	defer func() { _ = cc.Close() }()
	if _, err := runtimeapi.NewImageServiceClient(cc).PullImage(t.Context(),
		&runtimeapi.PullImageRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("call that panics = %v; want Internal", err)
	}
	if got := counted.panics.Load(); got != 1 {
		t.Errorf("%d panics counted; want 1", got)
	}
	if _, err := runtimeapi.NewRuntimeServiceClient(cc).Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
		t.Errorf("next call = %v; want nil", err)
	}
}

func TestCallsAreLoggedAtLevel4(t *testing.T) {
	for level, want := range map[int]string{
		3: "",
		4: `"msg"="Call ended" "method"="/other.Service/Call" "code"="Unimplemented" "judged"=false "took"=`,
	} {
		up := upstream(t, criproxytest.NewEcho(t).Endpoint())
		socket := t.TempDir() + "/proxy.sock"
		var log strings.Builder // read when the server has ended
		_, stop := serveWith(t, criproxytest.Listen(t, socket), criproxy.Config{
			Runtime: up, Image: up, Log: funcr.New(func(_, line string) { log.WriteString(line) },
				funcr.Options{Verbosity: level}),
		})
		if _, err := criproxytest.CallRaw(t.Context(), client(t, "unix://"+socket), "/other.Service/Call",
			nil); status.Code(err) != codes.Unimplemented {
			t.Errorf("call of another service = %v; want Unimplemented", err)
		}
		stop()
		if got := log.String(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("-v %d: log %q; want %s", level, got, want)
		}
	}
}

// Any bytes pass unchanged, also fields that only a later version of the CRI knows.
func FuzzForwardedBytes(f *testing.F) {
	for _, seed := range [][]byte{nil, {0}, {0xff, 0xff, 0xff}, {0x0a, 0x01, 'x'}, {0xfa, 0x3e, 0x03, 'n', 'e', 'w'}} {
		f.Add(seed)
	}
	echo := criproxytest.NewEcho(f)
	proxied, _ := serveBefore(f, echo.Endpoint())
	cc := client(f, proxied)
	f.Fuzz(func(t *testing.T, message []byte) {
		for _, method := range []string{"/runtime.v1.RuntimeService/Version", "/runtime.v1.RuntimeService/NotYetInvented"} {
			got, err := criproxytest.CallRaw(t.Context(), cc, method, message)
			if err != nil || !bytes.Equal(got, message) {
				t.Errorf("%s: %x became %x, %v", method, message, got, err)
			}
		}
	})
}

func BenchmarkVersionDirect(b *testing.B)  { benchmarkVersion(b, false) }
func BenchmarkVersionProxied(b *testing.B) { benchmarkVersion(b, true) }

func benchmarkVersion(b *testing.B, through bool) {
	b.Helper()
	runtime := criproxytest.NewRuntime(b)
	endpoint := runtime.Endpoint()
	if through {
		endpoint, _ = serveBefore(b, endpoint)
	}
	runs := runtimeapi.NewRuntimeServiceClient(client(b, endpoint))
	for b.Loop() {
		testkit.Value(runs.Version(b.Context(), &runtimeapi.VersionRequest{}))(b)
	}
}

func TestHandlerOfAnUnknownMethodIsRefused(t *testing.T) {
	for _, method := range []string{
		"ImageStatus", "/runtime.v1.ImageService/imageStatus", "/runtime.v1.RuntimeService/GetContainerEvents",
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("New with a handler for %s does not panic", method)
				}
			}()
			criproxy.New(criproxy.Config{Handlers: map[string]criproxy.Handler{method: nil}, Metrics: &counts{}})
		}()
	}
}
