package podsource_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

// certificate returns a client certificate and its key. The serial number is that of the subject.
func certificate(tb testing.TB, user string, serial int) testkit.Pair {
	tb.Helper()
	by := testkit.Value(testkit.NewAuthority("kubelets"))(tb)
	pair, err := by.Issue(pkix.Name{
		CommonName: user, Organization: []string{"system:nodes"}, SerialNumber: fmt.Sprint(serial),
	}, time.Time{})
	if err != nil {
		tb.Fatal(err)
	}
	return pair
}

// replace puts a new file in the place of an old one by a rename, as kubelets do.
func replace(tb testing.TB, path string, content []byte) {
	tb.Helper()
	testkit.Must(tb, errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path)))
}

func TestNodeNameFollowsFromTheClientCertificate(t *testing.T) {
	dir := t.TempDir()
	for user, want := range map[string]string{
		"system:node:node-1": "node-1", "system:node:": "", "admin": "",
		"system:nodes": "",
	} {
		pair := certificate(t, user, 1)
		both := filepath.Join(dir, "both.pem") // key first, as in the kubelet's file after a manual rotation
		replace(t, both, slices.Concat(pair.Key, pair.Certificate))
		for form, config := range map[string]map[string]any{
			"file": {"client-certificate": both, "client-key": both},
			"data": {"client-certificate-data": pair.Certificate, "client-key-data": pair.Key},
		} {
			o := podsource.Options{Kubeconfig: kubeconfig(t, "https://10.0.0.1", config), Key: credential.NewKey()}
			s, err := podsource.New(o)
			switch {
			case want == "" && (!errors.Is(err, podsource.ErrNodeName) || !strings.Contains(err.Error(), "common name")):
				t.Errorf("%s of %q: New = %v; want ErrNodeName, and where it was looked for", form, user, err)
			case s == nil:
				t.Errorf("%s of %q: New returns no source; pullgated has to start", form, user)
			case want != "" && (err != nil || s.NodeName() != want):
				t.Errorf("%s of %q: New = %v; want node %q, nil", form, user, err, want)
			}
			o.NodeName = "given" // takes precedence
			if s, err = podsource.New(o); err != nil || s.NodeName() != "given" {
				t.Errorf("%s of %q with NodeName: New = %v; want node given, nil", form, user, err)
			}
		}
	}
}

// inReview runs a source with a token, so that only the API server can determine its user.
func inReview(t *testing.T, f func(api *apiserver, s *podsource.Source, run func() error)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		network, end := api.serve()
		o := podsource.Options{Kubeconfig: kubeconfig(t, "http://10.0.0.1:6443", nil), Key: credential.NewKey()}
		o.Dial(network.dial)
		s := testkit.Value(podsource.New(o))(t)
		f(api, s, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return s.Run(ctx)
		})
		end()
	})
}

func TestNodeNameFollowsFromAReview(t *testing.T) {
	inReview(t, func(api *apiserver, s *podsource.Source, run func() error) {
		n := 0
		api.user = "system:node:node-1"
		api.refusing(func(*http.Request) int {
			if n++; n < 3 {
				return 503
			}
			return 0
		})
		api.change("ADDED", pod("web", "u1", app))
		if err := run(); err != nil || s.NodeName() != "node-1" {
			t.Errorf("Run = %v, node %q; want nil, node-1", err, s.NodeName())
		}
		if _, ok := s.ByUID("u1"); !ok {
			t.Error("the pod of the node is not known")
		}
	})
}

func TestRunReportsWhyTheNodeNameIsUnknown(t *testing.T) {
	for user, want := range map[string]string{
		"":                           "before 1.28",
		"system:serviceaccount:ns:x": "system:serviceaccount:ns:x",
	} {
		inReview(t, func(api *apiserver, s *podsource.Source, run func() error) {
			api.user = user
			if err := run(); !errors.Is(err, podsource.ErrNodeName) || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), "set the node's name") {
				t.Errorf("user %q: Run = %v; want ErrNodeName with %q and what to do", user, err, want)
			}
		})
	}
}

func TestAMalformedKubeconfigIsReported(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk.pem")
	replace(t, junk, []byte("junk"))
	for name, content := range map[string]string{
		"no YAML": "{", "empty": "", "no cluster": "apiVersion: v1\nkind: Config\n",
		"an invalid certificate": `{"current-context":"c","clusters":[{"name":"c","cluster":{"server":"https://x"}}],` +
			`"users":[{"name":"u","user":{"client-certificate":"` + junk + `","client-key":"` + junk + `"}}],` +
			`"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`,
	} {
		path := filepath.Join(dir, "kubeconfig")
		replace(t, path, []byte(content))
		s, err := podsource.New(podsource.Options{Kubeconfig: path})
		if !errors.Is(err, podsource.ErrKubeconfig) || s == nil {
			t.Errorf("%s: New = %v, %v; want ErrKubeconfig, and a source that waits for a valid one", name, s, err)
		}
	}
}

func TestRunWaitsForAKubeconfigThatIsAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		network, end := api.serve()
		api.change("ADDED", pod("web", "u1", app))
		dir := t.TempDir()
		path, token := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token")
		reasons := make(chan podsource.Reason, 100)
		o := podsource.Options{Kubeconfig: path, NodeName: "node-1", Failed: func(r podsource.Reason) { reasons <- r }}
		o.Dial(network.dial)
		s, err := podsource.New(o)
		if err != nil {
			t.Fatalf("New = %v; want nil, the kubelet may not have written it yet", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		written := testkit.Value(os.ReadFile(kubeconfig(t, "http://10.0.0.1:6443", map[string]any{"tokenFile": token})))(t)
		replace(t, path, written)
		if _, err := podsource.New(o); err != nil {
			t.Errorf("New = %v beside a kubeconfig that names an absent file; want nil", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.Synced() {
			t.Error("synced without the token that the kubeconfig names")
		}
		replace(t, token, []byte("t"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, ok := s.ByUID("u1"); !ok || !s.Synced() {
			t.Errorf("pod known %v, synced %v; want both", ok, s.Synced())
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v; want nil", err)
		}
		for range len(reasons) {
			if r := <-reasons; r != podsource.Kubeconfig {
				t.Errorf("reason %s; want kubeconfig", r)
			}
		}
		end()
	})
}

// This test uses a real network, with TLS: the kubelet replaces its certificate, and a program that uses the same files
// has to use the new one.
func TestARotatedClientCertificateIsUsed(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	api := newAPIServer()
	users := make(chan string, 1000)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		users <- r.TLS.PeerCertificates[0].Subject.SerialNumber
		api.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()

	dir := t.TempDir()
	file := filepath.Join(dir, "kubelet-client-current.pem")
	rotate := func(serial int) {
		pair := certificate(t, "system:node:node-1", serial)
		replace(t, file, slices.Concat(pair.Certificate, pair.Key))
	}
	rotate(1)
	ca := filepath.Join(dir, "ca.pem")
	replace(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	path := kubeconfig(t, server.URL, map[string]any{"client-certificate": file, "client-key": file})
	config := testkit.Value(os.ReadFile(path))(t)
	replace(t, path, []byte(strings.Replace(string(config), `"server"`, `"certificate-authority":"`+ca+`","server"`, 1)))
	s := testkit.Value(podsource.New(podsource.Options{Kubeconfig: path, Key: credential.NewKey()}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v; want nil", err)
		}
	}()
	expect := func(serial string) {
		t.Helper()
		// client-go caches the files for a second; kubelets rotate at intervals of months.
		again := time.NewTicker(1100 * time.Millisecond)
		defer again.Stop()
		for {
			select {
			case got := <-users:
				if got == serial {
					return
				}
			case <-again.C:
				server.CloseClientConnections()
			case <-ctx.Done():
				t.Fatalf("no request with certificate %s", serial)
			}
		}
	}
	expect("1")
	for serial := 2; serial < 4; serial++ {
		rotate(serial)
		expect(fmt.Sprint(serial))
	}
}
