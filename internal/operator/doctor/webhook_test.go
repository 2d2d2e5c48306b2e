package doctor_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
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

func (c *cluster) findings(change ...func(*doctor.Node)) []doctor.Finding {
	n := doctor.Node{Kubeconfig: c.kubeconfig, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		to, ok := c.hosts[address]
		if !ok {
			return nil, fmt.Errorf("dial %s: no route to host", address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, to)
	}}
	for _, f := range change {
		f(&n)
	}
	return n.Webhook(c.Context())
}

// find checks that there is one finding, and its level and text.
func (c *cluster) find(level doctor.Level, want ...string) {
	c.Helper()
	found := c.findings()
	if len(found) != 1 || found[0].Level != level || (found[0].Remediation == "") != (level == doctor.OK) {
		c.Fatalf("findings %+v; want one, %s", found, level)
	}
	for _, w := range want {
		if !strings.Contains(found[0].String(), w) {
			c.Errorf("finding %s; want … %s …", found[0], w)
		}
	}
}

const byURL = `"url":"https://localhost:8443/admission/validate"`

func unchanged(*httptest.Server) {}

func TestWebhookByURL(t *testing.T) {
	other, err := testkit.NewAuthority("another authority")
	must(t, err)
	for name, tc := range map[string]struct {
		serve func(c *cluster)
		level doctor.Level
		want  string
	}{
		"reached":           {func(c *cluster) { c.serve("localhost:8443", c.authority, time.Time{}, unchanged) }, doctor.OK, ": reached"},
		"not served":        {func(*cluster) {}, doctor.Fail, "no route to host: pods are admitted without it, and the node enforces"},
		"another authority": {func(c *cluster) { c.serve("localhost:8443", other, time.Time{}, unchanged) }, doctor.Fail, "certificate signed by unknown authority"},
		"expired":           {func(c *cluster) { c.serve("localhost:8443", c.authority, time.Now().Add(-time.Minute), unchanged) }, doctor.Fail, "certificate has expired"},
		"another server": {func(c *cluster) {
			c.serve("localhost:8443", c.authority, time.Time{}, func(s *httptest.Server) { s.Config.Handler = http.NotFoundHandler() })
		}, doctor.Fail, "answers 404"},
		"without TLS": {func(c *cluster) {
			s := httptest.NewServer(http.NotFoundHandler())
			c.Cleanup(s.Close)
			c.hosts["localhost:8443"] = s.Listener.Addr().String()
		}, doctor.Fail, "first record does not look like a TLS handshake"},
		"client certificates": {func(c *cluster) {
			c.serve("localhost:8443", c.authority, time.Time{}, func(s *httptest.Server) {
				s.TLS.ClientAuth, s.TLS.ClientCAs = tls.RequireAndVerifyClientCert, c.authority.Pool()
			})
		}, doctor.OK, "reached; it wants a client certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.register(byURL)
			tc.serve(c)
			c.find(tc.level, "pods.pullgate.dev of pullgate, https://localhost:8443/admission/validate: ", tc.want)
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
		answers map[string]string
		serve   string
		level   doctor.Level
		want    string
	}{
		"by the cluster IP":      {map[string]string{service: ip, slices: ready}, byIP, doctor.OK, ": reached"},
		"by an endpoint":         {map[string]string{service: ip, slices: ready}, byEndpoint, doctor.OK, ": reached"},
		"headless":               {map[string]string{service: `{"spec":{"clusterIP":"None",` + ports + `}}`, slices: ready}, byEndpoint, doctor.OK, ": reached"},
		"another name":           {map[string]string{service: `{"spec":{"type":"ExternalName","externalName":"elsewhere.test"}}`}, "elsewhere.test:8443", doctor.OK, ": reached"},
		"endpoints not readable": {map[string]string{service: ip, slices: ""}, byIP, doctor.OK, ": reached"},
		"no endpoint":            {map[string]string{service: ip, slices: `{"items":[]}`}, byIP, doctor.Fail, "no ready endpoint"},
		"no endpoint is ready":   {map[string]string{service: ip, slices: strings.ReplaceAll(ready, "true", "false")}, byIP, doctor.Fail, "no ready endpoint"},
		"absent":                 {map[string]string{}, byIP, doctor.Fail, "the service does not exist"},
		"not readable":           {map[string]string{service: ""}, byIP, doctor.Unknown, "the address of the service is not known: forbidden: " + service},
		"not routed from here":   {map[string]string{service: ip, slices: ready}, byNone, doctor.Unknown, "no route to host"},
		"headless, not readable": {map[string]string{service: `{"spec":{"clusterIP":"None"}}`, slices: ""}, byEndpoint, doctor.Unknown, "the service has no cluster IP: forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.register(`"service":{"namespace":"pullgate-system","name":"pullgate-policyd","path":"/admission/validate","port":8443}`)
			maps.Copy(c.answers, tc.answers)
			if tc.serve != byNone {
				c.serve(tc.serve, c.authority, time.Time{}, unchanged)
			}
			c.find(tc.level, "service pullgate-system/pullgate-policyd", tc.want)
		})
	}
}

func TestWebhooksThatAreNotKnown(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.find(doctor.Unknown, "registered webhooks are not known: list ValidatingWebhookConfigurations: not found")
	c.answers[list] = ""
	c.find(doctor.Unknown, "forbidden: "+list, "its identity may list validatingwebhookconfigurations")
	c.answers[list] = `{"items":[]}`
	c.find(doctor.OK, "no webhook of pullgate is registered")
	c.register(byURL)
	c.answers[list] = strings.Replace(c.answers[list], "Ignore", "Fail", 1)
	c.find(doctor.Fail, "no pod is created or changed", "delete the webhook")
	found := c.findings(func(n *doctor.Node) { n.NoNetwork = true })
	if len(found) != 1 || found[0].Level != doctor.Unknown || !strings.Contains(found[0].Found, "not tested without a network") {
		t.Errorf("findings without a network %+v; want one, unknown", found)
	}
	c.kubeconfig = filepath.Join(t.TempDir(), "absent")
	c.find(doctor.Unknown, "absent: no such file")
}

// must ends a test that cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
