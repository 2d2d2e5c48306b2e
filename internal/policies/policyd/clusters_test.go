package policyd_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyd"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/testkit"
)

// An apiServer knows the labels of the namespaces team and new. The latter is in no list.
type apiServer struct {
	*httptest.Server

	hangs atomic.Bool
	gets  atomic.Int32
}

// cluster starts an API server and writes the kubeconfig NAME.kubeconfig for it.
func (p *process) cluster(name, tier string) *apiServer {
	p.Helper()
	a := &apiServer{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const namespace = `{"apiVersion":"v1","kind":"Namespace",` +
			`"metadata":{"name":%q,"resourceVersion":"1","labels":{"tier":%q}}}`
		one, get := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/")
		if get {
			a.gets.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case a.hangs.Load():
			<-r.Context().Done()
		case get:
			_, _ = fmt.Fprintf(w, namespace, one, tier)
		case r.URL.Query().Get("watch") == "":
			_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"NamespaceList","metadata":{"resourceVersion":"1"},"items":[`+
				namespace+`]}`, "team", tier)
		default:
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	p.Cleanup(a.Close)
	p.write(name+".kubeconfig", "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '"+a.URL+"'}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n")
	return a
}

// clusters has the process serve the clusters a and b beside the one without a name.
func (p *process) clusters() {
	p.config.Kubeconfig = p.path("default.kubeconfig")
	p.config.Kubeconfigs = map[string]string{"a": p.path("a.kubeconfig"), "b": p.path("b.kubeconfig")}
	p.write("policies/s.yaml", selected)
}

// judgeIn returns the answer to the review of a pod of a cluster, or status, text and error.
func (p *process) judgeIn(c *tls.Config, cluster, namespace, spec string) string {
	p.Helper()
	path := webhook.ClusterPath(cluster, webhook.ValidatePath) + "?timeout=30s"
	code, text, err := p.post(c, path, strings.NewReader(admissionReview(namespace, false, spec)))
	if err != nil || code != http.StatusOK {
		return fmt.Sprintf("%d %s %v", code, text, err)
	}
	return text
}

const allowed, bySelector = `"allowed":true`, "policy s: "

// Namespaces of one name have the labels of their own cluster, chosen by the path.
// Shows: 004-16
func TestClustersHaveTheirOwnLabels(t *testing.T) {
	t.Parallel()
	ca, p := newAuthority(t), prepare(t)
	p.https(issue(t, ca))
	p.clusters()
	for name, tier := range map[string]string{"default": "prod", "a": "dev", "b": "prod"} {
		p.cluster(name, tier)
	}
	p.start()
	p.until("ready", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
	for _, namespace := range []string{"team", "new"} {
		for cluster, want := range map[string]string{"": allowed, "a": bySelector, "b": allowed, "c": "404 pullgate: "} {
			if text := p.judgeIn(trusting(ca), cluster, namespace, onNetwork); !strings.Contains(text, want) {
				t.Errorf("%s in cluster %q: %s; want %s", namespace, cluster, text, want)
			}
		}
	}
	var all sync.WaitGroup
	for i := range 30 { // at once
		all.Go(func() {
			text := p.judgeIn(trusting(ca), "b", fmt.Sprint("new-", i), onNetwork)
			if !strings.Contains(text, allowed) {
				t.Errorf("one of 30 new namespaces: %s", text)
			}
		})
	}
	all.Wait()
	const review = `{"kind":"ImageReview","apiVersion":"imagepolicy.k8s.io/v1alpha1","metadata":{},` +
		`"spec":{"containers":[{"image":"app:1"}],"namespace":"team"},"status":{"allowed":false}}`
	for path, want := range map[string]int{
		"/clusters/a/imagereview": 200, "/clusters/a": 404, "/clusters/": 404, "/clusters": 404,
		"/clusters//admission/validate":      404,
		"/clusters/a/clusters/a/imagereview": 404, "/clusters/a/readyz": 404, "/clusters/%61/imagereview": 200,
		"/clusters/" + strings.Repeat("x", 10_000) + "/imagereview": 404,
	} {
		if code, text, err := p.post(trusting(ca), path, strings.NewReader(review)); err != nil || code != want {
			t.Errorf("%.50s: %d %s, %v; want %d", path, code, text, err, want)
		}
	}
	for _, line := range []string{
		`{outcome="denied",path="/clusters/a/admission/validate"} 2`,
		`{outcome="allowed",path="/clusters/b/admission/validate"} 32`,
		`{outcome="allowed",path="/admission/validate"} 2`, `{outcome="refused",path="/clusters/"} 5`,
	} {
		p.has("pullgate_policyd_webhook_requests_total" + line)
	}
	if _, page := p.get("/metrics"); strings.Contains(page, "/clusters/c") || strings.Contains(page, "xxx") {
		t.Error("a metric has the name of an unknown cluster")
	}
	if log := p.log.String(); !strings.Contains(log, `dryRun=false cluster="a"`) {
		t.Errorf("the log does not name the cluster:\n%s", log)
	}
}

// An API server that hangs takes time of its own requests only, and few of these.
func TestClusterWithoutAPIServer(t *testing.T) {
	t.Parallel()
	ca, p := newAuthority(t), prepare(t)
	p.https(issue(t, ca))
	p.clusters()
	p.cluster("default", "prod")
	p.cluster("a", "prod")
	hanging := p.cluster("b", "prod")
	hanging.hangs.Store(true)
	p.start()
	p.until("ready", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
	p.until("a", func() bool { return strings.Contains(p.judgeIn(trusting(ca), "a", "team", onNetwork), allowed) })
	var all sync.WaitGroup
	var denied atomic.Int32
	ctx, stop := context.WithCancel(t.Context())
	for i := range 40 { // more than are handled at the same time
		all.Go(func() {
			for ctx.Err() == nil {
				text := p.judgeIn(trusting(ca), "b", fmt.Sprint("new-", i), onNetwork)
				if !strings.Contains(text, bySelector) {
					t.Errorf("without labels: %s; want a denial", text)
				}
				denied.Add(1)
				time.Sleep(time.Second) // they are to wait for an API server, not to use the processor
			}
		})
	}
	p.until("the first were denied", func() bool { return denied.Load() > 40 })
	answered, late := 0, 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); answered++ {
		begin := time.Now()
		if text := p.judgeIn(trusting(ca), "a", "new", onNetwork); !strings.Contains(text, allowed) {
			t.Errorf("another cluster: %s; want an admission", text)
		}
		if time.Since(begin) > time.Second {
			late++
		}
	}
	stop()
	all.Wait()
	gets := hanging.gets.Load()
	t.Logf("%d denied, %d labels requested; of another cluster %d of %d late", denied.Load(), gets, late, answered)
	if late > answered/4 || gets > 40 { // 32 at the same time, and one every few seconds
		t.Errorf("%d labels were requested, and of another cluster %d of %d requests were late", gets, late, answered)
	}
	hanging.hangs.Store(false)
	hanging.CloseClientConnections()
	p.until("labels are known again", func() bool {
		return strings.Contains(p.judgeIn(trusting(ca), "b", "new", onNetwork), allowed)
	})
}

// The certificate of a client is of the CA of the cluster in whose name it asks.
func TestClientsOfClusters(t *testing.T) {
	t.Parallel()
	ca, own, a, b := newAuthority(t), newAuthority(t), newAuthority(t), newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	p.clusters()
	p.config.HTTPS.ClientCAFile = p.path("own.crt")
	p.config.HTTPS.ClientCAFiles = map[string]string{"a": p.path("a.crt"), "b": p.path("b.crt")}
	clients := map[string]*testkit.Authority{"": own, "a": a, "b": b}
	for name, authority := range clients {
		p.write(map[string]string{"": "own"}[name]+name+".crt", string(authority.PEM()))
		p.cluster(map[string]string{"": "default"}[name]+name, "prod")
	}
	p.start()
	with := func(authority *testkit.Authority) *tls.Config {
		pair := testkit.Value(issue(t, authority).TLS())(t)
		return &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{pair}}
	}
	for client, authority := range clients {
		for cluster := range clients {
			want := "403 pullgate: the client certificate"
			if client == cluster {
				want = allowed
			}
			if text := p.judgeIn(with(authority), cluster, "team", appPod); !strings.Contains(text, want) {
				t.Errorf("a client of %q in the name of %q: %s; want %s", client, cluster, text, want)
			}
		}
	}
	for name, client := range map[string]*tls.Config{"of another CA": with(ca), "without a certificate": trusting(ca)} {
		if text := p.judgeIn(client, "a", "team", appPod); !strings.HasPrefix(text, "0 ") { // no answer
			t.Errorf("a client %s: %s", name, text)
		}
	}
	p.has(`pullgate_policyd_webhook_requests_total{outcome="refused",path="/clusters/a/admission/validate"} 2`)

	// A CA that is replaced counts for connections that exist.
	c := with(a)
	c.ServerName = "localhost"
	tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	status := func() int {
		body := strings.NewReader(admissionReview("team", false, appPod))
		req := testkit.Value(http.NewRequestWithContext(t.Context(), http.MethodPost,
			"https://"+p.at.HTTPS+"/clusters/a/admission/validate", body))(t)
		req.Header.Set("Content-Type", "application/json")
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if got := status(); got != http.StatusOK {
		t.Errorf("before: %d", got)
	}
	p.write("a.crt", string(b.PEM()))
	p.until("the other CA", func() bool { return strings.Contains(p.judgeIn(with(b), "a", "team", appPod), allowed) })
	if got := status(); got != http.StatusForbidden {
		t.Errorf("after: %d; want 403", got)
	}
	if got := status(); got != 0 {
		t.Errorf("a second time: %d; want a new connection, which is refused", got)
	}
}

// Reviews of namespaces of one name are sent and cached apart, and those of one do not delay those of the other.
func TestClustersShareNoReviews(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	asked, release := make(chan string, 100), make(chan struct{})
	p := prepareWith(t, serveBackend(t, func(_ string, s imagepolicyv1alpha1.ImageReviewSpec) verdict {
		asked <- s.Containers[0].Image
		if s.Containers[0].Image != "app:1" {
			<-release
		}
		return &imagepolicyv1alpha1.ImageReviewStatus{Allowed: true}
	}))
	p.https(issue(t, ca))
	p.clusters()
	for _, name := range []string{"default", "a", "b"} {
		p.cluster(name, "prod")
	}
	p.start()
	var slow sync.WaitGroup
	for i := range 20 {
		slow.Go(func() {
			spec := fmt.Sprintf(`{"containers":[{"name":"c","image":"slow:%d"}]}`, i)
			if text := p.judgeIn(trusting(ca), "a", "team", spec); !strings.Contains(text, allowed) {
				t.Error(text)
			}
		})
	}
	for range 8 { // as many as are asked for one namespace at the same time
		<-asked
	}
	begin := time.Now()
	for range 2 {
		for _, cluster := range []string{"b", ""} {
			if text := p.judgeIn(trusting(ca), cluster, "team", appPod); !strings.Contains(text, allowed) {
				t.Error(text)
			}
		}
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("other clusters: answers after %v", took)
	}
	if len(asked) != 2 {
		t.Errorf("the backend was asked %d times about the image; want once for each cluster", len(asked))
	}
	close(release)
	slow.Wait()
}

// The configuration in docs/webhook.md serves two clusters.
func TestClustersOfThePage(t *testing.T) {
	t.Parallel()
	page := string(testkit.Value(os.ReadFile("../../../docs/webhook.md"))(t))
	_, page, _ = strings.Cut(page, "\n## Several clusters\n")
	_, text, _ := strings.Cut(page, "restart pullgate-policyd:\n\n")
	text, _, found := strings.Cut(text, "\n\n")
	if !found || !strings.Contains(page, "--cluster two ") {
		t.Fatal("the page has no example")
	}
	p := prepare(t)
	text = strings.NewReplacer("/etc/pullgate", p.dir, "10.0.0.10:9443", "127.0.0.1:0", "\n       ", "\n").
		Replace("\n" + text)
	c := testkit.Value(config.ParsePolicyd([]byte(
		"apiVersion: config.pullgate.dev/v1alpha1\nkind: PolicydConfiguration" + text + "\n")))(t)
	c.Policies, c.Node, c.Metrics = p.config.Policies, p.config.Node, p.config.Metrics
	p.config = c
	ca := newAuthority(t)
	testkit.Must(t, os.Mkdir(p.path("tls"), 0o755), os.Mkdir(p.path("clusters"), 0o755))
	server := issue(t, ca)
	p.write("tls/tls.crt", string(server.Certificate))
	p.write("tls/tls.key", string(server.Key))
	p.write("policies/s.yaml", selected)
	clients := map[string]*tls.Config{}
	for name, tier := range map[string]string{"one": "prod", "two": "dev"} {
		authority := newAuthority(t)
		p.write("clusters/"+name+".ca.crt", string(authority.PEM()))
		p.cluster("clusters/"+name, tier)
		pair := testkit.Value(issue(t, authority).TLS())(t)
		clients[name] = &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{pair}}
	}
	if warnings, err := policyd.Examine(t.Context(), p.config); err != nil {
		t.Errorf("Examine = %q, %v", warnings, err)
	}
	p.start()
	for _, tc := range []struct{ client, cluster, want string }{
		{"one", "", allowed}, {"two", "two", bySelector}, {"one", "two", "403 "}, {"two", "", "403 "},
	} {
		if text := p.judgeIn(clients[tc.client], tc.cluster, "team", onNetwork); !strings.Contains(text, tc.want) {
			t.Errorf("%+v: %s", tc, text)
		}
	}
}

// Pods of a namespace for which a hook takes long do not delay those of the same name in another cluster.
func TestClustersShareNoTurnsOfHooks(t *testing.T) {
	t.Parallel()
	ca, p := newAuthority(t), prepare(t)
	p.https(issue(t, ca))
	p.clusters()
	for _, name := range []string{"default", "a", "b"} {
		p.cluster(name, "prod")
	}
	asked, release := make(chan struct{}, 100), make(chan struct{})
	p.hook("slow", func(r *admissionv1.AdmissionRequest) string {
		if strings.Contains(string(r.Object.Raw), "slow:") {
			asked <- struct{}{}
			<-release
		}
		return ""
	})
	p.write("policies/hooks.yaml", strings.Replace(p.hookFile("f", "slow"), "{name: f}",
		"{name: f, annotations: {policy.pullgate.dev/at: Admission}}", 1))
	p.start()
	var slow sync.WaitGroup
	for i := range 20 {
		slow.Go(func() {
			spec := fmt.Sprintf(`{"containers":[{"name":"c","image":"slow:%d"}]}`, i)
			if text := p.judgeIn(trusting(ca), "a", "team", spec); !strings.Contains(text, allowed) {
				t.Error(text)
			}
		})
	}
	for range 8 { // as many as are asked for one namespace at the same time
		<-asked
	}
	for _, cluster := range []string{"b", ""} {
		if text := p.judgeIn(trusting(ca), cluster, "team", appPod); !strings.Contains(text, allowed) {
			t.Error(text)
		}
	}
	close(release)
	slow.Wait()
}
