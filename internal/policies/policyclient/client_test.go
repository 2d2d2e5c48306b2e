package policyclient_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/testkit"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fakeServer is a pullgate-policyd.
type fakeServer struct {
	policyv1.UnimplementedPolicyServer

	answer func(ctx context.Context, r *review) (*reviewed, error)
	verify func(ctx context.Context, r *policyv1.VerifyRequest) (*policyv1.VerifyResponse, error)
}

func (f *fakeServer) Review(ctx context.Context, r *review) (*reviewed, error) {
	return f.answer(ctx, r)
}

func (f *fakeServer) Verify(ctx context.Context, r *policyv1.VerifyRequest) (*policyv1.VerifyResponse, error) {
	return f.verify(ctx, r)
}

type (
	review   = policyv1.ReviewRequest
	reviewed = policyv1.ReviewResponse
	said     = policyv1.ReviewResult
)

// serve serves a fake on a socket until the returned function is called, or the test ends.
func serve(t *testing.T, path string, answer func(context.Context, *review) (*reviewed, error)) (stop func()) {
	t.Helper()
	return serveFake(t, path, &fakeServer{answer: answer})
}

func serveFake(t *testing.T, path string, f *fakeServer) (stop func()) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	must(t, err)
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	policyv1.RegisterPolicyServer(s, f)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = sync.OnceFunc(func() { s.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

func dial(t *testing.T, path string, o policyclient.Options) *policyclient.Client {
	t.Helper()
	c, err := policyclient.New("unix://"+path, o)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func reviewRequest() policyclient.ReviewRequest {
	return policyclient.ReviewRequest{
		PolicyHash: "hash", Namespace: "team", Images: []string{"app:1"}, VolumeImages: []string{"vol:1"},
		Annotations: map[string]string{"k": "v"}, Backends: 1,
	}
}

// echo returns one result that allows each image.
func echo(_ context.Context, r *review) (*reviewed, error) {
	resp := &reviewed{PolicyHash: r.GetPolicyHash()}
	for _, image := range slices.Concat(r.GetImages(), r.GetVolumeImages()) {
		reason := r.GetNamespace() + r.GetAnnotations()["k"]
		resp.Results = append(resp.Results, &said{Backend: "b", Image: image, Allowed: true, Reason: reason})
	}
	return resp, nil
}

func TestReview(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, echo)
	got, err := dial(t, path, policyclient.Options{}).Review(t.Context(), reviewRequest())
	if err != nil || len(got) != 2 || !got[0].Allowed || got[0].Image != "app:1" || got[1].Image != "vol:1" ||
		got[0].Reason != "teamv" {
		t.Errorf("Review = %+v, %v; want two results", got, err)
	}
}

func TestReviewChecksAnswers(t *testing.T) {
	var response *reviewed
	var answer error
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, func(context.Context, *review) (*reviewed, error) { return response, answer })
	c := dial(t, path, policyclient.Options{Reconnect: time.Millisecond})
	refuses := func(name string, want error) {
		t.Helper()
		if got, err := c.Review(t.Context(), reviewRequest()); got != nil || !errors.Is(err, want) {
			t.Errorf("%s: %v, %v; want nil, %v", name, got, err, want)
		}
	}
	response = &reviewed{}
	refuses("empty", policyclient.ErrOtherPolicies)
	response = &reviewed{PolicyHash: "x"}
	refuses("other policies", policyclient.ErrOtherPolicies)
	for name, r := range map[string]*said{
		"another image": {Backend: "b", Image: "x", Allowed: true},
		"no backend":    {Image: "app:1", Allowed: true},
		"too large":     {Backend: "b", Image: "app:1", Reason: strings.Repeat("x", 5<<20)},
	} {
		response = &reviewed{PolicyHash: "hash", Results: []*said{r}}
		refuses(name, policyclient.ErrFailed)
	}
	for code, want := range map[codes.Code]error{
		codes.FailedPrecondition: policyclient.ErrOtherPolicies, codes.Internal: policyclient.ErrFailed,
		codes.Unimplemented: policyclient.ErrFailed, codes.PermissionDenied: policyclient.ErrFailed,
		codes.Canceled: policyclient.ErrFailed, codes.DeadlineExceeded: policyclient.ErrTimedOut,
		codes.Unavailable: policyclient.ErrLost,
	} {
		response, answer = nil, status.Error(code, "x")
		refuses(code.String(), want)
	}
	response, answer = &reviewed{PolicyHash: "hash", Results: []*said{{Backend: "b", Image: "app:1", Failed: true}}}, nil
	if got, err := c.Review(t.Context(), reviewRequest()); err != nil || got[0].Failure == "" || got[0].Allowed {
		t.Errorf("a failure without a reason: %+v, %v; want a failure", got, err)
	}
}

// A pullgate-policyd that was taken over must not use up the memory of pullgated.
func TestAnswersAreBounded(t *testing.T) {
	var response *reviewed
	var answer error
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, func(context.Context, *review) (*reviewed, error) { return response, answer })
	c := dial(t, path, policyclient.Options{})
	many := &reviewed{PolicyHash: "hash"}
	for range 40_000 { // 2 bytes each
		many.Results = append(many.Results, &said{})
	}
	for name, tc := range map[string]struct {
		response *reviewed
		err      error
		want     string
	}{
		"many results":    {many, nil, "more than 18 fields"},
		"a long text":     {&reviewed{PolicyHash: strings.Repeat("x", 128<<10)}, nil, "larger than max"},
		"unknown content": {withUnknown(strings.Repeat("\x98\x06\x00", 30_000)), nil, "more than 18 fields"},
		"a long error":    {nil, status.Error(codes.Internal, strings.Repeat("x", 1<<20)), "policyclient: "},
	} {
		response, answer = tc.response, tc.err
		got, err := c.Review(t.Context(), reviewRequest())
		if got != nil || err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 1024 {
			t.Errorf("%s: %v, %.200v; want an error: %s", name, got, err, tc.want)
		}
	}
}

// withUnknown returns a response with fields of a later version.
func withUnknown(raw string) *reviewed {
	r := &reviewed{PolicyHash: "hash"}
	r.ProtoReflect().SetUnknown([]byte(raw))
	return r
}

func TestReviewWithoutServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c := dial(t, path, policyclient.Options{Reconnect: 500 * time.Millisecond}) // several attempts
	if _, err := c.Review(t.Context(), reviewRequest()); !errors.Is(err, policyclient.ErrNotReached) ||
		!errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no socket: %v; want ErrNotReached, not found", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	if _, err := c.Review(t.Context(), reviewRequest()); !errors.Is(err, policyclient.ErrNotReached) ||
		!errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a socket that nobody listens on: %v; want ErrNotReached, connection refused", err)
	}
}

// until returns an answer that says that it was asked, and ends with its caller.
func until(entered chan struct{}) func(context.Context, *review) (*reviewed, error) {
	return func(ctx context.Context, _ *review) (*reviewed, error) {
		entered <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
}

// The client connects again by itself, also within one review.
func TestReviewReconnects(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c := dial(t, path, policyclient.Options{Reconnect: time.Minute})
	done := make(chan error, 1)
	go func() { _, err := c.Review(t.Context(), reviewRequest()); done <- err }()
	stop := serve(t, path, echo)
	if err := <-done; err != nil {
		t.Errorf("a server that starts during the review: %v; want nil", err)
	}
	for range 3 {
		stop()
		stop = serve(t, path, echo)
		if _, err := c.Review(t.Context(), reviewRequest()); err != nil {
			t.Errorf("after a restart: %v; want nil", err)
		}
	}
	// A server that is killed during the review.
	stop()
	entered := make(chan struct{})
	stop = serve(t, path, until(entered))
	go func() { _, err := c.Review(t.Context(), reviewRequest()); done <- err }()
	<-entered
	stop()
	serve(t, path, echo)
	if err := <-done; err != nil {
		t.Errorf("a server that restarts during the review: %v; want nil", err)
	}
}

// A question that ends pullgate-policyd must not be taken for one that was not sent.
func TestReviewEndsTheServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	entered := make(chan struct{})
	stop := serve(t, path, until(entered))
	c := dial(t, path, policyclient.Options{Reconnect: 500 * time.Millisecond}) // several attempts
	done := make(chan error, 1)
	go func() { _, err := c.Review(t.Context(), reviewRequest()); done <- err }()
	<-entered
	stop()
	if err := <-done; !errors.Is(err, policyclient.ErrLost) || errors.Is(err, policyclient.ErrNotReached) {
		t.Errorf("a server that ends during the review: %v; want ErrLost", err)
	}
	if _, err := c.Review(t.Context(), reviewRequest()); !errors.Is(err, policyclient.ErrNotReached) {
		t.Errorf("the next review: %v; want ErrNotReached", err)
	}
}

func TestReviewEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, until(make(chan struct{}, 3)))
	c := dial(t, path, policyclient.Options{Review: 50 * time.Millisecond})
	if _, err := c.Review(t.Context(), reviewRequest()); !errors.Is(err, policyclient.ErrTimedOut) {
		t.Errorf("after the limit: %v; want ErrTimedOut", err)
	}
	c = dial(t, path, policyclient.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Review(ctx, reviewRequest()); !errors.Is(err, policyclient.ErrTimedOut) {
		t.Errorf("after the deadline of the caller: %v; want ErrTimedOut", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := c.Review(ctx, reviewRequest()); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v; want context.Canceled", err)
	}
}

// A process that accepts connections and sends nothing is as good as none.
func TestReviewOfASilentServer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	must(t, err)
	defer func() { _ = l.Close() }()
	c := dial(t, path, policyclient.Options{Reconnect: time.Millisecond})
	begin := time.Now()
	if _, err := c.Review(t.Context(), reviewRequest()); !errors.Is(err, policyclient.ErrNotReached) {
		t.Errorf("Review = %v; want ErrNotReached", err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("took %v; want a few seconds", took)
	}
}

func TestNewRefusesOtherEndpoints(t *testing.T) {
	if _, err := policyclient.New("127.0.0.1:1", policyclient.Options{}); err == nil {
		t.Error("New = nil; want an error")
	}
}

// otherUser is the environment variable that makes this binary listen on the socket that it names.
const otherUser = "PULLGATE_TEST_OTHER_USER"

// TestAsAnotherUser runs in a process of another user.
func TestAsAnotherUser(t *testing.T) {
	path := os.Getenv(otherUser)
	if path == "" {
		t.Skip("run by TestReviewTrustsRootAlone")
	}
	stop := serve(t, path, echo)
	fmt.Println("listening")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent closes it
	stop()
}

func TestReviewTrustsRootAlone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	refuses := func(what, path string) {
		t.Helper()
		// It does not wait: another attempt finds the same.
		got, err := dial(t, path, policyclient.Options{Reconnect: time.Hour}).Review(t.Context(), reviewRequest())
		if got != nil || !errors.Is(err, policyclient.ErrUntrusted) {
			t.Errorf("%s: %v, %v; want nil, ErrUntrusted", what, got, err)
		}
	}
	refuses("a regular file", file)
	path := filepath.Join(dir, "s")
	serve(t, path, echo)
	link := filepath.Join(dir, "link")
	must(t, os.Symlink(path, link))
	refuses("a link to a socket", link)
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	must(t, os.Chown(path, 65534, 65534))
	refuses("a socket of another user", path)

	// A socket that belongs to root, on which a process of another user listens.
	shared := filepath.Join(dir, "shared")
	self, err := os.ReadFile(os.Args[0])
	if err = errors.Join(err, os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.Mkdir(shared, 0o755),
		os.Chown(shared, 65534, 65534),
		os.WriteFile(filepath.Join(dir, "server"), self, 0o755)); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(shared, "s")
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "server"), "-test.run=^TestAsAnotherUser$")
	cmd.Env, cmd.Dir = append(os.Environ(), otherUser+"="+path), shared
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	must(t, os.Chown(path, 0, 0))
	refuses("a process of another user", path)
}

var must = testkit.Must
