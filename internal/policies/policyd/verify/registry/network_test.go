package registry_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log" //nolint:depguard // the servers of tests take loggers of this kind
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/testkit"
)

const (
	ociIndex    = "application/vnd.oci.image.index.v1+json"
	ociManifest = "application/vnd.oci.image.manifest.v1+json"

	repository = "registry.test/team/app"
	canary     = "canary-7f3a"
)

var authority = sync.OnceValues(func() (*testkit.Authority, error) { return testkit.NewAuthority("registries") })

// A network has servers under names. Nothing else can be reached.
type network struct {
	t *testing.T

	mu       sync.Mutex
	servers  map[string]string // by the address that is dialled
	resolved map[string]string // addresses that are dialled as a client would
	requests []string
	secrets  map[string]bool // hosts that received the canary
	outcomes map[string]int
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	none := func() map[string]string { return map[string]string{} }
	return &network{t: t, servers: none(), resolved: none(), secrets: map[string]bool{}, outcomes: map[string]int{}}
}

// https serves a handler over TLS under a name, "registry.test" or "registry.test:5000".
func (n *network) https(name string, h http.Handler) *httptest.Server {
	n.t.Helper()
	host, _, hasPort := strings.Cut(name, ":")
	pair := testkit.Value(testkit.Value(authority())(n.t).Issue(pkix.Name{CommonName: "server"}, time.Time{}, host))(n.t)
	certificate := testkit.Value(pair.TLS())(n.t)
	s := httptest.NewUnstartedServer(n.record(name, h))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	if !hasPort {
		name += ":443"
	}
	n.add(name, s)
	return s
}

// http serves a handler without TLS.
func (n *network) http(name string, h http.Handler) *httptest.Server {
	n.t.Helper()
	s := httptest.NewServer(n.record(name, h))
	if !strings.Contains(name, ":") {
		name += ":80"
	}
	n.add(name, s)
	return s
}

func (n *network) add(name string, s *httptest.Server) {
	n.t.Cleanup(s.Close)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers[name] = s.Listener.Addr().String()
}

// record notes requests.
func (n *network) record(name string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var all bytes.Buffer
		_ = r.Write(&all)
		r.Body = io.NopCloser(bytes.NewReader(all.Bytes()[bytes.Index(all.Bytes(), []byte("\r\n\r\n"))+4:]))
		n.mu.Lock()
		n.requests = append(n.requests, name+r.URL.RequestURI())
		user, password, _ := r.BasicAuth()
		if strings.Contains(all.String()+user+password, canary) {
			n.secrets[name] = true
		}
		n.mu.Unlock()
		h.ServeHTTP(w, r)
	})
}

// seen returns the requests since the last call.
func (n *network) seen() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.requests
	n.requests = nil
	return all
}

// leaked returns the hosts that received the canary.
func (n *network) leaked() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.secrets))
}

// client returns a client in the network.
func (n *network) client(o registry.Options) *registry.Client {
	n.t.Helper()
	if o.RootCAs == nil {
		o.RootCAs = testkit.Value(authority())(n.t).Pool()
	}
	o.Count = func(outcome string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.outcomes[outcome]++
	}
	c := testkit.Value(registry.New(o))(n.t)
	registry.SetDial(c, func(d *net.Dialer, ctx context.Context, network, address string) (net.Conn, error) {
		n.mu.Lock()
		server, as := n.servers[address], n.resolved[address]
		n.mu.Unlock()
		switch {
		case as != "":
			return d.DialContext(ctx, network, as)
		case server == "":
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
		}
		return new(net.Dialer).DialContext(ctx, network, server)
	})
	n.t.Cleanup(c.Close)
	return c
}

var alice = admission.Login{Username: "alice", Password: canary}

// repository returns the repository of a client without hosts.toml.
func (n *network) repository() *registry.Repository {
	n.t.Helper()
	return n.client(registry.Options{}).Repository(repository, alice)
}

// configured returns the repository of a client with a hosts.toml for its registry.
func (n *network) configured(toml string, credential admission.Login) *registry.Repository {
	n.t.Helper()
	hosts := write(n.t, n.t.TempDir(), map[string]string{"registry.test/hosts.toml": toml})
	return n.client(registry.Options{HostsDir: hosts}).Repository(repository, credential)
}

// tagged returns the error of reading the manifest with the tag 1.
func tagged(t *testing.T, r *registry.Repository) error {
	t.Helper()
	_, err := r.Manifest(t.Context(), "1")
	return err
}

// images is go-containerregistry's registry.
func images(api bool) http.Handler {
	return ggcr.New(ggcr.WithReferrersSupport(api), ggcr.Logger(log.New(io.Discard, "", 0)))
}

// put puts content into a registry and returns its digest.
func put(t *testing.T, h http.Handler, name, tag, mediaType string, data []byte) string {
	t.Helper()
	d := digest.FromBytes(data).String()
	path, method := "/v2/"+name+"/manifests/"+tag, http.MethodPut
	if tag == "" {
		path = "/v2/" + name + "/manifests/" + d
	}
	if mediaType == "" {
		path, method = "/v2/"+name+"/blobs/uploads/?digest="+d, http.MethodPost
	}
	r := httptest.NewRequest(method, path, bytes.NewReader(data))
	r.Header.Set("Content-Type", mediaType)
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusCreated {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	return d
}

// manifest returns a manifest with one layer.
func manifest(of, artifactType, subject string) []byte {
	if subject != "" {
		subject = fmt.Sprintf(`,"subject":{"mediaType":%q,"digest":%q,"size":2}`, ociManifest, subject)
	}
	const config = `"config":{"mediaType":"x","digest":%q,"size":2}`
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"artifactType":%q,`+config+`,"layers":[]%s}`,
		ociManifest, artifactType, digest.FromString(of), subject)
}

// write writes files below a folder.
func write(t *testing.T, folder string, files map[string]string) string {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(folder, name)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return folder
}

// status answers with a status.
func status(code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
}

// basic asks for a user name and a password, the canary.
func basic(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "alice" || password != canary {
			w.Header().Set("Www-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
