package daemon_test

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/daemon"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// A reviewed node is a pullgated and a pullgate-policyd, each as a process, with a backend.
type reviewedNode struct {
	*process

	policies string
	backend  *httptest.Server
	asked    atomic.Int32
	socket   string
	policyd  *exec.Cmd
	mu       sync.Mutex // held while a pod is made
}

// newReviewedNode starts no process. The backend denies images with the tag bad.
func newReviewedNode(t *testing.T, r *criproxytest.Runtime) *reviewedNode {
	t.Helper()
	n := &reviewedNode{policies: filepath.Join(t.TempDir(), "policies")}
	n.backend = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.asked.Add(1)
		var review map[string]any
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		if text := fmt.Sprint(review); strings.Contains(text, "canary") {
			t.Errorf("the backend got %s", text)
		}
		denied := strings.Contains(fmt.Sprint(review["spec"]), ":bad")
		review["status"] = map[string]any{
			"allowed": !denied, "reason": "the tag is bad",
			"auditAnnotations": map[string]string{"scan": "S-1"},
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(n.backend.Close)
	n.process = prepare(t, r.Endpoint())
	n.socket = n.path("policy.sock")
	n.configure("admission: {policies: "+n.policies+", policydSocket: 'unix://"+n.socket+"'}",
		"decisionLog: {path: "+n.path("decisions.log")+"}")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: n.backend.Certificate().Raw})
	kubeconfig := fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: b, cluster: {server: '%s', "+
		"certificate-authority-data: %s}}], contexts: [{name: b, context: {cluster: b}}], current-context: b}",
		n.backend.URL, base64.StdEncoding.EncodeToString(ca))
	testkit.Must(t, errors.Join(os.Mkdir(n.policies, 0o755),
		os.WriteFile(n.path("kubeconfig"), []byte(kubeconfig), 0o600)))
	n.setBackend("false")
	return n
}

// setBackend writes the policy file.
func (n *reviewedNode) setBackend(defaultAllow string) {
	n.t.Helper()
	text := fmt.Sprintf("imagePolicy: {kubeConfigFile: %s, defaultAllow: %s, retryBackoff: 1}\nmatch: {namespaces: "+
		"[team]}\n", n.path("kubeconfig"), defaultAllow)
	testkit.Must(n.t, os.WriteFile(filepath.Join(n.policies, "scanner.yaml"), []byte(text), 0o644))
}

// startPolicyd runs pullgate-policyd until stopPolicyd, or the end of the test.
func (n *reviewedNode) startPolicyd() {
	n.t.Helper()
	dir, err := others()
	testkit.Must(n.t, err)
	text := fmt.Sprintf("apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration\npolicies: %s\nnode: "+
		"{listen: 'unix://%s'}\nmetrics: {listen: ''}\n", n.policies, n.socket)
	testkit.Must(n.t, os.WriteFile(n.path("policyd.yaml"), []byte(text), 0o600))
	n.policyd = exec.Command(filepath.Join(dir, "pullgate-policyd"), "--config", n.path("policyd.yaml"))
	out := &daemon.LogText{}
	n.policyd.Stderr = out
	testkit.Must(n.t, n.policyd.Start())
	n.t.Cleanup(func() {
		n.stopPolicyd()
		if n.t.Failed() {
			n.t.Logf("pullgate-policyd printed:\n%s", out)
		}
	})
}

func (n *reviewedNode) stopPolicyd() {
	if n.policyd != nil {
		_ = n.policyd.Process.Kill()
		_ = n.policyd.Wait()
		n.policyd = nil
	}
}

// create creates a container in a new pod with annotations of two kinds.
func (n *reviewedNode) create(k *criproxytest.Kubelet, namespace, id, name string) error {
	n.t.Helper()
	n.mu.Lock()
	x := k.PodFrom(namespace, "api")
	n.mu.Unlock()
	x.Config.Labels = map[string]string{"canary": "canary"}
	x.Config.Annotations["note"] = "canary"
	x.Config.Annotations["x.image-policy.k8s.io/ticket"] = "T-7"
	testkit.Must(n.t, k.Sandbox(n.t.Context(), x))
	_, err := k.Runtime.CreateContainer(n.t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: x.Sandbox, SandboxConfig: x.Config, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: id, UserSpecifiedImage: name},
			Envs:     []*runtimeapi.KeyValue{{Key: "canary", Value: []byte("canary")}},
		},
	})
	return err
}

const bad = "repo.test/any/pre:bad"

func TestImageReviewsOverTheSockets(t *testing.T) {
	t.Parallel()
	r := criproxytest.NewRuntime(t)
	r.SetImages(criproxytest.Image{ID: id2, Names: []string{pre, bad}})
	n := newReviewedNode(t, r)
	n.start()
	k := n.kubelet()

	// Without pullgate-policyd.
	if err := n.create(k, "team", id2, pre); status.Code(err) != codes.PermissionDenied ||
		!strings.Contains(err.Error(), "image review backend scanner") {
		t.Errorf("without pullgate-policyd: %v; want PermissionDenied", err)
	}
	if err := n.create(k, "else", id2, bad); err != nil {
		t.Errorf("a namespace without a backend: %v; want nil", err)
	}

	n.startPolicyd()
	if err := n.create(k, "team", id2, pre); err != nil {
		t.Errorf("an image that the backend allows: %v; want nil", err)
	}
	err := n.create(k, "team", id2, bad)
	if status.Code(err) != codes.PermissionDenied ||
		!strings.Contains(err.Error(), `image "repo.test/any/pre:bad": denied by the image review backend scanner after `) ||
		!strings.HasSuffix(err.Error(), ": the tag is bad") {
		t.Errorf("an image that the backend denies: %v; want PermissionDenied with its reason", err)
	}
	before := n.asked.Load()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if err := n.create(k, "team", id2, pre); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if now := n.asked.Load(); now != before {
		t.Errorf("the backend was asked %d times about an image that it has allowed; want none", now-before)
	}

	ctl := newCtl(t, n.process)
	if out, _ := ctl.run(0, "policy", "list"); !strings.Contains(out,
		"ImagePolicy  scanner  false         1h0m0s    30s      reviewed       team") {
		t.Errorf("policy list:\n%s", out)
	}
	if out, _ := ctl.run(0, "explain", pre, "--namespace", "team"); !strings.Contains(out,
		"image review backends were not asked; use --ask") {
		t.Errorf("explain:\n%s", out)
	}

	// pullgate-policyd is killed and started again, with a policy file that pullgated has not read yet.
	n.stopPolicyd()
	n.setBackend("true")
	n.startPolicyd()
	if err := n.create(k, "team", id2, bad); status.Code(err) != codes.PermissionDenied {
		t.Errorf("with a new pullgate-policyd and changed files: %v; want PermissionDenied", err)
	}
	n.stopPolicyd()
	if err := n.create(k, "team", id2, bad); err != nil {
		t.Errorf("without pullgate-policyd and with defaultAllow: %v; want nil", err)
	}
	if v := n.metric(`pullgate_admission_failed_open_total{validator="review"}`); v != 1 {
		t.Errorf("failed open %v times; want 1", v)
	}
	n.stop()
	text, err := os.ReadFile(n.path("decisions.log"))
	testkit.Must(t, err)
	lines := slices.Collect(strings.Lines(string(text)))
	for what, want := range map[string]int{
		`"reason":"REVIEW_UNAVAILABLE"`:                            1,
		`"reason":"REVIEW_DENIED"`:                                 2,
		`"failedOpen":true}]`:                                      1,
		`"failedOpen":false,"auditAnnotations":{"scan":"S-1"}}]`:   53,
		`"validator":"review","policy":"scanner","answer":"Admit"`: 52,
		`"verdict":"Reverify","reason":"admission_denied"`:         3,
	} {
		if got := len(slices.DeleteFunc(slices.Clone(lines),
			func(l string) bool { return !strings.Contains(l, what) })); got != want {
			t.Errorf("the decision log has %d lines with %s; want %d", got, what, want)
		}
	}
	if t.Failed() {
		t.Logf("decision log:\n%s", text)
	}
}
