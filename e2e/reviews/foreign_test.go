package reviews_test

import (
	"bytes"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/release"
)

// The webhook of another project refuses a static pod, by the configuration that it publishes. Only the address is
// another one: a node does not resolve services.
// Shows: 004-30
func TestForeignWebhookRefusesAStaticPod(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	const image = "app.test/app:1"
	published := string(testkit.Value(os.ReadFile("testdata/pod-security-webhook.yaml"))(t))
	w := start(t, func(w *world) {
		address, authority := servePodSecurity(w)
		w.settings = ", exempt: {staticPods: false}"
		text := strings.NewReplacer(`caBundle: ""`, "caBundle: "+base64.StdEncoding.EncodeToString(authority),
			"      service:\n        namespace: \"pod-security-webhook\"\n        name: \"webhook\"\n",
			"      url: https://"+address+"/\n").Replace(published)
		w.must(os.WriteFile(filepath.Join(w.policies, "hook.yaml"), []byte(text), 0o644))
	}, image)
	create := func(mounts ...*runtimeapi.Mount) error {
		pod := w.kubelet.PodFrom("kube-system", "file")
		w.must(w.kubelet.Sandbox(t.Context(), pod))
		_, err := w.kubelet.Create(t.Context(), pod, id, image, mounts...)
		return err
	}
	w.must(create())
	err := create(&runtimeapi.Mount{HostPath: "/etc", ContainerPath: "/host"})
	const denial = `hook pod-security-webhook.kubernetes.io/pod-security-webhook.kubernetes.io denied it: `
	if err == nil || !strings.Contains(err.Error(), denial) || !strings.Contains(err.Error(), "hostPath volumes") {
		t.Errorf("a static pod with a hostPath: %v; want %s…hostPath volumes", err, denial)
	}
	w.logged(map[string]int{"HOOK_DENIED": 1})
}

// servePodSecurity runs the webhook before an API server with one namespace, in which the level is baseline.
func servePodSecurity(w *world) (address string, authority []byte) {
	w.Helper()
	program := testkit.Value(release.PodSecurityWebhook(w.Context()))(w)
	api := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			rw.(http.Flusher).Flush() //nolint:errcheck,forcetypeassert // that of a server is one
			<-r.Context().Done()
			return
		}
		_, _ = fmt.Fprint(rw, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","labels":`+
			`{"pod-security.kubernetes.io/enforce":"baseline"}}}`)
	}))
	ca := testkit.Value(testkit.NewAuthority("ca"))(w)
	pair := testkit.Value(ca.Issue(pkix.Name{CommonName: "webhook"}, time.Now().Add(time.Hour)))(w)
	path := func(name string, content []byte) string {
		w.must(os.WriteFile(filepath.Join(w.dir, name), content, 0o600))
		return filepath.Join(w.dir, name)
	}
	l := testkit.Value((&net.ListenConfig{}).Listen(w.Context(), "tcp", "127.0.0.1:0"))(w)
	_, port, err := net.SplitHostPort(l.Addr().String())
	w.must(err)
	w.must(l.Close())
	cmd := exec.Command(program, "--secure-port", port, "--kubeconfig", path("psa.kubeconfig", fmt.Appendf(nil,
		"{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}], "+
			"clusters: [{name: a, cluster: {server: %q}}]}", api.URL)),
		"--tls-cert-file", path("psa.crt", pair.Certificate), "--tls-private-key-file", path("psa.key", pair.Key))
	var log bytes.Buffer
	cmd.Stderr = &log
	w.must(cmd.Start())
	w.Cleanup(func() {
		_, _ = cmd.Process.Kill(), cmd.Wait()
		api.CloseClientConnections()
		api.Close()
		if w.Failed() {
			w.Logf("the webhook: %s", &log)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := (&net.Dialer{}).DialContext(w.Context(), "tcp", "127.0.0.1:"+port)
		if err == nil {
			w.must(conn.Close())
			break
		}
		if time.Now().After(deadline) {
			w.Fatalf("the webhook does not listen: %v\n%s", err, &log)
		}
	}
	return "localhost:" + port, ca.PEM()
}
