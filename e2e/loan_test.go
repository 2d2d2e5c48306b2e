package e2e_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/release"
)

// A thief is a server that asks everybody for a credential.
type thief struct {
	*httptest.Server
	mu    sync.Mutex
	asked int
	got   []string
}

func newThief(t *testing.T) *thief {
	t.Helper()
	h := &thief{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.asked++
		h.got = append(h.got, r.Header.Values("Authorization")...)
		w.Header().Set("WWW-Authenticate", `Basic realm="thief"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *thief) host() string { return strings.TrimPrefix(h.url(), "http://") }

// url has another host than the registries: clients keep a credential if they are redirected to a port of one host.
func (h *thief) url() string { return strings.Replace(h.URL, "127.0.0.1", "localhost", 1) }

// gotNothing wants that the thief was asked for something and got no credential.
func (h *thief) gotNothing(t *testing.T, how string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked == 0 || len(h.got) > 0 {
		t.Errorf("%s: the thief had %d requests with the credentials %q; want some, without", how, h.asked, h.got)
	}
	h.asked, h.got = 0, nil
}

// A real containerd gives a lent credential to the registry of the image alone: not to a mirror, not where the registry
// redirects to, and not to a registry of a tenant's choice.
func TestLentCredentialStaysWithItsRegistry(t *testing.T) {
	onEach(t, func(t runtimeTest) {
		program := ""
		if t.containerd != debian {
			program = testkit.Value(release.Containerd(t.Context(), t.containerd))(t)
		}
		n := testkit.Value(node.New(t.Context(), node.Options{Containerd: program, Mirrored: []string{"mirrored.test"}}))(t)
		host.AtEnd(t, n.Close)
		s := &suite{T: t.T, node: n}
		h := newThief(t.T)
		private := n.Private.Host()

		// A registry that sends those who want a layer to the thief.
		to := testkit.Value(url.Parse("http://" + private))(t)
		proxy := httputil.NewSingleHostReverseProxy(to)
		redirecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, _, authorized := r.BasicAuth(); authorized && strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(w, r, h.url()+r.URL.Path, http.StatusTemporaryRedirect)
				return
			}
			proxy.ServeHTTP(w, r)
		}))
		t.Cleanup(redirecting.Close)
		front := strings.TrimPrefix(redirecting.URL, "http://")

		folder, credential := t.TempDir(), filepath.Join(t.TempDir(), "lend.json")
		entry := fmt.Sprintf(`{"username":%q,"password":%q}`, node.Alice().Username, node.Alice().Password)
		s.must(os.WriteFile(credential, fmt.Appendf(nil, `{"auths":{%q:%s,%q:%s}}`, private, entry, front, entry), 0o600))
		files := accessFiles{s, folder}
		files.write(1, "lend", fmt.Sprintf("images: ['%s/loan/*', '%s/loan/*'], from: [{namespaces: [team-b]}], "+
			"grant: Lend, credentials: {dockerConfigFile: %s}", private, front, credential))
		s.protect(n.Containerd.Endpoint(), "admission: {policies: "+folder+"}")

		app := s.private("loan/app:1", node.Image{})
		at := func(registry string) node.Pushed {
			image := app
			image.Name = strings.Replace(app.Name, private, registry, 1)
			return image
		}
		s.run(pod("team-b", at(h.host()), node.IfNotPresent), app, node.PullFailed, -1)
		h.gotNothing(t.T, "a registry of the tenant's choice")
		s.run(pod("team-b", at(front), node.IfNotPresent), app, node.PullFailed, -1)
		h.gotNothing(t.T, "a redirect")

		hosts := filepath.Join(n.Dir, "hosts", private)
		s.must(os.MkdirAll(hosts, 0o755))
		s.must(os.WriteFile(filepath.Join(hosts, "hosts.toml"), fmt.Appendf(nil,
			"server = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+private, h.url()), 0o644))
		s.run(pod("team-b", app, node.IfNotPresent), app, node.Running, -1)
		h.gotNothing(t.T, "a mirror")
	})
}
