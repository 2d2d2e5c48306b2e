package doctor_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A cluster is an API server whose answers are texts by path; a path without one is not found.
type cluster struct {
	*testing.T
	answers    map[string]string
	authority  *testkit.Authority
	kubeconfig string
	// hosts are the real addresses of the servers that are dialed.
	hosts map[string]string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	authority, err := testkit.NewAuthority("authority of the webhook")
	must(t, err)
	c := &cluster{T: t, answers: map[string]string{}, authority: authority, hosts: map[string]string{}, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := c.answers[r.URL.Path]
		switch {
		case r.Header.Get("Authorization") != "Bearer t":
			w.WriteHeader(http.StatusUnauthorized)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","message":"not found"}`)
		case answer == "":
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, `{"kind":"Status","message":"forbidden: %s"}`, r.URL.Path)
		default:
			_, _ = io.WriteString(w, answer)
		}
	}))
	t.Cleanup(server.Close)
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]\n"+
		"users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n",
		server.URL, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	must(t, os.WriteFile(c.kubeconfig, []byte(text), 0o600))
	return c
}

const list = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

// register registers one webhook of pullgate by a client configuration, beside another one.
func (c *cluster) register(clientConfig string) {
	c.answers[list] = fmt.Sprintf(`{"kind":"ValidatingWebhookConfigurationList","items":[
		{"metadata":{"name":"other"},"webhooks":[{"name":"other.test","failurePolicy":"Fail","clientConfig":{"url":"https://other.test/validate"}}]},
		{"metadata":{"name":"pullgate"},"webhooks":[{"name":"pods.pullgate.dev","failurePolicy":"Ignore","clientConfig":{%s,"caBundle":%q}}]}]}`,
		clientConfig, base64.StdEncoding.EncodeToString(c.authority.PEM()))
}

// A refuser answers as the handler of pullgate-policyd does.
func refuser(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Allow", http.MethodPost)
	w.WriteHeader(http.StatusMethodNotAllowed)
}

// serve serves a webhook at an address, with a certificate of an authority.
func (c *cluster) serve(address string, by *testkit.Authority, until time.Time, change func(*httptest.Server)) {
	c.Helper()
	pair, err := by.Issue(pkix.Name{CommonName: "webhook"}, until, "pullgate-policyd.pullgate-system.svc")
	must(c, err)
	certificate, err := pair.TLS()
	must(c, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(refuser))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // failed handshakes are wanted
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	change(s)
	s.StartTLS()
	c.Cleanup(s.Close)
	c.hosts[address] = s.Listener.Addr().String()
}

func (c *cluster) probe() ([]doctor.Webhook, error) {
	p := doctor.Prober{Kubeconfig: c.kubeconfig, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		to, ok := c.hosts[address]
		if !ok {
			return nil, fmt.Errorf("dial %s: no route to host", address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, to)
	}}
	return p.Probe(c.Context())
}

const byURL = `"url":"https://localhost:8443/admission/validate"`

func unchanged(*httptest.Server) {}

func TestWebhookByURL(t *testing.T) {
	other, err := testkit.NewAuthority("another authority")
	must(t, err)
	for name, tc := range map[string]struct {
		serve func(c *cluster)
		want  string // a part of the error, "" for none
		note  string
	}{
		"reached":           {func(c *cluster) { c.serve("localhost:8443", c.authority, time.Time{}, unchanged) }, "", ""},
		"not served":        {func(*cluster) {}, "no route to host", ""},
		"another authority": {func(c *cluster) { c.serve("localhost:8443", other, time.Time{}, unchanged) }, "certificate signed by unknown authority", ""},
		"expired":           {func(c *cluster) { c.serve("localhost:8443", c.authority, time.Now().Add(-time.Minute), unchanged) }, "certificate has expired", ""},
		"another server": {func(c *cluster) {
			c.serve("localhost:8443", c.authority, time.Time{}, func(s *httptest.Server) { s.Config.Handler = http.NotFoundHandler() })
		}, "answers 404", ""},
		"without TLS": {func(c *cluster) {
			s := httptest.NewServer(http.NotFoundHandler())
			c.Cleanup(s.Close)
			c.hosts["localhost:8443"] = s.Listener.Addr().String()
		}, "first record does not look like a TLS handshake", ""},
		"client certificates": {func(c *cluster) {
			c.serve("localhost:8443", c.authority, time.Time{}, func(s *httptest.Server) {
				s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, c.authority.Pool()
			})
		}, "", "client certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.register(byURL)
			tc.serve(c)
			found, err := c.probe()
			if err != nil || len(found) != 1 {
				t.Fatalf("Probe = %+v, %v; want the webhook of pullgate alone", found, err)
			}
			w := found[0]
			if w.Configuration != "pullgate" || w.Name != "pods.pullgate.dev" || w.FailurePolicy != "Ignore" || w.Target != "https://localhost:8443/admission/validate" {
				t.Errorf("webhook %+v; want what is registered", w)
			}
			if (w.Err == nil) != (tc.want == "") || w.Err != nil && !strings.Contains(w.Err.Error(), tc.want) || errors.Is(w.Err, doctor.ErrWebhookUntested) {
				t.Errorf("Err = %v; want %q", w.Err, tc.want)
			}
			if (w.Note == "") != (tc.note == "") || !strings.Contains(w.Note, tc.note) {
				t.Errorf("Note = %q; want %q", w.Note, tc.note)
			}
		})
	}
}

func TestWebhookOfAService(t *testing.T) {
	const (
		service = "/api/v1/namespaces/pullgate-system/services/pullgate-policyd"
		slices  = "/apis/discovery.k8s.io/v1/namespaces/pullgate-system/endpointslices"
		ports   = `"ports":[{"name":"https","port":8443},{"name":"metrics","port":9472}]`
		ip      = `{"spec":{"type":"ClusterIP","clusterIP":"10.96.0.9",` + ports + `}}`
		ready   = `{"items":[{"ports":[{"name":"metrics","port":9472},{"name":"https","port":10443}],
			"endpoints":[{"addresses":["10.1.0.1"],"conditions":{"ready":false}},{"addresses":["10.1.0.2"],"conditions":{"ready":true}}]}]}`
		byIP, byEndpoint, byNone = "10.96.0.9:8443", "10.1.0.2:10443", ""
	)
	for name, tc := range map[string]struct {
		answers  map[string]string
		serve    string
		want     string
		untested bool
	}{
		"by the cluster IP":      {map[string]string{service: ip, slices: ready}, byIP, "", false},
		"by an endpoint":         {map[string]string{service: ip, slices: ready}, byEndpoint, "", false},
		"headless":               {map[string]string{service: `{"spec":{"clusterIP":"None",` + ports + `}}`, slices: ready}, byEndpoint, "", false},
		"another name":           {map[string]string{service: `{"spec":{"type":"ExternalName","externalName":"elsewhere.test"}}`}, "elsewhere.test:8443", "", false},
		"endpoints not readable": {map[string]string{service: ip, slices: ""}, byIP, "", false},
		"no endpoint":            {map[string]string{service: ip, slices: `{"items":[]}`}, byIP, "no ready endpoint", false},
		"no endpoint is ready":   {map[string]string{service: ip, slices: strings.ReplaceAll(ready, "true", "false")}, byIP, "no ready endpoint", false},
		"absent":                 {map[string]string{}, byIP, "the service does not exist", false},
		"not readable":           {map[string]string{service: ""}, byIP, "the address of the service is not known: forbidden: " + service, true},
		"not routed from here":   {map[string]string{service: ip, slices: ready}, byNone, "no route to host", true},
		"headless, not readable": {map[string]string{service: `{"spec":{"clusterIP":"None"}}`, slices: ""}, byEndpoint, "the service has no cluster IP: forbidden", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.register(`"service":{"namespace":"pullgate-system","name":"pullgate-policyd","path":"/admission/validate","port":8443}`)
			maps.Copy(c.answers, tc.answers)
			if tc.serve != byNone {
				c.serve(tc.serve, c.authority, time.Time{}, unchanged)
			}
			found, err := c.probe()
			if err != nil || len(found) != 1 || !strings.HasPrefix(found[0].Target, "service pullgate-system/pullgate-policyd") {
				t.Fatalf("Probe = %+v, %v; want the webhook of pullgate alone", found, err)
			}
			w := found[0]
			if (w.Err == nil) != (tc.want == "") || w.Err != nil && !strings.Contains(w.Err.Error(), tc.want) || errors.Is(w.Err, doctor.ErrWebhookUntested) != tc.untested {
				t.Errorf("Err = %v; want %q, untested: %v", w.Err, tc.want, tc.untested)
			}
		})
	}
}

func TestProbeFails(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if found, err := c.probe(); err == nil || !strings.Contains(err.Error(), "list ValidatingWebhookConfigurations: not found") {
		t.Errorf("Probe without webhooks in the API = %v, %v; want why", found, err)
	}
	c.answers[list] = ""
	if found, err := c.probe(); err == nil || !strings.Contains(err.Error(), "forbidden: "+list) {
		t.Errorf("Probe without permission = %v, %v; want why", found, err)
	}
	c.answers[list] = `{"items":[]}`
	if found, err := c.probe(); err != nil || len(found) != 0 {
		t.Errorf("Probe of no webhook = %v, %v; want none", found, err)
	}
	c.kubeconfig = filepath.Join(t.TempDir(), "absent")
	if found, err := c.probe(); err == nil || !strings.Contains(err.Error(), "absent: no such file") {
		t.Errorf("Probe without a kubeconfig = %v, %v; want why", found, err)
	}
}

// must ends a test that cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
