package policyd

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/internal/testkit"
)

// apiserver answers requests for namespaces as a kube-apiserver does, in JSON.
type apiserver struct {
	mu       sync.Mutex
	all      map[string]map[string]string // the labels
	hidden   map[string]bool              // not in lists yet
	broken   bool
	requests map[string]int
	events   chan string // events that a watch sends
}

func (a *apiserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const path = "/api/v1/namespaces"
	a.mu.Lock()
	name, one := strings.CutPrefix(r.URL.Path, path+"/")
	watch := r.URL.Query().Get("watch") != ""
	kind := "list"
	switch {
	case one:
		kind = "get"
	case watch:
		kind = "watch"
	}
	a.requests[kind]++
	labels, exists := a.all[name]
	broken := a.broken
	list := corev1.NamespaceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	list.APIVersion, list.Kind = "v1", "NamespaceList"
	for name, labels := range a.all {
		if !a.hidden[name] {
			list.Items = append(list.Items, namespace(name, labels))
		}
	}
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case broken:
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":503}`, http.StatusServiceUnavailable)
	case kind == "watch":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case event := <-a.events:
				_, _ = w.Write([]byte(event + "\n"))
				_ = http.NewResponseController(w).Flush()
			}
		}
	case kind == "list":
		_ = json.NewEncoder(w).Encode(list)
	case !exists:
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, 404)
	default:
		_ = json.NewEncoder(w).Encode(namespace(name, labels))
	}
}

func namespace(name string, labels map[string]string) corev1.Namespace {
	meta := metav1.ObjectMeta{Name: name, Labels: labels, ResourceVersion: "2"}
	return corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: meta}
}

func (a *apiserver) count(kind string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests[kind]
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestNamespaceWatch(t *testing.T) {
	a := &apiserver{
		all:    map[string]map[string]string{"dev": {"tier": "dev"}, "new": {"tier": "new"}},
		hidden: map[string]bool{"new": true}, requests: map[string]int{}, events: make(chan string),
	}
	server := httptest.NewServer(a)
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	content := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '" + server.URL + "'}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	testkit.Must(t, os.WriteFile(kubeconfig, []byte(content), 0o600))
	w := newNamespaces(t.Context(), kubeconfig)
	if _, ok := w.labels(t.Context(), "dev"); ok || a.count("get") > 0 {
		t.Error("labels are known, or were requested, before the watch runs")
	}
	testkit.Must(t, w.watch(true))
	eventually(t, "synced", w.ready)
	check := func(namespace string, want map[string]string, requests int) {
		t.Helper()
		before := a.count("get")
		labels, ok := w.labels(t.Context(), namespace)
		if ok != (want != nil) || !maps.Equal(labels, want) || a.count("get")-before != requests {
			t.Errorf("Labels(%s) = %v, %v; want %v with %d requests", namespace, labels, ok, want, requests)
		}
	}
	check("dev", map[string]string{"tier": "dev"}, 0)
	check("new", map[string]string{"tier": "new"}, 1)
	check("absent", nil, 1)
	check("", nil, 0)

	changed := namespace("dev", map[string]string{"tier": "prod"})
	a.events <- string(testkit.Value(json.Marshal(map[string]any{"type": "MODIFIED", "object": changed}))(t))
	eventually(t, "the change", func() bool {
		labels, _ := w.labels(t.Context(), "dev")
		return labels["tier"] == "prod"
	})
	a.mu.Lock()
	a.broken = true
	a.mu.Unlock()
	check("dev", map[string]string{"tier": "prod"}, 0)
	if _, ok := w.labels(t.Context(), "new"); ok {
		t.Error("labels are known without an answer")
	}
	w.close()
	if _, ok := w.labels(t.Context(), "dev"); ok {
		t.Error("labels are known after the watch has ended")
	}
	server.CloseClientConnections()
}
