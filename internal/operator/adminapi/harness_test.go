package adminapi_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
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
	mu       sync.Mutex
	images   []tracker.Image
	err      error // of the runtime
	pods     []tracker.Pod
	sourced  []tracker.Pod
	listed   []adminapi.SourcedPod
	asked    int                         // about an image
	policies map[string][]string         // by UID
	using    map[string][]string         // containers, by UID
	secrets  map[string][]tracker.Secret // by UID
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

func (n *node) Pods() []adminapi.SourcedPod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.listed)
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
	t       *testing.T
	node    *node
	store   *records.Store
	key     credential.Key
	tracker *tracker.Tracker
	server  *adminapi.Server
	feed    *adminapi.Feed
	socket  string
	conn    *grpc.ClientConn
	panics  int
	trusted int
}

func newWorld(t *testing.T, o tracker.Options, change ...func(c *adminapi.Config)) *world {
	t.Helper()
	store, _, err := records.Open(filepath.Join(t.TempDir(), "records.db"), records.Options{})
	must(t, err)
	return newWorldOn(t, store, o, change...)
}

func newWorldOn(t *testing.T, store *records.Store, o tracker.Options, change ...func(c *adminapi.Config)) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "pga") //nolint:usetesting // a socket's path must be short
	must(t, err)
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
	pull, err := w.tracker.BeginPull(w.t.Context(), imageref.New(name), tracker.Image{})
	must(w.t, err)
	proof := tracker.Proof{ImageID: id, Pod: tracker.Pod{UID: pod.UID, Namespace: pod.Namespace}}
	if password != "" {
		proof.Credential = secret(password)
		proof.Secrets = []tracker.Secret{w.secretWith(password)}
	}
	if _, err := pull.Proved(proof); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) secretWith(password string) tracker.Secret {
	return tracker.Secret{Credential: w.id(password), Ref: records.SecretRef{UID: "uid-" + password, Namespace: "team", Name: password}}
}

func aPod(name string) tracker.Pod {
	return tracker.Pod{UID: "uid-" + name, Namespace: "team", Name: name}
}

// try checks with the tracker, as the gate does.
func (w *world) try(pod tracker.Pod, name string) tracker.Verdict {
	w.t.Helper()
	i, err := w.node.Image(w.t.Context(), name)
	must(w.t, err)
	return w.tracker.Check(w.t.Context(), tracker.Request{Pod: tracker.Pod{UID: pod.UID, Namespace: pod.Namespace}, Name: imageref.New(name), Image: i})
}

func numbered(n int) tracker.Image {
	return tracker.NewImage(fmt.Sprintf("sha256:%064x", n), fmt.Sprintf("repo.test/many/%d:1", n))
}

// must ends a test that cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
