package dispatcher

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/testkit"
)

const (
	manyNodes   = 15_000
	manyPods    = 50 // of a wave
	memoryBound = 100_000_000
	childOf     = "PULLGATE_TEST_API" // the URL of the API server, in the process that is measured
)

// TestMemoryOf15000Nodes measures the leader in a process of its own, before an API server that streams the first list
// and before one that sends it in pages.
func TestMemoryOf15000Nodes(t *testing.T) {
	if url := os.Getenv(childOf); url != "" {
		program.BoundMemory()
		c := testkit.Value(newClient(&rest.Config{Host: url}))(t)
		o := Options{Namespace: "pullgate", Image: ownImage, Version: ownVersion, Log: klog.Background()}
		newLoop(o, c, newMetrics(ownVersion)).run(t.Context())
		return
	}
	if testkit.Raced || testing.Short() {
		t.Skip("the race detector needs memory of its own")
	}
	for _, streams := range []bool{true, false} {
		t.Run(fmt.Sprintf("streams=%t", streams), func(t *testing.T) {
			s := newManyNodes(t, streams)
			server := httptest.NewServer(s)
			defer server.Close()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestMemoryOf15000Nodes$")
			child.Env = append(os.Environ(), childOf+"="+server.URL)
			var out bytes.Buffer
			child.Stdout, child.Stderr = &out, &out
			testkit.Must(t, child.Start())
			defer func() { stop(); _ = child.Wait() }()
			began := time.Now()
			select {
			case <-s.changing:
			case <-time.After(2 * time.Minute): //nolint:forbidigo // of a test
				t.Fatalf("no wave after two minutes\n%s", out.String())
			}
			time.Sleep(time.Second) // the pods reach the cache
			first := peak(t, child.Process.Pid)
			close(s.heartbeats)
			<-s.sent
			time.Sleep(time.Second)
			second := peak(t, child.Process.Pid)
			t.Logf("%d nodes of %d bytes, %d pods: %d MiB with the wave after %v, %d MiB after a heartbeat of each node",
				manyNodes, s.size, manyPods, first>>20, time.Since(began).Round(time.Millisecond), second>>20)
			if second > memoryBound {
				t.Errorf("%d bytes; want at most %d", second, memoryBound)
			}
		})
	}
}

// peak returns the most memory that a process has had.
func peak(t *testing.T, pid int) int {
	t.Helper()
	text := testkit.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	return testkit.Value(strconv.Atoi(string(m[1])))(t) << 10
}

// A manyServer is an API server with many nodes and a Rollout, whose first wave begins. The pods of it do not run.
type manyServer struct {
	*testing.T

	streams    bool
	codecs     serializer.CodecFactory
	info       runtime.SerializerInfo
	large      *corev1.Node
	size       int
	changing   chan struct{} // closed when the wave has its pods
	heartbeats chan struct{}
	sent       chan struct{}

	mu      sync.Mutex
	version int
	rollout []byte
	begun   map[string]*corev1.Node // the nodes of the wave
	pods    int
	// What has changed since the lists, for the watches.
	rollouts, changed, created chan []byte
}

func newManyNodes(t *testing.T, streams bool) *manyServer {
	t.Helper()
	scheme := runtime.NewScheme()
	testkit.Must(t, corev1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, schemaVersion)
	s := &manyServer{
		T: t, streams: streams, large: largeParts(), codecs: serializer.NewCodecFactory(scheme),
		changing: make(chan struct{}), heartbeats: make(chan struct{}), sent: make(chan struct{}),
		version: 2_000_000, begun: map[string]*corev1.Node{},
		rollouts: make(chan []byte, 1000), changed: make(chan []byte, 1000), created: make(chan []byte, 1000),
	}
	s.rollout = testkit.Value(json.Marshal(map[string]any{
		"apiVersion": api.Group + "/" + api.Version, "kind": "Rollout",
		"metadata": map[string]any{"name": "r", "uid": "u", "resourceVersion": "1", "finalizers": []string{api.Finalizer}},
		"spec": api.RolloutSpec{
			Version: ownVersion, NodeSelector: &metav1.LabelSelector{}, Mode: api.ModeEnforce, Unsigned: true,
			Configuration: configuration, Waves: waves(manyPods),
		},
	}))(t)
	s.info, _ = runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	s.size = len(s.encode(s.node(1)))
	return s
}

var schemaVersion = corev1.SchemeGroupVersion

func (s *manyServer) encode(o runtime.Object) []byte {
	return testkit.Value(runtime.Encode(s.codecs.EncoderForVersion(s.info.Serializer, schemaVersion), o))(s)
}

func random(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(strconv.FormatUint(r.Uint64(), 36))
	}
	return b.String()[:n]
}

// largeParts are what Nodes of clouds have that is not kept: annotations of agents, 50 images, managed fields.
func largeParts() *corev1.Node {
	r := rand.New(rand.NewPCG(0, 0))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":"` + random(r, 3000) + `"}`),
		}},
	}}
	for j := range 8 {
		n.Annotations[fmt.Sprintf("agent.example.com/annotation-%d", j)] = random(r, 150)
	}
	for range 50 {
		name := "registry.example.com/team/" + random(r, 20)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names: []string{name + "@sha256:" + random(r, 64), name + ":" + random(r, 8)}, SizeBytes: 1 << 28,
		})
	}
	return n
}

// node returns a Node with 25 labels and a record.
func (s *manyServer) node(i int) *corev1.Node {
	r := rand.New(rand.NewPCG(uint64(i), 0))
	n := *s.large
	n.Name, n.UID = fmt.Sprintf("ip-10-%d-%d-%d.ec2.internal", i>>16, i>>8&255, i&255), types.UID(random(r, 36))
	n.ResourceVersion, n.Labels = strconv.Itoa(1_000_000+i), map[string]string{}
	for j := range 25 {
		n.Labels[fmt.Sprintf("node.example.com/label-%d", j)] = random(r, 20)
	}
	n.Annotations = maps.Clone(n.Annotations)
	machine, boot, hash := random(r, 32), random(r, 36), strings.Repeat("0", 64)
	n.Annotations[api.InstalledAnnotation] = `{"version":"v1","mode":"Enforce","configuration":"` + hash +
		`","machineID":"` + machine + `","attempt":"` + random(r, 47) + `"}`
	n.Annotations[api.AttemptAnnotation] = `{"rollout":"` + strings.Repeat("u", 36) + `","number":1800000000,"plan":"` +
		hash + `","wave":9,"machineID":"` + machine + `","bootID":"` + boot + `","action":"Install","version":"v1",` +
		`"mode":"Enforce","configuration":"` + hash + `","started":"2026-11-28T12:00:00Z",` +
		`"deadline":"2026-11-28T12:10:00Z","outcome":"Installed","stage":"","ended":"2026-11-28T12:01:00Z"}`
	n.Status.NodeInfo = corev1.NodeSystemInfo{MachineID: machine, BootID: boot, OperatingSystem: "linux"}
	for _, c := range []string{
		"MemoryPressure", "DiskPressure", "PIDPressure", "Ready", "PullgateEnforcing",
	} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(c), Status: "True", Reason: "Reason", Message: strings.Repeat(c, 10),
			LastHeartbeatTime: metav1.Now(),
		})
	}
	return &n
}

func (s *manyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	watches := r.URL.Query().Get("watch") != ""
	initial := r.URL.Query().Get("sendInitialEvents") != ""
	switch {
	case r.Method != http.MethodGet:
		s.write(w, r)
	case watches && initial && !s.streams:
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`))
	case r.URL.Path == "/api/v1/nodes" && watches:
		s.watchNodes(w, r, initial)
	case r.URL.Path == "/api/v1/nodes":
		s.listNodes(w, r)
	case strings.HasSuffix(r.URL.Path, "/pods") && watches:
		s.watchPods(w, r, initial)
	case strings.HasSuffix(r.URL.Path, "/pods"):
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(s.encode(&corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}))
	default:
		s.serveRollouts(w, r, watches, initial)
	}
}

// write takes the status of the Rollout, and for the wave patches of nodes and new pods. It answers and tells the
// watches, as an API server does.
func (s *manyServer) write(w http.ResponseWriter, r *http.Request) {
	body := testkit.Value(io.ReadAll(r.Body))(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	version := strconv.Itoa(s.version)
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	switch name := path.Base(r.URL.Path); {
	case r.Method == http.MethodPost && name == "pods":
		o := testkit.Value(runtime.Decode(s.codecs.UniversalDeserializer(), body))(s)
		p, ok := o.(*corev1.Pod)
		if !ok {
			s.Errorf("created a %T; want a pod", o)
			return
		}
		p.UID, p.ResourceVersion, p.ManagedFields = types.UID(version), version, s.large.ManagedFields
		p.Status.Phase = corev1.PodPending
		s.created <- s.encode(p)
		_, _ = w.Write(s.encode(p))
		if s.pods++; s.pods == manyPods {
			close(s.changing)
		}
	case strings.HasPrefix(r.URL.Path, "/api/v1/nodes/"):
		var a, b, c, i int
		testkit.Value(fmt.Sscanf(name, "ip-10-%d-%d-%d", &a, &b, &c))(s)
		i = a<<16 | b<<8 | c
		merged := testkit.Value(jsonpatch.MergePatch(testkit.Value(json.Marshal(s.node(i)))(s), body))(s)
		n := &corev1.Node{}
		testkit.Must(s, json.Unmarshal(merged, n))
		n.ResourceVersion, s.begun[name] = version, n
		s.changed <- s.encode(n)
		_, _ = w.Write(s.encode(n))
	case strings.HasSuffix(r.URL.Path, "/rollouts/r/status"):
		patch := testkit.Value(jsonpatch.DecodePatch(body))(s)
		s.rollout = testkit.Value(patch.Apply(s.rollout))(s)
		next := []byte(`{"metadata":{"resourceVersion":"` + version + `"}}`)
		s.rollout = testkit.Value(jsonpatch.MergePatch(s.rollout, next))(s)
		s.rollouts <- s.rollout
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_, _ = w.Write(s.rollout)
	default:
		s.Errorf("unexpected %s of %s", r.Method, r.URL.Path)
		w.WriteHeader(http.StatusNotFound)
	}
}

// listNodes sends a page.
func (s *manyServer) listNodes(w http.ResponseWriter, r *http.Request) {
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	if limit == 0 {
		limit = manyNodes
	}
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "2000000"}}
	for i := from; i < min(from+limit, manyNodes); i++ {
		list.Items = append(list.Items, *s.node(i))
	}
	if from+limit < manyNodes {
		list.Continue = strconv.Itoa(from + limit)
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_, _ = w.Write(s.encode(list))
}

// An eventStream writes events of a watch.
type eventStream struct {
	*manyServer

	to streaming.Encoder
}

func (s *manyServer) stream(w http.ResponseWriter) eventStream {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	frames := s.info.StreamSerializer.Framer.NewFrameWriter(w)
	encoder := s.codecs.EncoderForVersion(s.info.StreamSerializer.Serializer, schemaVersion)
	return eventStream{s, streaming.NewEncoder(frames, encoder)}
}

func (e eventStream) send(kind string, o runtime.Object) { e.sendEncoded(kind, e.encode(o)) }

func (e eventStream) sendEncoded(kind string, o []byte) {
	_ = e.to.Encode(&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: o}})
}

// follow sends changes until the watch ends, or until end is closed.
func (e eventStream) follow(
	w http.ResponseWriter, r *http.Request, kind string, all <-chan []byte, end <-chan struct{},
) {
	for {
		flush(w)
		select {
		case o := <-all:
			e.sendEncoded(kind, o)
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *manyServer) watchNodes(w http.ResponseWriter, r *http.Request, initial bool) {
	e := s.stream(w)
	if initial {
		for i := range manyNodes {
			e.send("ADDED", s.node(i))
		}
		bookmark := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "2000000", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}
		e.send("BOOKMARK", bookmark)
	}
	e.follow(w, r, "MODIFIED", s.changed, s.heartbeats)
	if r.Context().Err() != nil {
		return
	}
	for i := range manyNodes {
		n := s.node(i)
		s.mu.Lock()
		if begun := s.begun[n.Name]; begun != nil {
			n = begun.DeepCopy()
		}
		s.mu.Unlock()
		n.ResourceVersion = strconv.Itoa(3_000_000 + i)
		e.send("MODIFIED", n)
	}
	flush(w)
	close(s.sent)
	<-r.Context().Done()
}

func (s *manyServer) watchPods(w http.ResponseWriter, r *http.Request, initial bool) {
	e := s.stream(w)
	if initial {
		e.send("BOOKMARK", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	e.follow(w, r, "ADDED", s.created, nil)
}

func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}

func (s *manyServer) serveRollouts(w http.ResponseWriter, r *http.Request, watches, initial bool) {
	s.mu.Lock()
	o := json.RawMessage(s.rollout)
	s.mu.Unlock()
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	encoder := json.NewEncoder(w)
	version := api.Group + "/" + api.Version
	if !watches {
		_ = encoder.Encode(map[string]any{
			"apiVersion": version, "kind": "RolloutList", "metadata": map[string]any{"resourceVersion": "1"},
			"items": []any{o},
		})
		return
	}
	if initial {
		_ = encoder.Encode(map[string]any{"type": "ADDED", "object": o})
		end := map[string]any{"apiVersion": version, "kind": "Rollout", "metadata": map[string]any{
			"resourceVersion": "1", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}
		_ = encoder.Encode(map[string]any{"type": "BOOKMARK", "object": end})
	}
	for {
		flush(w)
		select {
		case o := <-s.rollouts:
			_ = encoder.Encode(map[string]any{"type": "MODIFIED", "object": json.RawMessage(o)})
		case <-r.Context().Done():
			return
		}
	}
}
