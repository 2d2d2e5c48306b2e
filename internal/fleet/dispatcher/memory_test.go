package dispatcher

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

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
	memoryBound = 100 << 20
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
			case <-s.judged:
			case <-time.After(2 * time.Minute): //nolint:forbidigo // of a test
				t.Fatalf("no status after two minutes\n%s", out.String())
			}
			first := peak(t, child.Process.Pid)
			close(s.heartbeats)
			<-s.sent
			time.Sleep(time.Second)
			second := peak(t, child.Process.Pid)
			t.Logf("%d nodes of %d bytes: %d MiB after the first decision in %v, %d MiB after a heartbeat of each", manyNodes,
				s.size, first>>20, time.Since(began).Round(time.Millisecond), second>>20)
			if second > memoryBound {
				t.Errorf("%d MiB; want at most %d", second>>20, memoryBound>>20)
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

// A manyServer is an API server with many nodes and a Rollout that is paused.
type manyServer struct {
	*testing.T

	streams    bool
	codecs     serializer.CodecFactory
	info       runtime.SerializerInfo
	large      *corev1.Node
	size       int
	once       sync.Once
	judged     chan struct{} // closed when the status is written
	heartbeats chan struct{}
	sent       chan struct{}
}

func newManyNodes(t *testing.T, streams bool) *manyServer {
	t.Helper()
	scheme := runtime.NewScheme()
	testkit.Must(t, corev1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, schemaVersion)
	s := &manyServer{
		T: t, streams: streams, large: largeParts(), codecs: serializer.NewCodecFactory(scheme), judged: make(chan struct{}),
		heartbeats: make(chan struct{}), sent: make(chan struct{}),
	}
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
	n.Annotations[api.InstalledAnnotation] = `{"version":"v1","mode":"Enforce","configuration":"` +
		strings.Repeat("0", 64) + `","machineID":"` + random(r, 32) + `","attempt":"` + random(r, 47) + `"}`
	n.Status.NodeInfo = corev1.NodeSystemInfo{MachineID: random(r, 32), OperatingSystem: "linux"}
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
	case watches && initial && !s.streams:
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`))
	case r.URL.Path == "/api/v1/nodes" && watches:
		s.watchNodes(w, r, initial)
	case r.URL.Path == "/api/v1/nodes":
		s.listNodes(w, r)
	case strings.HasSuffix(r.URL.Path, "/pods") && watches:
		s.watch(w, r, initial, &corev1.Pod{})
	case strings.HasSuffix(r.URL.Path, "/pods"):
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_, _ = w.Write(s.encode(&corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}))
	default:
		s.serveRollouts(w, r, watches, initial)
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

func (e eventStream) send(kind string, o runtime.Object) {
	_ = e.to.Encode(&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: e.encode(o)}})
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
	flush(w)
	select {
	case <-s.heartbeats:
	case <-r.Context().Done():
		return
	}
	for i := range manyNodes {
		n := s.node(i)
		n.ResourceVersion = strconv.Itoa(3_000_000 + i)
		e.send("MODIFIED", n)
	}
	flush(w)
	close(s.sent)
	<-r.Context().Done()
}

func (s *manyServer) watch(w http.ResponseWriter, r *http.Request, initial bool, o runtime.Object) {
	if m, ok := o.(metav1.Object); ok && initial {
		m.SetResourceVersion("1")
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		s.stream(w).send("BOOKMARK", o)
	}
	flush(w)
	<-r.Context().Done()
}

func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}

func (s *manyServer) serveRollouts(w http.ResponseWriter, r *http.Request, watches, initial bool) {
	o := map[string]any{
		"apiVersion": api.Group + "/" + api.Version, "kind": "Rollout",
		"metadata": map[string]any{"name": "r", "uid": "u", "resourceVersion": "1", "finalizers": []string{api.Finalizer}},
		"spec": api.RolloutSpec{
			Version: ownVersion, NodeSelector: &metav1.LabelSelector{}, Mode: api.ModeEnforce, Unsigned: true,
			Configuration: configuration, Paused: true,
		},
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	switch {
	case r.Method == http.MethodPatch:
		s.once.Do(func() { close(s.judged) })
		_ = encoder.Encode(o)
	case watches:
		if initial {
			_ = encoder.Encode(map[string]any{"type": "ADDED", "object": o})
			end := map[string]any{
				"apiVersion": api.Group + "/" + api.Version, "kind": "Rollout", "metadata": map[string]any{
					"resourceVersion": "1", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
				},
			}
			_ = encoder.Encode(map[string]any{"type": "BOOKMARK", "object": end})
		}
		flush(w)
		<-r.Context().Done()
	default:
		_ = encoder.Encode(map[string]any{
			"apiVersion": api.Group + "/" + api.Version, "kind": "RolloutList",
			"metadata": map[string]any{"resourceVersion": "1"}, "items": []any{o},
		})
	}
}
