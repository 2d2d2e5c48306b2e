package criproxy_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
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

// A call that does not end, and that has begun while another one was waited for, keeps no new connection waiting for
// longer than a kubelet does.
func TestLongCallsKeepNoConnectionWaiting(t *testing.T) {
	runtime := criproxytest.NewRuntime(t)
	begun, goOn, ever := make(chan struct{}), make(chan struct{}), make(chan struct{})
	defer close(ever)
	var calls atomic.Int64
	runtime.Do(func(r *criproxytest.Runtime) {
		r.BeforeAnswer = func(method string) {
			if method != "Status" {
				return
			}
			begun <- struct{}{}
			if calls.Add(1) == 1 {
				<-goOn
			} else {
				<-ever
			}
		}
	})
	endpoint, serve := keptSocket(t, runtime)
	server, stop := serve()
	conn := client(t, endpoint)
	call := func(ended chan<- error) {
		_, err := runtimeapi.NewRuntimeServiceClient(conn).Status(t.Context(), &runtimeapi.StatusRequest{})
		ended <- err
	}
	first, second := make(chan error, 1), make(chan error, 1)
	go call(first)
	<-begun
	stopped := make(chan time.Duration, 1)
	go func() { stopped <- shutdown(t, server, 6*time.Second) }()
	time.Sleep(100 * time.Millisecond) // it waits for the first one
	go call(second)
	<-begun
	end := callThrough(t, endpoint, true)
	close(goOn)
	if err := <-first; err != nil {
		t.Errorf("the call that was under way = %v; want its answer", err)
	}
	took := <-stopped
	stop()
	_, stop = serve()
	defer stop()
	if err := end(); err != nil {
		t.Errorf("a new connection: %v; want it served by one process or the other", err)
	}
	if code := status.Code(<-second); code != codes.Unavailable && code != codes.Canceled {
		t.Errorf("the call that does not end = %v; want it cancelled", code)
	}
	t.Logf("the stop took %v", took)
}

// A connection that sends nothing delays a stop by less than the handshake limit, and no call of others fails.
func TestSilentConnectionFailsNoCallOfOthers(t *testing.T) {
	endpoint, serve := keptSocket(t, criproxytest.NewRuntime(t))
	server, stop := serve()
	silent := testkit.Value((&net.Dialer{}).DialContext(t.Context(), "unix", endpoint[len("unix://"):]))(t)
	defer func() { _ = silent.Close() }()
	if _, err := silent.Read(make([]byte, 1)); err != nil { // the server has sent its part of the handshake
		t.Fatal(err)
	}
	stays, connects := callThrough(t, endpoint, false), callThrough(t, endpoint, true)
	if took := shutdown(t, server, 10*time.Second); took > 4800*time.Millisecond {
		t.Errorf("the stop took %v; want about a second, and less than the handshake limit", took)
	}
	stop()
	_, stop = serve()
	defer stop()
	if err := errors.Join(stays(), connects()); err != nil {
		t.Error(err)
	}
}

// keptSocket returns the endpoint of a socket that stays open, and a function that starts the next proxy on it.
func keptSocket(t *testing.T, runtime *criproxytest.Runtime) (
	endpoint string, serve func() (server *criproxy.Server, stop func()),
) {
	t.Helper()
	path := filepath.Join(filepath.Dir(runtime.Endpoint()[len("unix://"):]), "kept.sock")
	kept := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
	t.Cleanup(func() { _ = kept.Close() })
	return "unix://" + path, func() (*criproxy.Server, func()) {
		f := testkit.Value(kept.File())(t)
		l, err := net.FileListener(f)
		testkit.Must(t, errors.Join(err, f.Close()))
		return serveOn(t, l, runtime.Endpoint())
	}
}

// shutdown stops a server within a limit, and returns how long that took.
func shutdown(t *testing.T, server *criproxy.Server, limit time.Duration) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	server.Shutdown(ctx)
	return time.Since(began)
}

// callThrough calls Version again and again as a kubelet does, on one connection or with one for each call, until end
// is called, which returns the first error. It has an answer when it returns.
func callThrough(t *testing.T, endpoint string, connects bool) (end func() error) {
	t.Helper()
	over, answered := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(answered) })
	conn := dialAsKubelet(t, endpoint)
	var calls errgroup.Group
	calls.Go(func() error {
		defer first()
		return until(over, func() error {
			time.Sleep(5 * time.Millisecond)
			if connects {
				conn = dialAsKubelet(t, endpoint)
				defer func() { _ = conn.Close() }()
			}
			_, err := runtimeapi.NewRuntimeServiceClient(conn).Version(t.Context(), &runtimeapi.VersionRequest{})
			first()
			return err
		})
	})
	<-answered
	return func() error {
		close(over)
		return calls.Wait()
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
	endpoint, serve := keptSocket(t, runtime)

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
		conn := dialAsKubelet(t, endpoint)
		for caller := range 21 {
			callers.Go(func() error { return until(over, func() error { return call(conn, caller%2 == 0) }) })
		}
	}
	callers.Go(func() error { // a client that connects for each call
		return until(over, func() error {
			conn := dialAsKubelet(t, endpoint)
			return errors.Join(call(conn, false), conn.Close())
		})
	})
	for range rounds {
		_, stop := serve()
		for before := answered.Load(); answered.Load() < before+200; {
			time.Sleep(time.Millisecond)
		}
		stop()
	}
	close(over)
	_, stop := serve() // clients that still wait are answered too
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
