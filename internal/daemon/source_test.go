package daemon_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// An apiServer has one pod and its Secrets, which never change. The tests in e2e use a real API server.
type apiServer struct {
	kubeconfig string
	pod        map[string]any
	secrets    map[string]map[string]any
	conditions chan []byte // what is patched into the status of the node; nil: there is none
}

// newAPIServer has a pod that uses the image of a case, with the case's Secrets.
func newAPIServer(t *testing.T, x *criproxytest.Pod, c tableCase) *apiServer {
	t.Helper()
	a := &apiServer{secrets: map[string]map[string]any{}, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	var named []map[string]string
	for _, s := range c.Pod {
		named = append(named, map[string]string{"name": s.Name})
		entry := map[string]string{"password": s.Content}
		if s.Content != "" {
			entry["username"] = "tenant"
		}
		config, err := json.Marshal(map[string]any{"auths": map[string]any{"repo.test": entry}})
		testkit.Must(t, err)
		a.secrets[s.Name] = map[string]any{
			"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
			"metadata": map[string]any{
				"name": s.Name, "namespace": x.Config.GetMetadata().GetNamespace(), "uid": s.UID,
				"resourceVersion": "1",
			},
			"data": map[string]string{".dockerconfigjson": base64.StdEncoding.EncodeToString(config)},
		}
	}
	a.pod = map[string]any{
		"metadata": map[string]any{
			"name": x.UID, "namespace": x.Config.GetMetadata().GetNamespace(), "uid": x.UID,
			"resourceVersion": "1",
		},
		"spec": map[string]any{
			"nodeName": "node", "imagePullSecrets": named,
			"containers": []map[string]string{{"name": "main", "image": c.Image, "imagePullPolicy": "Never"}},
		},
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.CloseClientConnections) // a watch has no end
	t.Cleanup(server.Close)
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n", server.URL)
	testkit.Must(t, os.WriteFile(a.kubeconfig, []byte(text), 0o600))
	return a
}

func (a *apiServer) settings() string {
	return fmt.Sprintf("podSource: {kubeconfig: %q, nodeName: node}", a.kubeconfig)
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, name, isSecret := strings.Cut(r.URL.Path, "/secrets/")
	var answer any
	switch {
	case isSecret && a.secrets[name] != nil:
		answer = a.secrets[name]
	case a.conditions != nil && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/node"):
		body, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPatch {
			a.conditions <- body
		}
		answer = map[string]any{"kind": "Node", "apiVersion": "v1", "metadata": map[string]any{"name": "node"}}
	case r.URL.Path != "/api/v1/pods":
		w.WriteHeader(http.StatusNotFound)
		answer = map[string]any{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
			"code": http.StatusNotFound,
		}
	case r.URL.Query().Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	default:
		answer = map[string]any{
			"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": "1"},
			"items": []any{a.pod},
		}
	}
	_ = json.NewEncoder(w).Encode(answer) // the client may have gone
}

// The kubelet writes its kubeconfig, and needs pullgated for its start.
func TestStartsBesideAMalformedKubeconfig(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	testkit.Must(t, os.WriteFile(p.path("malformed"), []byte("clusters: ["), 0o600))
	p.configure("podSource: {kubeconfig: " + p.path("malformed") + "}")
	p.start()
	if text, err := p.get("/readyz"); err != nil || !strings.Contains(text, "pod source: not synced") {
		t.Errorf("readyz = %q, %v; want that the pod source is not synced", text, err)
	}
}

// Where it may have no effect, pullgated says so at the start.
func TestGraceWithoutAnEffect(t *testing.T) {
	const grace, said = "credentialValidity: 1h\nregistryUnavailableGrace: 1h", "registryUnavailableGrace has no effect"
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	for settings, want := range map[string]bool{
		"":                                       false,
		grace:                                    true,
		grace + "\nregistryOutageFallback: true": false,
		grace + "\nkubeletSkipsAlwaysPrecheck: \"true\"": false,
		grace + "\npodSource: {kubeconfig: /absent}":     false,
	} {
		p.configure(settings)
		p.start()
		if got := strings.Contains(p.out.String(), said); got != want {
			t.Errorf("%q: said: %v; want %v", settings, got, want)
		}
		p.stop()
	}
}

// The condition of the node says what the status says, unless it is switched off.
func TestNodeCondition(t *testing.T) {
	t.Parallel()
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	api := newAPIServer(t, p.kubelet().PodFrom("a", "api"), tableCase{Image: "repo.test/app"})
	api.conditions = make(chan []byte, 10)
	off := prepare(t, criproxytest.NewRuntime(t).Endpoint())
	off.configure(fmt.Sprintf("podSource: {kubeconfig: %q, nodeName: node, nodeCondition: false}", api.kubeconfig))
	off.start()
	p.configure(api.settings(), "noPullImageSecretRecheck: true")
	p.start()
	for _, p := range []*process{off, p} {
		k := p.kubelet()
		for range 2 {
			_ = testkit.Value(k.Runtime.Status(t.Context(), &runtimeapi.StatusRequest{}))(t)
		}
		_ = testkit.Value(k.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{}))(t)
	}
	var patch struct {
		Status struct {
			Conditions []struct{ Type, Status, Reason, Message string }
		}
	}
	testkit.Must(t, json.Unmarshal(<-api.conditions, &patch))
	status := testkit.Value(p.operator().GetStatus(t.Context(), &adminv1.GetStatusRequest{}))(t)
	begin := fmt.Sprintf("pullgate %s, configuration sha256:%x: shadow mode: ", status.GetVersion(),
		sha256.Sum256([]byte(status.GetConfiguration())))
	if all := patch.Status.Conditions; len(all) != 1 || all[0].Type != "PullgateEnforcing" || all[0].Status != "False" ||
		all[0].Reason != "Shadow" || !strings.HasPrefix(all[0].Message, begin) {
		t.Errorf("%+v; want one, False, Shadow, %q", all, begin)
	}
	p.until(`pullgate_node_condition_writes_total{outcome="written"}`, 1)
	p.stop()
	for _, outcome := range []string{"written", "failed"} {
		off.until(`pullgate_node_condition_writes_total{outcome="`+outcome+`"}`, 0)
	}
	if len(api.conditions) > 0 {
		t.Errorf("a stop, or the other daemon, writes %s", <-api.conditions)
	}
}

// until waits until a metric has a value.
func (p *process) until(metric string, want float64) {
	p.t.Helper()
	eventually(p.t, metric, func() bool { return p.metric(metric) == want })
}
