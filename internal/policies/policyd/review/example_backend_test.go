package review_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/testkit"
)

// exampleBackend is the program in the documentation.
const exampleBackend = "../../../../docs/examples/review-backend"

// The protocol is enough to write a backend: this one imports nothing of this module or of Kubernetes.
// Shows: 000-05, 000-20
func TestExampleBackend(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "review-backend")
	if out, err := exec.Command("go", "build", "-o", program, exampleBackend).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ca := newAuthority(t)
	certificate, key := ca.pair(t, "backend", time.Now().Add(time.Hour))
	put(t, filepath.Join(dir, "tls.crt"), certificate)
	put(t, filepath.Join(dir, "tls.key"), key)
	put(t, filepath.Join(dir, "approved.txt"), []byte("registry.example/\nbusybox:1.36\n"))
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := l.Addr().String()
	testkit.Must(t, l.Close())
	var log bytes.Buffer
	cmd := exec.Command(program)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, []string{"LISTEN=" + address, "TOKEN=secret"}, &log
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	root := base64.StdEncoding.EncodeToString(ca.PEM())
	client := func(token string) *review.Client {
		t.Helper()
		b := backend()
		// the first attempts wait for the start
		b.Kubeconfig, b.RetryBackoff = filepath.Join(dir, "kubeconfig."+token), 200*time.Millisecond
		put(t, b.Kubeconfig, fmt.Appendf(nil, "{apiVersion: v1, kind: Config, users: [{name: u, user: {token: %s}}],\n"+
			"clusters: [{name: c, cluster: {server: 'https://%s', certificate-authority-data: %s}}],\n"+
			"contexts: [{name: c, context: {cluster: c, user: u}}], current-context: c}", token, address, root))
		c := testkit.Value(review.NewClient(b))(t)
		t.Cleanup(c.Close)
		return c
	}
	c := client("secret")
	ticket := map[string]string{"example.image-policy.k8s.io/break-glass": "T-7", "other": "x"}
	for _, tc := range []struct {
		images      []string
		annotations map[string]string
		allowed     bool
		reason      string
		audit       string
	}{
		{[]string{"registry.example/app:1", "busybox:1.36"}, nil, true, "", ""},
		{[]string{"registry.example/app:1", "nginx"}, nil, false, "nginx is not approved", ""},
		{[]string{"nginx"}, ticket, true, "", "T-7"},
		{[]string{"busybox:1.36"}, ticket, true, "", ""},
	} {
		r, ok := c.Review(t.Context(), review.Subject{Namespace: "team", Images: tc.images, Annotations: tc.annotations})
		audit := r.AuditAnnotations["break-glass"]
		if !ok || r.Err != nil || r.Allowed != tc.allowed || r.Reason != tc.reason || audit != tc.audit {
			t.Errorf("%s, %q; want %+v\n%s", r, audit, tc, &log)
		}
	}
	r, _ := client("other").Review(t.Context(), image("busybox:1.36"))
	if !strings.Contains(r.Failure, "status 403") {
		t.Errorf("another token: %s; want a failure", r)
	}
}
