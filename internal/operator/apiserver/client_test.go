package apiserver_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/operator/apiserver"
	"github.com/pullgate/pullgate/internal/testkit"
)

// The identity of the caller goes to no other host.
func TestRedirectIsNotFollowed(t *testing.T) {
	asked := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer other.Close()
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.Must(t, os.WriteFile(path, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
		contexts: [{name: c, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: %q}}],
		users: [{name: u, user: {token: canary}}]}`, server.URL), 0o600))
	c := testkit.Value(apiserver.New(apiserver.Options{Kubeconfig: path}))(t)
	defer c.Close()
	if err := c.Get(t.Context(), "/api/v1/namespaces/a/pods/b", &corev1.Pod{}); err == nil || asked != 0 {
		t.Errorf("Get = %v, and the other host was asked %d times; want an error, and no request", err, asked)
	}
}
