package review_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log" //nolint:depguard // net/http has a logger of this type
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/policyd/review"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

// An authority issues certificates.
type authority struct{ *testkit.Authority }

func newAuthority(t *testing.T) *authority {
	t.Helper()
	return &authority{testkit.Value(testkit.NewAuthority("ca"))(t)}
}

// says answers each request with a body.
func says(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

// newSet returns a set that asks backends.
func newSet(t *testing.T, backends ...policyfiles.Backend) *review.Set {
	t.Helper()
	var s review.Set
	t.Cleanup(s.Close)
	testkit.Must(t, s.Replace(backends))
	return &s
}

// pair returns the PEM of a certificate for 127.0.0.1 and of its key.
func (a *authority) pair(t *testing.T, name string, until time.Time) (certificate, key []byte) {
	t.Helper()
	pair := testkit.Value(a.Issue(pkix.Name{CommonName: name}, until))(t)
	return pair.Certificate, pair.Key
}

// serve starts a backend with a certificate and returns its URL.
func (a *authority) serve(t *testing.T, handler http.Handler, change ...func(*tls.Config)) string {
	t.Helper()
	config := &tls.Config{Certificates: []tls.Certificate{a.keyPair(t, time.Now().Add(time.Hour))}}
	for _, f := range change {
		f(config)
	}
	s := httptest.NewUnstartedServer(handler)
	s.TLS = config
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

func (a *authority) keyPair(t *testing.T, until time.Time) tls.Certificate {
	t.Helper()
	return testkit.Value(tls.X509KeyPair(a.pair(t, "backend", until)))(t)
}

// kubeconfig writes a kubeconfig with the fields of the cluster and of the user, and ca.pem beside it, and returns its
// path.
func kubeconfig(t *testing.T, a *authority, cluster, user string) string {
	t.Helper()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "ca.pem"), a.PEM())
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\n"+
		"clusters: [{name: c, cluster: {certificate-authority: ca.pem, %s}}]\nusers: [{name: u, user: {%s}}]\n"+
		"contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", cluster, user)
	path := filepath.Join(dir, "kubeconfig")
	put(t, path, []byte(text))
	return path
}

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, data, 0o600))
}

// over returns a client by a kubeconfig.
func over(t *testing.T, kubeconfig string, change ...func(*policyfiles.Backend)) *review.Client {
	t.Helper()
	b := backend()
	b.Kubeconfig, b.RetryBackoff = kubeconfig, 10*time.Millisecond
	for _, f := range change {
		f(&b)
	}
	c := testkit.Value(review.NewClient(b))(t)
	t.Cleanup(c.Close)
	return c
}

// Shows: 000-11, 000-19
func TestRequestOverTLS(t *testing.T) {
	a := newAuthority(t)
	certificate, key := a.pair(t, "policyd", time.Now().Add(time.Hour))
	var got http.Request
	url := a.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = *r
		_, _ = io.WriteString(w, allow)
	}), func(c *tls.Config) { c.ClientCAs, c.ClientAuth = a.Pool(), tls.VerifyClientCertIfGiven })
	for name, c := range map[string]struct{ path, user, authorization, client string }{
		"no credentials":     {"", "", "", ""},
		"token":              {"/review/", `token: "secret 1"`, "Bearer secret 1", ""},
		"token file":         {"/", `token: old, tokenFile: token`, "Bearer from-file", ""},
		"password":           {"/a/b", `username: a, password: b`, "Basic YTpi", ""},
		"client certificate": {"", `client-certificate: cert.pem, client-key: key.pem`, "", "policyd"},
	} {
		path := kubeconfig(t, a, "server: "+url+c.path, c.user)
		put(t, filepath.Join(filepath.Dir(path), "token"), []byte("from-file\n"))
		put(t, filepath.Join(filepath.Dir(path), "cert.pem"), certificate)
		put(t, filepath.Join(filepath.Dir(path), "key.pem"), key)
		r := ask(t, over(t, path), t.Context(), image("a"))
		client := ""
		if r.Err == nil && len(got.TLS.PeerCertificates) > 0 {
			client = got.TLS.PeerCertificates[0].Subject.CommonName
		}
		want := "/" + strings.Trim(c.path, "/") + "?timeout=30s"
		if !r.Allowed || r.Err != nil || got.Method != "POST" || got.RequestURI != want || client != c.client ||
			got.Header.Get("Authorization") != c.authorization {
			t.Errorf("%s: %v, %s %s, %v, client %q; want %+v", name, r, got.Method, got.RequestURI, got.Header, client, c)
		}
		delete(got.Header, "Authorization")
		delete(got.Header, "Content-Length")
		const headers = "map[Accept:[application/json] Content-Type:[application/json] User-Agent:[pullgate-policyd]]"
		if h := fmt.Sprint(got.Header); h != headers {
			t.Errorf("%s: headers %s", name, h)
		}
	}
}

// trickle answers with one byte in each interval.
func trickle(w http.ResponseWriter, r *http.Request) {
	for {
		if _, err := w.Write([]byte(" ")); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-time.After(10 * time.Millisecond): //nolint:forbidigo // the backend is at fault
		}
	}
}

// Shows: 000-19, 000-22
func TestHostileBackends(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	a, other := newAuthority(t), newAuthority(t)
	var elsewhere atomic.Int32
	target := a.serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		elsewhere.Add(1)
		_, _ = io.WriteString(w, allow)
	}))
	block := strings.Repeat("x", 1<<20)
	hijack := func(write string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(conn, write)
			_ = conn.Close()
		}
	}
	with := func(a *authority, until time.Duration) func(*tls.Config) {
		return func(c *tls.Config) { c.Certificates = []tls.Certificate{a.keyPair(t, time.Now().Add(until))} }
	}
	old := func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }
	const broken, unverified = "net/http: HTTP/1.x transport connection broken: ",
		"tls: failed to verify certificate: x509: "
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		config  func(*tls.Config)
		want    string
	}{
		"hangs": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // a server notices the end of a connection when it has read the request
			<-r.Context().Done()
		}, nil, "no answer within "},
		"trickles": {trickle, nil, "no answer within "},
		"half of the headers": {
			hijack("HTTP/1.1 200 OK\r\nContent-"), nil, broken + `malformed MIME header: missing colon: "Content-"`,
		},
		"half of the body": {hijack("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), nil, "attempt 5: unexpected EOF"},
		"not HTTP": {
			hijack("SSH-2.0-OpenSSH_9.6\r\n\r\n"), nil, broken + `malformed HTTP response "SSH-2.0-OpenSSH_9.6"`,
		},
		"closes": {hijack(""), nil, "attempt 5: EOF"},
		"302": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target, http.StatusFound)
		}, nil, "status 302 Found"},
		"100 MiB": {func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				if _, err := io.WriteString(w, block); err != nil {
					return
				}
			}
		}, nil, "the answer has more than 256 KiB"},
		"100 MiB of headers": {func(w http.ResponseWriter, _ *http.Request) {
			for i := range 100 {
				w.Header().Set(fmt.Sprint("X-", i), block)
			}
		}, nil, broken + "net/http: server response headers exceeded 65536 bytes; aborted"},
		"100 MiB of gzip": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte{0x1f, 0x8b})
		}, nil, "the answer is not an ImageReview"},
		"wrong CA": {says(allow), with(other, time.Hour), unverified + "certificate signed by unknown authority"},
		"expired certificate": {
			says(allow), with(a, -time.Minute),
			unverified + "certificate has expired or is not yet valid",
		},
		"TLS 1.1": {says(allow), old, "remote error: tls: protocol version not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			var change []func(*tls.Config)
			if c.config != nil {
				change = append(change, c.config)
			}
			path := kubeconfig(t, a, "server: "+a.serve(t, c.handler, change...), "token: secret")
			for _, defaultAllow := range []bool{true, false} {
				cl := over(t, path, func(b *policyfiles.Backend) { b.DefaultAllow = defaultAllow })
				limit := 20 * time.Second
				if strings.HasPrefix(c.want, "no answer") {
					limit = 300 * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				before := allocated()
				r := ask(t, cl, ctx, image("a"))
				if r.Allowed != defaultAllow || r.FailedOpen != defaultAllow || !strings.HasPrefix(r.Failure, c.want) {
					t.Errorf("%v; want defaultAllow, marked, and %s", r, c.want)
				}
				used := allocated() - before // by the backend too
				if strings.HasPrefix(name, "100 MiB") && used > 16<<20 {
					t.Errorf("%d MiB allocated", used>>20)
				}
				cancel()
				cl.Close()
			}
		})
	}
	if elsewhere.Load() > 0 {
		t.Error("a redirect was followed")
	}
}

// allocated returns how many bytes have been allocated so far.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

func TestBackendWithoutAListener(t *testing.T) {
	a := newAuthority(t)
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	testkit.Must(t, l.Close())
	c := over(t, kubeconfig(t, a, "server: https://"+l.Addr().String(), ""))
	if r := ask(t, c, t.Context(), image("a")); !r.FailedOpen ||
		!strings.HasPrefix(r.Failure, "attempt 5: dial tcp 127.0.0.1:") {
		t.Errorf("stopped: %v", r)
	}
}

func TestConnectionsAreClosed(t *testing.T) {
	a := newAuthority(t)
	closed := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(says(allow))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{a.keyPair(t, time.Now().Add(time.Hour))}}
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- struct{}{}
		}
	}
	server.StartTLS()
	defer server.Close()
	url := server.URL
	b := backend()
	b.AllowTTL, b.Kubeconfig = 0, kubeconfig(t, a, "server: "+url, "tokenFile: token")
	token := filepath.Join(filepath.Dir(b.Kubeconfig), "token")
	for name, end := range map[string]func(*review.Set) error{
		"closed":  func(s *review.Set) error { s.Close(); return nil },
		"removed": func(s *review.Set) error { return s.Replace(nil) },
		"changed": func(s *review.Set) error { put(t, token, []byte("two")); return s.Reload() },
	} {
		put(t, token, []byte("one"))
		s := newSet(t, b)
		if r := s.Clients().Review(t.Context(), image("a")); r[0].Err != nil {
			t.Error(r[0])
		}
		testkit.Must(t, end(s))
		select {
		case <-closed:
		case <-time.After(10 * time.Second): //nolint:forbidigo // the end of a test
			t.Fatalf("%s: a connection is still open", name)
		}
	}
}

// Shows: 000-05
func TestSet(t *testing.T) {
	a := newAuthority(t)
	down := a.serve(t, http.NotFoundHandler())
	configured := func(name, url string) policyfiles.Backend {
		b := backend()
		b.Name, b.File, b.Kubeconfig = name, "/p/"+name+".yaml", kubeconfig(t, a, "server: "+url, "")
		return b
	}
	allows := configured("allows", a.serve(t, says(allow)))
	denies := configured("denies", a.serve(t, says(deny)))
	open, closed := configured("open", down), configured("closed", down)
	denies.Namespaces, closed.Namespaces, closed.DefaultAllow = []string{"strict"}, []string{"closed"}, false
	var s review.Set
	defer s.Close()
	reviewed := func(namespace string, allowed bool, want ...string) {
		t.Helper()
		results := s.Clients().Review(t.Context(), review.Subject{Namespace: namespace, Images: []string{"a"}})
		var got []string
		all := true
		for _, r := range results {
			text := r.Backend
			all = all && r.Allowed
			for _, f := range []struct {
				name string
				set  bool
			}{{" allowed", r.Allowed}, {" failed open", r.FailedOpen}, {" cached", r.Cached}} {
				if f.set {
					text += f.name
				}
			}
			got = append(got, text)
		}
		if all != allowed || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %q; want %v, %q", namespace, !allowed, got, allowed, want)
		}
	}
	replace := func(backends ...policyfiles.Backend) {
		t.Helper()
		testkit.Must(t, s.Replace(backends))
	}
	reviewed("default", true)
	replace(open, denies, allows, closed)
	reviewed("default", true, "allows allowed", "open allowed failed open")
	reviewed("strict", false, "allows allowed", "denies", "open allowed failed open")
	reviewed("closed", false, "allows allowed", "closed", "open allowed failed open")
	replace(denies, allows)
	reviewed("strict", false, "allows allowed cached", "denies cached")
	broken := allows
	broken.Name, broken.Kubeconfig = "broken", "/absent"
	err := s.Replace([]policyfiles.Backend{open, broken, {File: "/p/x", Kubeconfig: "/gone"}})
	if fmt.Sprint(err) != "/p/allows.yaml: imagePolicy.kubeConfigFile: /absent: open /absent: no such file or directory\n"+
		"/p/x: imagePolicy.kubeConfigFile: /gone: open /gone: no such file or directory" {
		t.Errorf("Replace = %v", err)
	}
	reviewed("strict", false, "allows allowed cached", "denies cached")
	allows.AllowTTL = time.Minute // another configuration, another client
	replace(allows)
	reviewed("strict", true, "allows allowed")
	replace()
	reviewed("strict", true)
}

func TestRemovedBackendAnswersReviewsInProgress(t *testing.T) {
	a := newAuthority(t)
	asked, proceed := make(chan struct{}), make(chan struct{})
	b := backend()
	b.Kubeconfig = kubeconfig(t, a, "server: "+a.serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-proceed
		_, _ = io.WriteString(w, deny)
	})), "")
	s := newSet(t, b)
	results := make(chan []review.Result)
	go func() { results <- s.Clients().Review(t.Context(), image("a")) }()
	<-asked
	testkit.Must(t, s.Replace(nil))
	close(proceed)
	if r := <-results; len(r) != 1 || r[0].Allowed || r[0].Err != nil {
		t.Errorf("%v; want the denial of the backend", r)
	}
}

func TestReload(t *testing.T) {
	a := newAuthority(t)
	var token atomic.Value
	url := a.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token.Store(r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, allow)
	}))
	b := backend()
	b.File, b.AllowTTL = "/p/test.yaml", 0
	b.Kubeconfig = kubeconfig(t, a, "server: "+url, "tokenFile: token")
	file := filepath.Join(filepath.Dir(b.Kubeconfig), "token")
	put(t, file, []byte("one"))
	s := newSet(t, b)
	sends := func(want string) {
		t.Helper()
		if r := s.Clients().Review(t.Context(), image("a")); !r[0].Allowed || r[0].Err != nil ||
			token.Load() != "Bearer "+want {
			t.Errorf("%v with %v; want %s", r, token.Load(), want)
		}
	}
	sends("one")
	put(t, file, []byte("two"))
	sends("one")
	testkit.Must(t, s.Reload())
	sends("two")
	put(t, file, nil)
	want := "/p/test.yaml: imagePolicy.kubeConfigFile: " + b.Kubeconfig + ": users[u].user.tokenFile: " + file +
		": must not be empty"
	if err := s.Reload(); fmt.Sprint(err) != want {
		t.Errorf("Reload = %v; want %s", err, want)
	}
	sends("two")
	// Another CA: the certificate of the backend is no longer valid.
	put(t, file, []byte("two"))
	put(t, filepath.Join(filepath.Dir(b.Kubeconfig), "ca.pem"), newAuthority(t).PEM())
	testkit.Must(t, s.Reload())
	var unknown x509.UnknownAuthorityError
	if r := s.Clients().Review(t.Context(), image("a")); !r[0].FailedOpen || !errors.As(r[0].Err, &unknown) {
		t.Errorf("%v; want the new CA to be used", r)
	}
}
