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
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

const (
	policySocket  = "/run/pullgate/policy.sock"
	policydGroup  = 990
	backendConfig = "/etc/pullgate/scanner.kubeconfig"
)

// A policyServer is a pullgate-policyd with the policy files of a hash, which asks no backend.
type policyServer struct {
	policyv1.UnimplementedPolicyServer

	hash string
	fail error
}

func (s *policyServer) Review(_ context.Context, r *policyv1.ReviewRequest) (*policyv1.ReviewResponse, error) {
	switch {
	case len(r.GetImages()) > 0:
		return nil, status.Error(codes.Internal, "doctor asks about an image")
	case s.fail != nil:
		return nil, s.fail
	case r.GetPolicyHash() != s.hash:
		return nil, status.Error(codes.FailedPrecondition, "pullgate-policyd has the policy files 0123456789ab")
	}
	return &policyv1.ReviewResponse{PolicyHash: s.hash}, nil
}

// reviews adds a review backend to the policy files of a node, and a pullgate-policyd on its socket.
func (n *testNode) reviews() *policyServer {
	n.t.Helper()
	n.directory("/", 0o755)
	n.policyFiles("imagePolicy: {kubeConfigFile: " + backendConfig + ", defaultAllow: false}\n")
	n.file("/etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\npullgate-policyd:x:991:"+strconv.Itoa(policydGroup)+"::/:/usr/sbin/nologin\n")
	n.file("/etc/pullgate/policyd.yaml", 0o644, "apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration\npolicies: /etc/pullgate/policies\n")
	n.file(backendConfig, 0o640, "clusters: [{name: c, cluster: {server: https://scanner.test, certificate-authority: ca.crt}}]\n"+
		"users: [{name: u, user: {client-certificate: /etc/pullgate/client.crt, client-key: /etc/pullgate/client.key}}]\n")
	n.file("/etc/pullgate/ca.crt", 0o644, "x")
	n.file("/etc/pullgate/client.crt", 0o644, "x")
	n.file("/etc/pullgate/client.key", 0o640, "x")
	for _, secret := range []string{backendConfig, "/etc/pullgate/client.key"} {
		n.must(os.Chown(n.path(secret), 0, policydGroup))
	}
	n.units["pullgate-policyd.socket"] = "LoadState=loaded\nUnitFileState=enabled"
	n.units["pullgate-policyd.service"] = "LoadState=loaded\nBindPaths=\nBindReadOnlyPaths=/etc/pullgate:/etc/pullgate:rbind -/etc/ssl:/etc/ssl:rbind"
	n.process(strconv.Itoa(os.Getpid()), "systemd", "/sbin/init") // it keeps all sockets
	set, err := policyfiles.Read(policyfiles.Paths{Folder: n.path("/etc/pullgate/policies")})
	n.must(err)
	s := &policyServer{hash: set.Hash}
	n.servePolicies(s)
	return s
}

// policyFiles makes a folder with a restriction, and with another file.
func (n *testNode) policyFiles(other string) {
	n.t.Helper()
	n.Config.Admission.Policies = "/etc/pullgate/policies"
	n.file("/etc/pullgate/policies/all.yaml", 0o644, "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: all}\nspec: {}\n")
	if other != "" {
		n.file("/etc/pullgate/policies/scanner.yaml", 0o644, other)
	}
}

// servePolicies serves on the socket of pullgate-policyd.
func (n *testNode) servePolicies(s *policyServer) {
	n.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.path(policySocket), Net: "unix"})
	n.must(err)
	l.SetUnlinkOnClose(false)
	n.must(os.Chmod(n.path(policySocket), 0o600))
	n.sockets[policySocket] = l
	server := grpc.NewServer()
	policyv1.RegisterPolicyServer(server, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // it ends with the listener
	}()
	n.t.Cleanup(func() { server.Stop(); <-ended })
}

func TestPoliciesWithoutBackends(t *testing.T) {
	play(t, []row{
		{"valid", func(n *testNode) { n.policyFiles("") }, "policies", doctor.OK, "none of them needs pullgate-policyd", ""},
		{"invalid", func(n *testNode) { n.policyFiles("imagePolicy: {}\n") }, "policies", doctor.Fail, "imagePolicy.kubeConfigFile: Required value", "pullgated --check-config"},
		{"no folder", func(n *testNode) { n.Config.Admission.Policies = "/etc/pullgate/absent" }, "policies", doctor.Fail, "no such file or directory", "pullgated --check-config"},
	})
}

func TestReviews(t *testing.T) {
	rows := []row{
		{"healthy", func(*testNode) {}, "policies", doctor.OK, "answers at " + policySocket + ", with the policy files of /etc/pullgate/policies", ""},
		{"readable", func(*testNode) {}, "policies", doctor.OK, "can read every file that the policies need", ""},
		{"no socket", func(n *testNode) { n.must(os.Remove(n.path(policySocket))) }, "policies", doctor.Fail, policySocket + " not found, and a policy file needs it", "systemctl enable --now pullgate-policyd.socket"},
		{"a file", func(n *testNode) {
			n.must(os.Remove(n.path(policySocket)))
			n.file(policySocket, 0o600, "")
		}, "policies", doctor.Fail, "is not a socket", "compare admission.policydSocket"},
		{"a user's socket", func(n *testNode) { n.must(os.Chown(n.path(policySocket), 1000, 0)) }, "policies", doctor.Fail, "belongs to user 1000, group 0: pullgated does not use it", "systemctl restart pullgate-policyd.socket"},
		{"open to others", func(n *testNode) { n.must(os.Chmod(n.path(policySocket), 0o666)) }, "policies", doctor.Fail, "has mode 0666", "chmod 0600"},
		{"no process", func(n *testNode) { n.must(n.sockets[policySocket].Close()) }, "policies", doctor.Fail, "connection refused, no process listens there", "systemctl restart pullgate-policyd.socket"},
		{"disabled", func(n *testNode) { n.units["pullgate-policyd.socket"] = "LoadState=loaded\nUnitFileState=disabled" }, "policies", doctor.Warn, "pullgate-policyd.socket is disabled: after the next boot", "systemctl enable"},
		{"not under systemd", func(n *testNode) { n.units = map[string]string{} }, "policies", doctor.OK, "answers at", ""},
		{"no configuration", func(n *testNode) { n.must(os.Remove(n.path("/etc/pullgate/policyd.yaml"))) }, "policies", doctor.Warn, "/etc/pullgate/policyd.yaml not found", "pullgate-policyd.md"},
		{"an invalid configuration", func(n *testNode) { n.file("/etc/pullgate/policyd.yaml", 0o644, "kind: x\n") }, "policies", doctor.Fail, "/etc/pullgate/policyd.yaml: ", "pullgate-policyd --check-config"},
		{"another folder", func(n *testNode) {
			n.file("/etc/pullgate/policyd.yaml", 0o644, "apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration\npolicies: /etc/other\n")
		}, "policies", doctor.Fail, `has the policy folder "/etc/other"`, "set policies in /etc/pullgate/policyd.yaml to /etc/pullgate/policies"},
		{"no user", func(n *testNode) { n.file("/etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\n") }, "policies", doctor.Warn, "the user pullgate-policyd does not exist", "systemd-sysusers"},
		{"a policy file for root only", func(n *testNode) { n.must(os.Chmod(n.path("/etc/pullgate/policies/all.yaml"), 0o600)) }, "policies", doctor.Fail, "/etc/pullgate/policies/all.yaml has mode 0600", "chmod 0644"},
		{"a folder for root only", func(n *testNode) { n.must(os.Chmod(n.path("/etc/pullgate/policies"), 0o700)) }, "policies", doctor.Fail, "/etc/pullgate/policies has mode 0700", "chmod 0755"},
		{"a kubeconfig for root only", func(n *testNode) { n.must(os.Chmod(n.path(backendConfig), 0o600)) }, "policies", doctor.Fail, "the user pullgate-policyd cannot read it", "chown root:pullgate-policyd " + backendConfig + " && chmod 0640"},
		{"a kubeconfig for everyone", func(n *testNode) { n.must(os.Chmod(n.path(backendConfig), 0o644)) }, "policies", doctor.Warn, "other users can read the credentials for a backend", "chmod 0640 " + backendConfig},
		{"a kubeconfig of another group", func(n *testNode) {
			n.must(os.Chown(n.path(backendConfig), 991, 1000))
		}, "policies", doctor.Warn, "group 1000: other users can read", "chown root:pullgate-policyd"},
		{"no kubeconfig", func(n *testNode) { n.must(os.Remove(n.path(backendConfig))) }, "policies", doctor.Fail, backendConfig + " not found", "correct the file that names it"},
		{"a key for everyone", func(n *testNode) { n.must(os.Chmod(n.path("/etc/pullgate/client.key"), 0o644)) }, "policies", doctor.Warn, "/etc/pullgate/client.key has mode 0644", "chmod 0640"},
		{"no authority", func(n *testNode) { n.must(os.Remove(n.path("/etc/pullgate/ca.crt"))) }, "policies", doctor.Fail, "/etc/pullgate/ca.crt not found", "create it"},
		{"an authority that is not visible", func(n *testNode) {
			n.file("/opt/ca.crt", 0o644, "x")
			n.must(os.Remove(n.path("/etc/pullgate/ca.crt")))
			n.must(os.Chmod(n.path("/opt"), 0o755))
			n.file(backendConfig, 0o640, "clusters: [{name: c, cluster: {certificate-authority: /opt/ca.crt}}]\n")
			n.must(os.Chown(n.path(backendConfig), 0, policydGroup))
		}, "policies", doctor.Fail, "/opt/ca.crt is not visible to pullgate-policyd.service", "BindReadOnlyPaths=/opt"},
		{"below a closed folder", func(n *testNode) { n.must(os.Chmod(n.path("/etc/pullgate"), 0o750)) }, "policies", doctor.Fail, "/etc/pullgate/policyd.yaml is not accessible to the user pullgate-policyd: /etc/pullgate has mode 0750", "chmod g+x /etc/pullgate"},
	}
	for i := range rows {
		change := rows[i].change
		rows[i].change = func(n *testNode) {
			n.reviews()
			change(n)
		}
	}
	play(t, rows)
}

func TestPolicydAnswers(t *testing.T) {
	play(t, []row{
		{"other policies", func(n *testNode) { n.reviews().hash = "other" }, "policies", doctor.Fail, "pullgate-policyd has other policy files than /etc/pullgate/policies", "set policies in /etc/pullgate/policyd.yaml"},
		{"it fails", func(n *testNode) { n.reviews().fail = status.Error(codes.Internal, "internal error") }, "policies", doctor.Fail, "pullgate-policyd does not answer", "journalctl -u pullgate-policyd"},
	})
}

// The sockets of pullgated are served by the same process here, so that it is found there too.
func TestSocketOfPolicydIsServedByAnotherProcess(t *testing.T) {
	n := newNode(t)
	n.reviews()
	n.process(strconv.Itoa(os.Getpid()), "nc", "/usr/bin/nc")
	if all := n.Examine(t.Context(), doctor.OnRequest); !slices.ContainsFunc(all, func(f doctor.Finding) bool {
		return f.Check == "policies" && f.Level == doctor.Fail && strings.Contains(f.Found, policySocket+" is served by nc") && strings.Contains(f.Remediation, "stop process")
	}) {
		t.Errorf("findings = %+v; want that another process has the socket", all)
	}
}

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
