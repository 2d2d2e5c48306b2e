package adminapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// otherUser is the environment variable that makes this binary a client of the socket that it names.
const otherUser = "PULLGATE_TEST_OTHER_USER"

// TestAsAnotherUser runs in a process of another user.
func TestAsAnotherUser(t *testing.T) {
	socket := os.Getenv(otherUser)
	if socket == "" {
		t.Skip("run by TestOnlyRootAndOurOwnUserMayCall")
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := adminv1.NewPullRecordsClient(conn)
	_, unary := c.GetStatus(ctx, &adminv1.GetStatusRequest{})
	stream, err := c.WatchDecisions(ctx, &adminv1.WatchDecisionsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	_, health := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	_, unknown := c.GetImage(ctx, &adminv1.GetImageRequest{Image: strings.Repeat("x", 1<<20)})
	fmt.Println("unary:", status.Code(unary), "stream:", status.Code(err), "health:", status.Code(health), "large:", status.Code(unknown), status.Convert(unary).Message())
}

func TestOnlyRootAndOurOwnUserMayCall(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	if _, err := w.GetStatus(t.Context(), &adminv1.GetStatusRequest{}); err != nil {
		t.Errorf("our own user: %v; want an answer", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	// A process that gets past the mode of the socket and runs this binary.
	must(t, errors.Join(os.Chmod(filepath.Dir(w.socket), 0o755), os.Chmod(w.socket, 0o666)))
	binary := filepath.Join(filepath.Dir(w.socket), "caller")
	self, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(binary, self, 0o755)
	}
	must(t, err)
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=^TestAsAnotherUser$", "-test.v")
	cmd.Env = append(os.Environ(), otherUser+"="+w.socket)
	cmd.Dir = filepath.Dir(w.socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	want := "unary: PermissionDenied stream: PermissionDenied health: PermissionDenied large: PermissionDenied user 65534 may not call"
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("another user's process prints %s, %v; want %s", out, err, want)
	}
}

func TestServerKeepsItsLimits(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	if _, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: strings.Repeat("x", 1<<20)}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request of more than 1 MiB = %v; want ResourceExhausted", err)
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	open := func() (closed bool) {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", w.socket)
		must(t, err)
		conns = append(conns, c)
		must(t, c.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		for { // the server's settings are first
			if _, err := c.Read(make([]byte, 1024)); err != nil {
				return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
			}
		}
	}
	refused := 0
	for i := range 70 {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", w.socket)
		must(t, err)
		if conns = append(conns, c); i < 63 {
			continue
		}
		if open() {
			refused++
		}
	}
	if refused < 5 {
		t.Errorf("%d connections beyond the 64th were refused; want all", refused)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	conn := w.dial()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := adminv1.NewPullRecordsClient(conn).GetStatus(ctx, &adminv1.GetStatusRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("after the others hung up: %v; want an answer", err)
	}
}

func TestPanicStaysWithinItsCall(t *testing.T) {
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.Status = func(context.Context) *adminv1.GetStatusResponse { panic("no status") }
	})
	if _, err := w.GetStatus(t.Context(), &adminv1.GetStatusRequest{}); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "no status") || w.panics != 1 {
		t.Errorf("a call that panics = %v, %d counted; want Internal, and the panic only in the log", err, w.panics)
	}
	if _, err := w.ListGrants(t.Context(), &adminv1.ListGrantsRequest{}); err != nil {
		t.Errorf("the next call = %v; want an answer", err)
	}
}

func TestHealthIsThatOfTheCRI(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	h := healthv1.NewHealthClient(w.conn)
	check := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, service := range []string{"", "pullgate.admin.v1.PullRecords"} {
			if got, err := h.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service}); err != nil || got.GetStatus() != want {
				t.Errorf("health of %q = %v, %v; want %v", service, got, err, want)
			}
		}
	}
	check(healthv1.HealthCheckResponse_NOT_SERVING)
	w.server.Serving(true)
	check(healthv1.HealthCheckResponse_SERVING)
	w.server.Serving(false)
	check(healthv1.HealthCheckResponse_NOT_SERVING)
}

// Streams end at once when the server stops, and do not delay it; a unary call is drained.
func TestShutdownEndsStreamsAndDrainsCalls(t *testing.T) {
	under, goOn := make(chan struct{}), make(chan struct{})
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.Status = func(context.Context) *adminv1.GetStatusResponse {
			close(under)
			<-goOn
			return &adminv1.GetStatusResponse{Version: "late"}
		}
	})
	ctx := t.Context()
	decisions, err := w.WatchDecisions(ctx, &adminv1.WatchDecisionsRequest{})
	must(t, err)
	if _, err := decisions.Header(); err != nil {
		t.Fatal(err)
	}
	health, err := healthv1.NewHealthClient(w.conn).Watch(ctx, &healthv1.HealthCheckRequest{})
	must(t, err)
	if _, err := health.Recv(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan string, 1)
	go func() {
		resp, err := w.GetStatus(ctx, &adminv1.GetStatusRequest{})
		answered <- fmt.Sprint(resp.GetVersion(), err)
	}()
	<-under
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.server.Shutdown(ctx)
	}()
	for name, recv := range map[string]func() error{
		"decisions": func() error { _, err := decisions.Recv(); return err },
		"health": func() error {
			_, err := health.Recv() // NOT_SERVING may come first
			for err == nil {
				_, err = health.Recv()
			}
			return err
		},
	} {
		if err := recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s at the stop = %v; want Unavailable", name, err)
		}
	}
	close(goOn)
	if got := <-answered; got != "late<nil>" {
		t.Errorf("the call under way = %s; want its answer", got)
	}
	<-stopped
}

// A stream that waits for its client ends at the end of the drain time, and its handler ends before Shutdown returns.
func TestShutdownEndsStreamsThatWaitForTheirClient(t *testing.T) {
	returned := make(chan struct{})
	w := newWorld(t, tracker.Options{})
	reflected, err := reflectionv1.NewServerReflectionClient(w.conn).ServerReflectionInfo(t.Context())
	must(t, err)
	list := &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}
	must(t, reflected.Send(list))
	if resp, err := reflected.Recv(); err != nil || len(resp.GetListServicesResponse().GetService()) < 2 {
		t.Fatalf("reflection = %v, %v; want the services", resp, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	go func() { defer close(returned); w.server.Shutdown(ctx) }()
	if _, err := reflected.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("reflection at the stop = %v; want Unavailable", err)
	}
	<-returned
}

// An idleStream is a stream of which only the context is used.
type idleStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // it is that of the stream
}

func (s idleStream) Context() context.Context { return s.ctx }

// gRPC does not promise that a stream can be used after the call was answered.
func TestStreamIsAnsweredWhenItsHandlerHasReturned(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	cancelled, goOn, answered := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	defer func() {
		select {
		case <-goOn:
		default:
			close(goOn)
		}
	}()
	go func() {
		answered <- w.server.Stream(nil, idleStream{ctx: t.Context()}, &grpc.StreamServerInfo{}, func(_ any, stream grpc.ServerStream) error {
			w.server.Shutdown(t.Context())
			select {
			case <-stream.Context().Done():
			case err := <-answered: // the check below reports it
				answered <- err
			}
			close(cancelled)
			<-goOn // like a Send to a client that does not read
			return stream.Context().Err()
		})
	}()
	<-cancelled
	select {
	case err := <-answered:
		t.Fatalf("answered with %v while the handler runs", err)
	default:
	}
	close(goOn)
	if err := <-answered; status.Code(err) != codes.Unavailable {
		t.Errorf("answered with %v; want Unavailable", err)
	}
}

// A call that hangs is cancelled at the end of the drain time.
func TestShutdownDoesNotWaitForEver(t *testing.T) {
	under := make(chan struct{})
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.Status = func(ctx context.Context) *adminv1.GetStatusResponse {
			close(under)
			<-ctx.Done()
			return &adminv1.GetStatusResponse{}
		}
	})
	go func() { _, _ = w.GetStatus(t.Context(), &adminv1.GetStatusRequest{}) }()
	<-under
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	w.server.Shutdown(ctx)
}
