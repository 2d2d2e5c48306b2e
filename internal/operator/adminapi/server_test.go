package adminapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const (
	app = "repo.test/team/app"
	id1 = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	id2 = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	id3 = "sha256:1111111333333333333333333333333333333333333333333333333333333333"
)

// A node provides what the server needs beside the tracker and the store: the runtime's images, the pods, the pod
// source.
type node struct {
	mu            sync.Mutex
	images        []tracker.Image
	err           error // of the runtime
	pods, sourced []tracker.Pod
	listed        []podsource.Listed
	asked         int                         // about an image
	policies      map[string][]string         // by UID
	using         map[string][]string         // containers, by UID
	secrets       map[string][]tracker.Secret // by UID
}

func (n *node) do(f func(n *node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n)
}

func (n *node) Images(context.Context) ([]tracker.Image, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.images), n.err
}

func (n *node) Image(_ context.Context, name string) (tracker.Image, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	for _, i := range n.images {
		if i.ID == name || i.Carries(imageref.New(name).Name()) {
			return i, n.err
		}
	}
	return tracker.Image{}, n.err
}

func (n *node) All() []tracker.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.pods)
}

func (n *node) Find(uid, namespace, name string) (found []tracker.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.sourced {
		if p.UID == uid || uid == "" && p.Namespace == namespace && p.Name == name {
			found = append(found, p)
		}
	}
	return found
}

func (n *node) Pods() []podsource.Listed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.listed)
}

// ServiceAccount returns that of every pod in namespace team-s.
func (*node) ServiceAccount(_ context.Context, _, namespace string) string {
	if namespace == "team-s" {
		return "builder"
	}
	return ""
}

func (n *node) Uses(uid string, _ imageref.Ref) (uses []podsource.Use, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.policies[uid] {
		uses = append(uses, podsource.Use{PullPolicy: p})
	}
	for _, c := range n.using[uid] {
		uses = append(uses, podsource.Use{Container: c, PullPolicy: "IfNotPresent"})
	}
	_, known = n.policies[uid]
	return uses, known
}

func (n *node) Secrets(_ context.Context, uid string, _ imageref.Ref) ([]tracker.Secret, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.secrets[uid]
	return s, ok
}

// A world is an admin API that serves a real store and a real tracker.
type world struct {
	adminv1.PullRecordsClient
	t               *testing.T
	node            *node
	store           *records.Store
	key             credential.Key
	tracker         *tracker.Tracker
	server          *adminapi.Server
	feed            *adminapi.Feed
	socket          string
	conn            *grpc.ClientConn
	panics, trusted int
	access          *imageaccess.Set
}

func newWorld(t *testing.T, o tracker.Options, change ...func(c *adminapi.Config)) *world {
	t.Helper()
	store, _, err := records.Open(filepath.Join(t.TempDir(), "records.db"), records.Options{})
	must(t, err)
	return newWorldOn(t, store, o, change...)
}

func newWorldOn(t *testing.T, store *records.Store, o tracker.Options, change ...func(c *adminapi.Config)) *world {
	t.Helper()
	dir := testkit.Value(os.MkdirTemp("", "pga"))(t) //nolint:usetesting // a socket's path must be short
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &world{
		t: t, store: store, key: credential.NewKey(), feed: &adminapi.Feed{}, socket: filepath.Join(dir, "admin.sock"),
		node: &node{policies: map[string][]string{}, secrets: map[string][]tracker.Secret{}},
	}
	t.Cleanup(func() { _ = w.store.Close() })
	o.Log = klog.Background().V(99)
	w.tracker = tracker.New(w.store, w.key, w.node, o)
	c := adminapi.Config{
		Tracker: w.tracker, Store: w.store, Runtime: w.node, Pods: w.node, PodSource: w.node, Decisions: w.feed,
		Status: func(context.Context) *adminv1.GetStatusResponse {
			return &adminv1.GetStatusResponse{Version: "v0", Configuration: "kind: x\n"}
		},
		Trusted: func() { w.trusted++ }, Panic: func() { w.panics++ }, Log: klog.Background().V(99),
		Gate: aGate{}, Signatures: &verifier{}, Policies: func() *adminv1.ListPoliciesResponse { return nil },
		EndorsementValidity: func() time.Duration { return 0 }, RevokingEndorsements: func() {},
		Drift:  func() []policyclient.Drift { return nil },
		Access: func() *imageaccess.Set { return w.access },
	}
	for _, f := range change {
		f(&c)
	}
	w.server = adminapi.New(c)
	w.serve()
	w.conn = w.dial()
	w.PullRecordsClient = adminv1.NewPullRecordsClient(w.conn)
	return w
}

func (w *world) serve() {
	w.t.Helper()
	l := listen(w.t, w.socket)
	done := make(chan error, 1)
	go func() { done <- w.server.Serve(l) }()
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		w.server.Shutdown(ctx)
		if err := <-done; err != nil {
			w.t.Errorf("Serve = %v; want nil", err)
		}
	})
}

func (w *world) dial() *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient("unix://"+w.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	must(w.t, err)
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func secret(password string) credential.Credential {
	return credential.New(credential.Login{Username: "tenant", Password: password})
}

func (w *world) id(password string) credential.ID { return w.key.ID(secret(password)) }

// pulled makes a complete pull, with a Secret whose name is the password.
func (w *world) pulled(pod tracker.Pod, name, id, password string) {
	w.t.Helper()
	pull := testkit.Value(w.tracker.BeginPull(w.t.Context(), imageref.New(name), tracker.Image{}))(w.t)
	proof := tracker.Proof{ImageID: id, Pod: tracker.Pod{UID: pod.UID, Namespace: pod.Namespace}}
	if password != "" {
		proof.Sent = w.tracker.Sent(secret(password), pod)
		proof.Secrets = []tracker.Secret{w.secretWith(password)}
	}
	must(w.t, errOf(pull.Proved(proof)))
}

func (w *world) secretWith(password string) tracker.Secret {
	return tracker.Secret{
		Credential: w.id(password), Ref: records.SecretRef{UID: "uid-" + password, Namespace: "team", Name: password},
	}
}

func aPod(name string) tracker.Pod {
	return tracker.Pod{UID: "uid-" + name, Namespace: "team", Name: name}
}

// try checks with the tracker, as the gate does.
func (w *world) try(pod tracker.Pod, name string) tracker.Verdict {
	w.t.Helper()
	i := testkit.Value(w.node.Image(w.t.Context(), name))(w.t)
	return w.tracker.Check(w.t.Context(),
		tracker.Request{Pod: tracker.Pod{UID: pod.UID, Namespace: pod.Namespace}, Name: imageref.New(name), Image: i})
}

func numbered(n int) tracker.Image {
	return tracker.NewImage(fmt.Sprintf("sha256:%064x", n), fmt.Sprintf("repo.test/many/%d:1", n))
}

// errOf returns the error of a call.
func errOf[R any](_ R, err error) error { return err }

var must = testkit.Must

const invalid = codes.InvalidArgument

type (
	revokeReq    = adminv1.RevokeRequest
	acceptReq    = adminv1.AcceptPreloadedRequest
	forgetReq    = adminv1.ForgetPreloadedRequest
	imageFilter  = adminv1.ImageFilter
	secretRef    = adminv1.SecretRef
	endorsedReq  = adminv1.ListEndorsementsRequest
	unendorseReq = adminv1.RevokeEndorsementsRequest
	podRef       = adminv1.PodRef
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// otherUser is the environment variable that makes this binary a client of the socket that it names.
const otherUser = "PULLGATE_TEST_OTHER_USER"

// TestAsAnotherUser runs in a process of another user.
func TestAsAnotherUser(t *testing.T) {
	socket := os.Getenv(otherUser)
	if socket == "" {
		t.Skip("run by TestOnlyRootAndOurOwnUserMayCall")
	}
	conn := testkit.Value(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
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
	fmt.Println("unary:", status.Code(unary), "stream:", status.Code(err), "health:", status.Code(health), "large:",
		status.Code(unknown), status.Convert(unary).Message())
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
	want := "unary: PermissionDenied stream: PermissionDenied health: PermissionDenied large: PermissionDenied user " +
		"65534 may not call"
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("another user's process prints %s, %v; want %s", out, err, want)
	}
}

func TestServerKeepsItsLimits(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	if _, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: strings.Repeat("x",
		1<<20)}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request of more than 1 MiB = %v; want ResourceExhausted", err)
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	open := func() (closed bool) {
		c := testkit.Value((&net.Dialer{}).DialContext(t.Context(), "unix", w.socket))(t)
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
		c := testkit.Value((&net.Dialer{}).DialContext(t.Context(), "unix", w.socket))(t)
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
	if _, err := adminv1.NewPullRecordsClient(conn).GetStatus(ctx, &adminv1.GetStatusRequest{},
		grpc.WaitForReady(true)); err != nil {
		t.Errorf("after the others hung up: %v; want an answer", err)
	}
}

func TestPanicStaysWithinItsCall(t *testing.T) {
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.Status = func(context.Context) *adminv1.GetStatusResponse { panic("no status") }
	})
	if _, err := w.GetStatus(t.Context(), &adminv1.GetStatusRequest{}); status.Code(err) != codes.Internal ||
		strings.Contains(err.Error(), "no status") || w.panics != 1 {
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
			if got, err := h.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service}); err != nil ||
				got.GetStatus() != want {
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
	decisions := testkit.Value(w.WatchDecisions(ctx, &adminv1.WatchDecisionsRequest{}))(t)
	must(t, errOf(decisions.Header()))
	health := testkit.Value(healthv1.NewHealthClient(w.conn).Watch(ctx, &healthv1.HealthCheckRequest{}))(t)
	must(t, errOf(health.Recv()))
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
	reflected := testkit.Value(reflectionv1.NewServerReflectionClient(w.conn).ServerReflectionInfo(t.Context()))(t)
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
		answered <- w.server.Stream(nil, idleStream{ctx: t.Context()}, &grpc.StreamServerInfo{},
			func(_ any, stream grpc.ServerStream) error {
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

// filledFile is the file of a store of several megabytes. It is made once: that takes seconds under the race detector.
var filledFile = sync.OnceValues(func() (content []byte, err error) {
	dir, err := os.MkdirTemp("", "filled")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "records.db")
	s, _, err := records.Open(path, records.Options{})
	if err != nil {
		return nil, err
	}
	var pairs []records.Pair
	for i := range 20_000 {
		pairs = append(pairs, records.Pair{ImageID: numbered(i).ID, Repository: app})
	}
	if _, err := s.AcceptMarks(pairs, "operator", time.Now(), false); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// filled returns a store of several megabytes, and its path.
func filled(t *testing.T) (*records.Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "records.db")
	content, err := filledFile()
	must(t, errors.Join(err, os.WriteFile(path, content, 0o600)))
	s, _, err := records.Open(path, records.Options{KeyExists: true})
	must(t, err)
	return s, path
}

func TestBackupSendsAWholeStoreWhileItIsWritten(t *testing.T) {
	s, _ := filled(t)
	w := newWorldOn(t, s, tracker.Options{})
	stream := testkit.Value(w.Backup(t.Context(), &adminv1.BackupRequest{}))(t)
	var copied []byte
	for n := 0; ; n++ {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if (piece.GetSize() != 0) != (n == 0) || len(piece.GetChunk()) > 1<<20 {
			t.Errorf("piece %d: %d bytes, size %d; want the size with the first alone", n, len(piece.GetChunk()),
				piece.GetSize())
		}
		if n == 1 { // the first message does not wait for the reader
			w.pulled(aPod("late"), "repo.test/late:1", id1, "late")
		}
		copied = append(copied, piece.GetChunk()...)
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.WriteFile(path, copied, 0o600))
	c, report, err := records.Open(path, records.Options{KeyExists: true})
	if err != nil || report != (records.Report{Distrust: report.Distrust}) || report.Distrust == nil {
		t.Fatalf("the copy: %+v, %v; want a valid store in distrust", report, err)
	}
	defer func() { _ = c.Close() }()
	if st, err := c.Stats(); err != nil || st.Marks != 20_000 || st.Records != 0 {
		t.Errorf("the copy has %+v, %v; want what was there when it was asked for", st, err)
	}
}

// A reader that disconnects, and a reader that stops reading while the server stops, leave nothing behind.
func TestBackupEndsWithItsReader(t *testing.T) {
	s, _ := filled(t)
	w := newWorldOn(t, s, tracker.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := w.Backup(ctx, &adminv1.BackupRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	must(t, err)
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Canceled {
		t.Errorf("after hanging up: %v; want Canceled", err)
	}
	if stream, err = w.Backup(t.Context(), &adminv1.BackupRequest{}); err == nil {
		_, err = stream.Recv()
	}
	must(t, err)
	limited, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	w.server.Shutdown(limited) // messages to a reader that does not read are cancelled then
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable && !errors.Is(err, io.EOF) {
		t.Errorf("at the stop: %v; want Unavailable", err)
	}
}

func TestVerifyStoreReportsUnreadableValues(t *testing.T) {
	s, path := filled(t)
	w := newWorldOn(t, s, tracker.Options{})
	must(t, testkit.Damage(path, numbered(0).ID+"\x00"+app))
	v, err := w.VerifyStore(t.Context(), &adminv1.VerifyStoreRequest{})
	if err != nil || v.GetValues() < 20_000 || len(v.GetProblems()) != 1 ||
		!strings.Contains(fmt.Sprint(v.GetProblems()), "marks") || v.GetOmitted() != 0 || v.GetTook().AsDuration() <= 0 {
		t.Errorf("VerifyStore = %v, %v; want one problem", v, err)
	}
	if marks, err := w.ListPreloaded(t.Context(), &adminv1.ListPreloadedRequest{ImageId: numbered(0).ID}); err != nil ||
		len(marks.GetMarks()) != 1 {
		t.Errorf("ListPreloaded = %v, %v; want the mark", marks, err)
	}
	// The facts in memory are those from before; the next start removes the value.
	if i := w.images(nil, 1000)[0]; len(i.GetUnreadable()) != 0 || len(i.GetMarks()) != 1 {
		t.Errorf("image = %v; want its mark", i)
	}
}

// A flipped bit in a key may leave a name that is not UTF-8, which no message can contain.
func TestKeysThatAreNotUTF8AreReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	s, _, err := records.Open(path, records.Options{})
	must(t, err)
	if _, err := s.AcceptMarks([]records.Pair{{ImageID: id1, Repository: app}}, "operator", time.Now(),
		false); err != nil {
		t.Fatal(err)
	}
	content := testkit.Value(os.ReadFile(path))(t)
	at := bytes.Index(content, []byte(id1+"\x00"+app)) + len(id1) + 3
	file := testkit.Value(os.OpenFile(path, os.O_WRONLY, 0))(t)
	_, err = file.WriteAt([]byte{content[at] ^ 0x80}, int64(at))
	must(t, errors.Join(err, file.Close()))
	w := newWorldOn(t, s, tracker.Options{})
	if r, err := w.VerifyStore(t.Context(), &adminv1.VerifyStoreRequest{}); err != nil || len(r.GetProblems()) != 1 {
		t.Errorf("VerifyStore = %v, %v; want the mark", r, err)
	}
}

// watch begins to watch, and returns when the stream has every later decision.
//
//nolint:ireturn // what the client gives
func (w *world) watch(req *adminv1.WatchDecisionsRequest) adminv1.PullRecords_WatchDecisionsClient {
	w.t.Helper()
	stream := testkit.Value(w.WatchDecisions(w.t.Context(), req))(w.t)
	must(w.t, errOf(stream.Header()))
	return stream
}

func decided(namespace, image string) decisionlog.Decision {
	return decisionlog.Decision{
		Call: "PullImage", Pod: tracker.Pod{UID: "uid", Namespace: namespace, Name: "web"}, Image: image,
		Repository: strings.TrimSuffix(image, ":1"),
		Verdict: tracker.Verdict{
			Decision: policy.Decision{Verdict: policy.Allow, Reason: policy.Proved},
			Pair:     records.Pair{ImageID: id1, Repository: app}, Credential: "c0ffee",
		},
		Secret:     records.SecretRef{UID: "u", Namespace: namespace, Name: "pull"},
		PullPolicy: "Always", Outcome: "verified", Took: time.Second, Shadow: true,
	}
}

func TestWatchSendsDecisionsFromNowOn(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.feed.Record(decided("before", app+":1"))
	all := w.watch(&adminv1.WatchDecisionsRequest{})
	ofTeam := w.watch(&adminv1.WatchDecisionsRequest{Namespace: "team"})
	ofApp := w.watch(&adminv1.WatchDecisionsRequest{Repository: app + ":any"})
	w.feed.Record(decided("others", "repo.test/other:1"))
	w.feed.Record(decided("others", app+":1"))
	w.feed.Record(decided("team", "repo.test/other:1"))
	for name, tc := range map[string]struct {
		stream adminv1.PullRecords_WatchDecisionsClient
		want   []string
	}{
		"all":        {all, []string{"others repo.test/other:1", "others " + app + ":1", "team repo.test/other:1"}},
		"namespace":  {ofTeam, []string{"team repo.test/other:1"}},
		"repository": {ofApp, []string{"others " + app + ":1"}},
	} {
		for _, want := range tc.want {
			d, err := tc.stream.Recv()
			if err != nil || d.GetPod().GetNamespace()+" "+d.GetImage() != want {
				t.Fatalf("%s: %v, %v; want %s", name, d, err, want)
			}
			if d.GetTime() == nil || d.GetCall() != "PullImage" || d.GetVerdict() != adminv1.Verdict_VERDICT_ALLOW ||
				d.GetReason() != "proved" || d.GetCredentialId() != "c0ffee" ||
				d.GetSecret().GetName() != "pull" || d.GetOutcome() != "verified" || d.GetTook().AsDuration() != time.Second ||
				!d.GetShadow() || d.GetDropped() != 0 || d.GetPair().GetImageId() != id1 {
				t.Errorf("%s: %v; want every field", name, d)
			}
		}
	}
	w.feed.Record(decided("team", strings.Repeat("x", 1023)+"é"+strings.Repeat("x", 1<<20)))
	if d, err := all.Recv(); err != nil || len(d.GetImage()) > 1030 || len(d.GetImage()) < 1000 {
		t.Errorf("a long name = %d bytes, %v; want it cut", len(d.GetImage()), err)
	}
	bad, err := w.WatchDecisions(t.Context(), &adminv1.WatchDecisionsRequest{Repository: "UPPER CASE"})
	if err == nil {
		_, err = bad.Recv()
	}
	if status.Code(err) != invalid {
		t.Errorf("an invalid repository = %v; want InvalidArgument", err)
	}
}

// A watcher that reads too slowly misses decisions and gets their number; decisions do not wait for watchers.
func TestSlowWatcherGetsTheNumberOfMissedDecisions(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	slow := w.watch(&adminv1.WatchDecisionsRequest{})
	const n = 20_000
	big := strings.Repeat("x", 1000)
	began := time.Now()
	for i := range n {
		w.feed.Record(decided("team", fmt.Sprintf("repo.test/%d/%s:1", i, big)))
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("%d decisions took %v while the watcher does not read", n, took)
	}
	// There is room again when a watcher reads.
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-end:
				tick.Stop()
				return
			case <-tick.C:
				w.feed.Record(decided("team", "last"))
			}
		}
	}()
	got, missed := uint64(0), uint64(0)
	for last := false; !last; got++ {
		d := testkit.Value(slow.Recv())(t)
		missed += d.GetDropped()
		last = d.GetImage() == "last"
	}
	close(end)
	<-ended
	if missed == 0 || got > n || got+missed < n {
		t.Errorf("%d read and %d missed of %d; want some missed, and all counted", got, missed, n)
	}
}

func TestSixteenMayWatch(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	var streams []adminv1.PullRecords_WatchDecisionsClient
	for range 15 {
		streams = append(streams, w.watch(&adminv1.WatchDecisionsRequest{}))
	}
	last, err := adminv1.NewPullRecordsClient(w.dial()).WatchDecisions(t.Context(), &adminv1.WatchDecisionsRequest{})
	must(t, err)
	must(t, errOf(last.Header()))
	refused, err := w.WatchDecisions(t.Context(), &adminv1.WatchDecisionsRequest{})
	if err == nil {
		_, err = refused.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the 17th = %v; want ResourceExhausted", err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				w.feed.Record(decided("team", app+":1"))
			}
		})
	}
	wg.Wait()
	for _, s := range streams {
		for range 400 {
			if d, err := s.Recv(); err != nil || d.GetDropped() > 0 {
				t.Fatalf("%v, %v; want all 400", d, err)
			}
		}
	}
}

// reported has the reported images, by credential ID.
type reported map[credential.ID]string

func (r reported) Add(patterns []string, id credential.ID, _ time.Time) (bool, error) {
	_, old := r[id]
	r[id] = strings.Join(patterns, " ")
	return !old, nil
}

func (reported) Save() error { return nil }

// unsaved is a state directory on a full disk.
type unsaved struct{ reported }

func (unsaved) Save() error { return errors.New("no space left on device") }

// full knows as many credentials as it can.
type full struct{ reported }

func (full) Add([]string, credential.ID, time.Time) (bool, error) {
	return false, errors.New("too many")
}

func TestReportForWhichThereIsNoRoom(t *testing.T) {
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.NodeCredentials, c.KeyFingerprint = full{reported{}}, "fingerprint"
	})
	_, err := w.ReportNodeCredentials(t.Context(), &adminv1.ReportNodeCredentialsRequest{
		KeyFingerprint: "fingerprint", Expires: timestamppb.New(time.Now().Add(time.Hour)),
		Credentials: []*adminv1.NodeCredential{{CredentialId: strings.Repeat("0a", 32), Images: []string{"a.test"}}},
	})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("ReportNodeCredentials = %v; want ResourceExhausted", err)
	}
}

func TestReportThatIsNotOnDisk(t *testing.T) {
	got := unsaved{reported{}}
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.NodeCredentials, c.KeyFingerprint = got, "fingerprint"
	})
	_, err := w.ReportNodeCredentials(t.Context(), &adminv1.ReportNodeCredentialsRequest{
		KeyFingerprint: "fingerprint", Expires: timestamppb.New(time.Now().Add(time.Hour)),
		Credentials: []*adminv1.NodeCredential{{CredentialId: strings.Repeat("0a", 32), Images: []string{"a.test"}}},
	})
	if status.Code(err) != codes.Unavailable || len(got.reported) != 1 {
		t.Errorf("ReportNodeCredentials = %v, %v; want Unavailable, and the report in memory", got.reported, err)
	}
}

func (r reported) AddBound(to nodecreds.Account, patterns []string, id credential.ID, _ time.Time) bool {
	_, old := r[id]
	r[id] = strings.Join(patterns, " ") + " for " + to.Namespace + "/" + to.Name + " " + to.UID
	return !old
}

func TestReportOfAServiceAccount(t *testing.T) {
	type account = adminv1.ServiceAccountRef
	got := reported{}
	log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.NodeCredentials, c.KeyFingerprint, c.Log = unsaved{got}, "fingerprint", log // none is on disk
	})
	id := strings.Repeat("0a", 32)
	for name, tc := range map[string]struct {
		change func(a *account)
		want   string // of an error
	}{
		"valid":        {func(*account) {}, ""},
		"empty":        {func(a *account) { proto.Reset(a) }, "service_account"},
		"no namespace": {func(a *account) { a.Namespace = "" }, "service_account"},
		"no name":      {func(a *account) { a.Name = "" }, "service_account"},
		"no UID":       {func(a *account) { a.Uid = "" }, "service_account"},
		"huge name":    {func(a *account) { a.Name = strings.Repeat("a", 254) }, "service_account"},
		"slash":        {func(a *account) { a.Name = "a/b" }, "service_account"},
		"control":      {func(a *account) { a.Uid = "a\nb" }, "service_account"},
		"of a newer version": {func(a *account) {
			a.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
		}, "same version"},
	} {
		clear(got)
		a := &account{Uid: "u-1", Namespace: "team-a", Name: "builder"}
		tc.change(a)
		_, err := w.ReportNodeCredentials(t.Context(), &adminv1.ReportNodeCredentialsRequest{
			KeyFingerprint: "fingerprint", Expires: timestamppb.New(time.Now().Add(time.Hour)), ServiceAccount: a,
			Credentials: []*adminv1.NodeCredential{{CredentialId: id, Images: []string{"a.test"}}},
		})
		if (err == nil) != (tc.want == "") || !strings.Contains(status.Convert(err).Message(), tc.want) {
			t.Errorf("%s: ReportNodeCredentials = %v; want %q", name, err, tc.want)
		}
		if want := "a.test for team-a/builder u-1"; (got[credential.ID(id)] == want) != (err == nil) || err != nil &&
			len(got) > 0 {
			t.Errorf("%s: noted is %v", name, got)
		}
	}
	sink, ok := log.GetSink().(ktesting.Underlier)
	if !ok || strings.Count(sink.GetBuffer().String(), "Credentials of a service account reported") != 1 {
		t.Error("the log does not have one line about the account")
	}
}

func TestReportNodeCredentials(t *testing.T) {
	type report = adminv1.ReportNodeCredentialsRequest
	got := reported{}
	log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	sink, ok := log.GetSink().(ktesting.Underlier)
	if !ok {
		t.Fatal("the log has no buffer")
	}
	buffer := sink.GetBuffer()
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) {
		c.NodeCredentials, c.KeyFingerprint, c.Log = got, "fingerprint", log
	})
	id := strings.Repeat("0a", 32)
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	for name, tc := range map[string]struct {
		change func(r *report)
		code   codes.Code
		want   string
	}{
		"valid":           {func(*report) {}, codes.OK, ""},
		"valid once more": {func(*report) {}, codes.OK, ""},
		"expired":         {func(r *report) { r.Expires = timestamppb.New(time.Unix(1, 0)) }, invalid, "expires"},
		"no expiry":       {func(r *report) { r.Expires = nil }, invalid, "expires"},
		"invalid expiry":  {func(r *report) { r.Expires.Nanos = -1 }, invalid, "expires"},
		"no credentials":  {func(r *report) { r.Credentials = nil }, invalid, "must be 1 to 256"},
		"the most, with long patterns": {func(r *report) {
			long := strings.Repeat("a", 250) + ".test"
			for i := range 255 {
				r.Credentials = append(r.Credentials,
					&adminv1.NodeCredential{CredentialId: fmt.Sprintf("%064x", i), Images: []string{long, long}})
			}
		}, codes.OK, ""},
		"too many": {func(r *report) {
			for range 256 {
				r.Credentials = append(r.Credentials, r.Credentials[0])
			}
		}, invalid, "must be 1 to 256"},
		"short ID": {func(r *report) { r.Credentials[0].CredentialId = id[1:] }, invalid, "credentials[0].credential_id"},
		"upper-case ID": {
			func(r *report) { r.Credentials[0].CredentialId = strings.ToUpper(id) },
			invalid, "credentials[0].credential_id",
		},
		"no images": {func(r *report) { r.Credentials[0].Images = nil }, invalid, "credentials[0].images"},
		"a later invalid one": {func(r *report) {
			r.Credentials = append(r.Credentials, &adminv1.NodeCredential{CredentialId: "x", Images: []string{"a"}})
		}, invalid, "credentials[1]"},
		"of a newer version": {func(r *report) { r.ProtoReflect().SetUnknown(unknown) }, invalid, "same version"},
		"one of a newer version": {
			func(r *report) { r.Credentials[0].ProtoReflect().SetUnknown(unknown) },
			invalid, "same version",
		},
		"too large": {func(r *report) {
			r.Credentials[0].Images = []string{strings.Repeat("a", 1<<20)}
		}, codes.ResourceExhausted, "larger"},
		"another key":    {func(r *report) { r.KeyFingerprint = id }, codes.FailedPrecondition, "--state-dir"},
		"no fingerprint": {func(r *report) { r.KeyFingerprint = "" }, codes.FailedPrecondition, "--state-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			clear(got)
			r := &adminv1.ReportNodeCredentialsRequest{
				KeyFingerprint: "fingerprint", Expires: timestamppb.New(time.Now().Add(time.Hour)),
				Credentials: []*adminv1.NodeCredential{{CredentialId: id, Images: []string{"a.test", "*.b.test"}}},
			}
			tc.change(r)
			_, err := w.ReportNodeCredentials(t.Context(), proto.CloneOf(r))
			if status.Code(err) != tc.code || !strings.Contains(status.Convert(err).Message(), tc.want) {
				t.Errorf("ReportNodeCredentials = %v; want %v with %q", err, tc.code, tc.want)
			}
			want := 0
			if tc.code == codes.OK {
				want = len(r.GetCredentials())
			}
			if noted := got[credential.ID(id)] == "a.test *.b.test"; noted != (want > 0) || len(got) != want {
				t.Errorf("noted is %v; want %d", got, want)
			}
		})
	}
	got[credential.ID(id)] = ""
	before := strings.Count(buffer.String(), "Node credentials reported")
	if _, err := w.ReportNodeCredentials(t.Context(), &adminv1.ReportNodeCredentialsRequest{
		KeyFingerprint: "fingerprint", Expires: timestamppb.New(time.Now().Add(time.Hour)),
		Credentials: []*adminv1.NodeCredential{{CredentialId: id, Images: []string{"a.test"}}},
	}); err != nil {
		t.Fatal(err)
	}
	if after := strings.Count(buffer.String(), "Node credentials reported"); before == 0 || after != before ||
		!strings.Contains(buffer.String(), id) {
		t.Errorf("%d log lines, then %d; want a line with the ID for each new credential alone:\n%s", before, after, buffer)
	}
}

// verifier is pullgate-policyd: every requirement has the same result.
type verifier struct {
	rules  []requirement.Rule
	result requirement.Result
	err    error
	asked  []policyclient.VerifyRequest
}

func (v *verifier) Rules() *requirement.Set {
	return requirement.NewSet("root", &requirement.Policies{Rules: slices.Clone(v.rules), Count: 1})
}

func (v *verifier) Verify(_ context.Context, r policyclient.VerifyRequest) (requirement.Report, error) {
	v.asked = append(v.asked, r)
	var answer requirement.Report
	for _, hash := range r.Requirements {
		result := v.result
		result.Requirement = hash
		answer.Results = append(answer.Results, result)
	}
	answer.Signatures = []requirement.Signature{{
		Repository: "repo.test/team/app", FoundBy: "referrers",
		Digest: "sha256:1", Subject: "sha256:2", Signer: "key", Counts: true, Reason: "valid",
		PredicateType: "https://scan.test", Conditions: []string{"met: found 1"},
	}}
	return answer, v.err
}

func signedBy(key string) *requirement.Requirement {
	return &requirement.Requirement{SignedBy: &requirement.Signer{Key: &requirement.Key{
		Public: []byte(key), Hash: "sha256",
	}}}
}

func patterns(t *testing.T, list ...string) (all []requirement.Pattern) {
	t.Helper()
	for _, s := range list {
		p := testkit.Value(requirement.ParsePattern(s, requirement.KyvernoSyntax))(t)
		all = append(all, p)
	}
	return all
}

func TestVerifyImage(t *testing.T) {
	v := &verifier{
		rules: []requirement.Rule{
			{
				Kind: "ClusterPolicy", Policy: "team", Name: "signed", Images: patterns(t, "repo.test/team/*"),
				Requirement: signedBy("a"),
			},
			{
				Kind: "ClusterPolicy", Policy: "team", Name: "pinned", Images: patterns(t, "repo.test/team/*"), RequireDigest: true,
				Mode: requirement.Audit, Object: &requirement.Validation{},
			},
			{Kind: "ClusterPolicy", Policy: "any", Images: patterns(t, "repo.test/any/*"), Requirement: &requirement.Requirement{
				AtLeast: 1, Of: []requirement.Requirement{*signedBy("c"), {Static: &requirement.Static{Pass: true}}},
			}},
			{
				Kind: "ClusterPolicy", Policy: "zone", Name: "others", Images: patterns(t, "repo.test/none/*"),
				Requirement: signedBy("b"), Default: requirement.DenyUnmatched,
			},
		},
		result: requirement.Result{
			Reason: requirement.IdentityMismatch, Message: "signed by someone else", Digest: "sha256:2",
			Conditions: []string{"denies: found 1"},
		},
	}
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) { c.Signatures = v })
	r, err := w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{
		Image: "repo.test/team/app:1", Namespace: "team", Credential: &adminv1.RegistryLogin{Username: "u", Password: "p"},
	})
	must(t, err)
	if len(v.asked) != 1 || v.asked[0].Credential != (admission.Login{Username: "u", Password: "p"}) ||
		len(v.asked[0].Requirements) != 1 || !v.asked[0].ListSignatures || v.asked[0].Name != "repo.test/team/app:1" {
		t.Fatalf("pullgate-policyd was asked %v; want one question about one requirement", v.asked)
	}
	if len(r.GetRules()) != 2 || r.GetDefaultRule() != nil || len(r.GetSignatures()) != 1 ||
		r.GetImage().GetRepository() != "repo.test/team/app" {
		t.Fatalf("VerifyImage = %v; want two rules and a signature", r)
	}
	if s := r.GetSignatures()[0]; s.GetPredicateType() != "https://scan.test" ||
		!slices.Equal(s.GetConditions(), []string{"met: found 1"}) {
		t.Errorf("signature %v; want its type and condition", s)
	}
	signed, pinned := r.GetRules()[0], r.GetRules()[1]
	if signed.GetMet() || signed.GetReason() != requirement.IdentityMismatch ||
		signed.GetMessage() != "signed by someone else" || signed.GetRequires() == "" ||
		!slices.Equal(signed.GetConditions(), []string{"denies: found 1"}) {
		t.Errorf("rule about signatures: %v; want what pullgate-policyd said", signed)
	}
	if pinned.GetMet() || pinned.GetReason() != "DIGEST_REQUIRED" || !pinned.GetAudit() ||
		pinned.GetRequires() != "a pod that no condition denies, which the webhook judges" {
		t.Errorf("rule about digests: %v; want DIGEST_REQUIRED, only reported", pinned)
	}

	r, err = w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{Image: "repo.test/any/app:1", Namespace: "team"})
	if err != nil || len(r.GetRules()) != 1 || !r.GetRules()[0].GetMet() || len(v.asked) != 1 {
		t.Errorf("VerifyImage by a rule that every image meets = %v, %v; want it met, and nothing asked", r, err)
	}

	r, err = w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{Image: "repo.test/other/app:1", Namespace: "team"})
	if err != nil || len(r.GetRules()) != 0 || r.GetDefaultRule().GetRequires() != "deny" || r.GetDefaultRule().GetMet() ||
		len(v.asked) != 1 {
		t.Errorf("VerifyImage of an image that no rule is for = %v, %v; want the default, and nothing asked", r, err)
	}
}

func TestVerifyImageRefuses(t *testing.T) {
	signed := []requirement.Rule{{
		Kind: "ClusterPolicy", Policy: "team", Images: patterns(t, "*"), Requirement: signedBy("a"),
	}}
	for name, tc := range map[string]struct {
		signatures adminapi.Signatures
		image      string
		want       codes.Code
	}{
		"no image": {&verifier{rules: signed}, "", invalid},
		"an image ID": {
			&verifier{rules: signed},
			"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", invalid,
		},
		"no rule": {&verifier{}, "repo.test/a:1", codes.FailedPrecondition},
		"policyd not reached": {
			&verifier{rules: signed, err: policyclient.ErrNotReached}, "repo.test/a:1",
			codes.Unavailable,
		},
		"an error with quotes": {&verifier{rules: signed, err: errors.New("a\xff")}, "repo.test/a:1", codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) { c.Signatures = tc.signatures })
			if _, err := w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{Image: tc.image}); status.Code(err) != tc.want {
				t.Errorf("VerifyImage = %v; want %v", err, tc.want)
			}
		})
	}
}
