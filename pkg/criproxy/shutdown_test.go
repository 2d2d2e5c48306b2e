package criproxy_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

// While a call takes long the proxy serves on, old connections and new ones.
func TestShutdownServesOnUntilALongCallEnds(t *testing.T) {
	runtime := criproxytest.NewRuntime(t)
	proxied, server := serveBefore(t, runtime.Endpoint())
	under, goOn := make(chan struct{}), make(chan struct{})
	runtime.Do(func(r *criproxytest.Runtime) {
		r.BeforeAnswer = func(method string) {
			if method == "Status" {
				close(under)
				<-goOn
			}
		}
	})
	runs := runtimeapi.NewRuntimeServiceClient(client(t, proxied))
	long := make(chan error, 1)
	go func() {
		_, err := runs.Status(t.Context(), &runtimeapi.StatusRequest{})
		long <- err
	}()
	<-under
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		server.Shutdown(ctx)
	}()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		for who, k := range map[string]runtimeapi.RuntimeServiceClient{
			"old": runs,
			"new": runtimeapi.NewRuntimeServiceClient(client(t, proxied)),
		} {
			if _, err := k.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
				t.Errorf("Version on a %s connection = %v; want it served", who, err)
			}
		}
	}
	select {
	case <-stopped:
		t.Error("stopped before the long call has ended")
	default:
	}
	close(goOn)
	if err := <-long; err != nil {
		t.Errorf("the long call = %v; want its answer", err)
	}
	<-stopped
}

// Nor does a call that begins while another is waited for, and does not end, keep new connections waiting for longer
// than a kubelet does.
func TestLongCallsKeepNoConnectionWaiting(t *testing.T) {
	runtime := criproxytest.NewRuntime(t)
	first, second, goOn, ever := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	runtime.Do(func(r *criproxytest.Runtime) {
		r.BeforeAnswer = func(method string) {
			switch {
			case method != "Status":
			case calls.Add(1) == 1:
				close(first)
				<-goOn
			default:
				close(second)
				<-ever
			}
		}
	})
	defer close(ever)
	socket := filepath.Join(filepath.Dir(runtime.Endpoint()[len("unix://"):]), "kept.sock")
	kept := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socket}))(t)
	defer func() { _ = kept.Close() }()
	serve := func() (*criproxy.Server, func()) {
		f := testkit.Value(kept.File())(t)
		l, err := net.FileListener(f)
		testkit.Must(t, errors.Join(err, f.Close()))
		return serveOn(t, l, runtime.Endpoint())
	}
	server, stop := serve()
	var long, callers errgroup.Group
	runs := runtimeapi.NewRuntimeServiceClient(client(t, "unix://"+socket))
	call := func() error {
		_, err := runs.Status(t.Context(), &runtimeapi.StatusRequest{})
		return err
	}
	long.Go(call)
	<-first
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		server.Shutdown(ctx)
	}()
	// It begins before the first one ends.
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	<-second
	over := make(chan struct{})
	callers.Go(func() error {
		return until(over, func() error {
			conn := dialAsKubelet(t, "unix://"+socket)
			_, err := runtimeapi.NewRuntimeServiceClient(conn).Version(t.Context(), &runtimeapi.VersionRequest{})
			return errors.Join(err, conn.Close())
		})
	})
	close(goOn)
	if err := long.Wait(); err != nil {
		t.Errorf("the call that was under way = %v; want its answer", err)
	}
	<-stopped
	stop()
	_, stop = serve()
	defer stop()
	close(over)
	if err := callers.Wait(); err != nil {
		t.Errorf("a new connection: %v; want it served by one process or the other", err)
	}
	if code := status.Code(<-ended); code != codes.Unavailable && code != codes.Canceled {
		t.Errorf("the call that does not end = %v; want it cancelled", code)
	}
}

// A connection that sends nothing delays a stop by no handshake limit: kubelets do not wait for longer.
func TestIdleConnectionDoesNotDelayShutdown(t *testing.T) {
	proxied, server := serveBefore(t, criproxytest.NewRuntime(t).Endpoint())
	conn := testkit.Value((&net.Dialer{}).DialContext(t.Context(), "unix", proxied[len("unix://"):]))(t)
	defer func() { _ = conn.Close() }()
	if _, err := conn.Read(make([]byte, 1)); err != nil { // the handshake is done
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	server.Shutdown(ctx)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the stop took %v; want about a second, and less than the handshake limit", took)
	}
}

func TestPingReportsWhetherAServerAnswers(t *testing.T) {
	runtime := criproxytest.NewRuntime(t)
	proxied, _ := serveBefore(t, runtime.Endpoint())
	runtime.Stop()
	if err := criproxy.Ping(t.Context(), proxied); err != nil {
		t.Errorf("Ping without a runtime = %v; want nil", err)
	}
	if err := criproxy.Ping(t.Context(), criproxytest.NewRuntime(t).Endpoint()); err == nil {
		t.Error("Ping of a runtime = nil; want an error, it is not pullgated")
	}
	if err := criproxy.Ping(t.Context(), "unix:///nonexistent/cri.sock"); err == nil {
		t.Error("Ping of a socket without a server = nil; want an error")
	}
}

// One process after the other serves the same socket, while 64 callers call and connect. No call fails, and each judged
// one is carried out once.
func TestHandoverFailsNoCall(t *testing.T) {
	runtime := criproxytest.NewRuntime(t)
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	socket := filepath.Join(filepath.Dir(runtime.Endpoint()[len("unix://"):]), "kept.sock")
	kept, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socket})
	testkit.Must(t, err)
	defer func() { _ = kept.Close() }()

	var callers errgroup.Group
	var answered, judged atomic.Int64
	over := make(chan struct{})
	call := func(conn *grpc.ClientConn, judge bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var err error
		if judge {
			judged.Add(1)
			_, err = runtimeapi.NewImageServiceClient(conn).ImageStatus(ctx,
				&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "repo.test/a:1"}})
		} else {
			_, err = runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
		}
		answered.Add(1)
		return err
	}
	for range 3 { // clients that stay connected
		conn := dialAsKubelet(t, "unix://"+socket)
		for caller := range 21 {
			callers.Go(func() error { return until(over, func() error { return call(conn, caller%2 == 0) }) })
		}
	}
	callers.Go(func() error { // a client that connects for each call
		return until(over, func() error {
			conn := dialAsKubelet(t, "unix://"+socket)
			return errors.Join(call(conn, false), conn.Close())
		})
	})
	for range rounds {
		f := testkit.Value(kept.File())(t)
		l, err := net.FileListener(f)
		testkit.Must(t, errors.Join(err, f.Close()))
		_, stop := serveOn(t, l, runtime.Endpoint())
		for before := answered.Load(); answered.Load() < before+200; {
			time.Sleep(time.Millisecond)
		}
		stop()
	}
	close(over)
	last, err := kept.File() // clients that still wait are answered too
	testkit.Must(t, err)
	l, err := net.FileListener(last)
	testkit.Must(t, errors.Join(err, last.Close()))
	_, stop := serveOn(t, l, runtime.Endpoint())
	defer stop()
	if err := callers.Wait(); err != nil {
		t.Errorf("of %d calls one failed: %v; want none", answered.Load(), err)
	}
	if got := runtime.Calls("ImageStatus"); int64(got) != judged.Load() {
		t.Errorf("%d judged calls have reached the runtime %d times; want once each", judged.Load(), got)
	}
}

// until does something again and again, until it fails or it is over.
func until(over <-chan struct{}, do func() error) error {
	for {
		select {
		case <-over:
			return nil
		default:
		}
		if err := do(); err != nil {
			return err
		}
	}
}

// dialAsKubelet connects with a kubelet's settings.
func dialAsKubelet(t *testing.T, endpoint string) *grpc.ClientConn {
	t.Helper()
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}
	params.Backoff.MaxDelay = 3 * time.Second
	conn := testkit.Value(grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(params), grpc.WithAuthority("localhost")))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
