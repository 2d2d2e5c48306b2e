package monitoring_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

const (
	app = "repo.test/team/app:1"
	id  = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
)

// The dashboard and the rules before a real Prometheus that scrapes the built programs: every metric and every
// label that they name is there, every query has an answer, every rule is evaluated, and none fires on a node
// without problems.
func TestDashboardAndRulesHoldOnARealScrape(t *testing.T) {
	work := busyDaemon(t)
	p := startPrometheus(t, map[string]string{
		"pullgated": work.gate.MetricsAddress(), "pullgate-policyd": work.policyd.MetricsAddress(),
	})
	// A rate needs two scrapes with something between them.
	for _, counter := range []string{
		"image_pull_secret_recheck_hit_count", "image_pull_secret_recheck_miss_count",
		`pullgate_policyd_webhook_seconds_count{path="/imagereview"}`,
	} {
		for p.value(t, "sum(rate("+counter+"[1m]))") == 0 {
			work.calls(t)
		}
	}

	for _, panel := range panels(t) {
		for _, q := range panel.Targets {
			t.Run(panel.Title+"/"+q.RefID, func(t *testing.T) {
				expr := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(q.Expr)
				p.hasAll(t, expr)
				found := p.query(t, expr)
				if len(found) == 0 {
					t.Fatalf("%s has no answer", expr)
				}
				for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(q.LegendFormat, -1) {
					if found[0].Metric[m[1]] == "" {
						t.Errorf("%s has no label %s for its legend", expr, m[1])
					}
				}
				for _, s := range found {
					if s.Value[1] == "NaN" {
						t.Errorf("%s is not a number for %v", expr, s.Metric)
					}
				}
			})
		}
	}
	for _, r := range rules(t) {
		t.Run(r.Alert, func(t *testing.T) { p.hasAll(t, r.Expr) })
	}
	written := queriesOfDocs(t)
	if len(written) < 5 {
		t.Errorf("%d queries found in the documentation; want some more", len(written))
	}
	for _, q := range written {
		t.Run(q.page+"/"+q.expr, func(t *testing.T) {
			p.hasAll(t, q.expr)
			// A selector may be of a value that has not occurred yet.
			if strings.Contains(q.expr, "(") && len(p.query(t, q.expr)) == 0 {
				t.Errorf("%s of %s has no answer", q.expr, q.page)
			}
		})
	}
	p.rulesAreWell(t)
}

// A workload is a daemon before a fake runtime and a fake API server, with a pullgate-policyd.
type workload struct {
	gate    *node.Pullgated
	kubelet *criproxytest.Kubelet
	policyd *node.Webhook
}

func busyDaemon(t *testing.T) workload {
	t.Helper()
	r := criproxytest.NewRuntime(t)
	r.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(name string, auth *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			if auth.GetPassword() != "good" {
				return criproxytest.Image{}, criproxytest.Denied(name)
			}
			return criproxytest.Image{ID: id, Names: []string{name}}, nil
		}
	})
	dir := criproxytest.SocketDir(t)
	folder := policies(t)
	w := workload{policyd: startWebhook(t, filepath.Join(dir, "policyd"), folder)}
	w.gate = node.RunPullgated(t, dir, r.Endpoint(), "kubeletSkipsAlwaysPrecheck: true",
		fmt.Sprintf("podSource: {kubeconfig: %q, nodeName: node}", emptyAPIServer(t)),
		fmt.Sprintf("admission: {policies: %q, policydSocket: %q, recheckEndorsements: 24h}", folder, w.policyd.Endpoint()))
	w.kubelet = criproxytest.NewKubelet(t, w.gate.Endpoint())
	return w
}

func startWebhook(t *testing.T, dir, policies string) *node.Webhook {
	t.Helper()
	authority := testkit.Value(testkit.NewAuthority("authority of the webhook"))(t)
	address := fmt.Sprintf("127.0.0.1:%d", testkit.Value(host.FreePort())(t))
	return node.StartWebhook(t, authority, address, dir, policies)
}

// signed is a rule for images that no pod uses.
const signed = `apiVersion: policy.sigstore.dev/v1beta1
kind: ClusterImagePolicy
metadata: {name: signed}
spec: {images: [{glob: repo.test/signed}], authorities: [{keyless: {identities: [{issuer: i, subject: s}]}}]}
`

const audited = `apiVersion: policy.pullgate.dev/v1alpha1
kind: PodRestriction
metadata: {name: audited, annotations: {policy.pullgate.dev/mode: Audit}}
spec: {spec: {securityContext: {hostNetwork: {require: true}}}}
`

// hooked is a hook on a socket that only the webhook asks.
const hooked = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hooked, annotations: {policy.pullgate.dev/at: Admission}}
webhooks:
- name: none
  admissionReviewVersions: [v1]
  clientConfig: {url: "unix://%s"}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  sideEffects: None
`

// policies returns a folder with restrictions, image reviews, a rule about signatures and a hook.
func policies(t *testing.T) string {
	t.Helper()
	backend := reviewbackend.New(t)
	dir := filepath.Join(t.TempDir(), "policies")
	kubeconfig := filepath.Join(filepath.Dir(dir), "backend.kubeconfig")
	testkit.Must(t, os.Mkdir(dir, 0o755), backend.Kubeconfig(kubeconfig, "node"))
	for name, text := range map[string]string{
		"all":     "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: all}\nspec: {}\n",
		"audited": audited, "signed": signed, "hooked": fmt.Sprintf(hooked, hook(t)),
		"backend": fmt.Sprintf("imagePolicy: {kubeConfigFile: %q, defaultAllow: false}\n", kubeconfig),
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o644))
	}
	return dir
}

// hook starts a hook that allows everything, and returns its socket.
func hook(t *testing.T) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct{ Request struct{ UID string } }
		_ = json.NewDecoder(r.Body).Decode(&review) // an answer with another UID is a failure
		_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",
			"response":{"uid":%q,"allowed":true}}`, review.Request.UID)
	}))
	path := filepath.Join(criproxytest.SocketDir(t), "hook")
	s.Listener = testkit.Value((&net.ListenConfig{}).Listen(t.Context(), "unix", path))(t)
	s.Start()
	t.Cleanup(s.Close)
	return path
}

// calls makes a call that is not judged, a hit (first a miss), a denied miss, and a request to each path of policyd.
func (w workload) calls(t *testing.T) {
	t.Helper()
	reviews(t, w.policyd)
	if _, err := w.kubelet.Runtime.Status(t.Context(), &runtimeapi.StatusRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, password := range []string{"good", "bad"} {
		pod := w.kubelet.Pod("tenant")
		w.kubelet.Precheck(pod, app)
		if _, err := w.kubelet.Pull(t.Context(), pod, app, password); (err == nil) != (password == "good") {
			t.Fatalf("pull with %s = %v", password, err)
		}
	}
}

func emptyAPIServer(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		_, _ = fmt.Fprint(w, `{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // a watch has no end
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n", server.URL)
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// A prometheus is Debian's, with the alert rules.
type prometheus struct{ url string }

// startPrometheus scrapes one target for each job. The instance of all is the node's name, as docs/monitoring has it.
func startPrometheus(t *testing.T, targets map[string]string) prometheus {
	t.Helper()
	port := testkit.Value(host.FreePort())(t)
	p := prometheus{fmt.Sprintf("http://127.0.0.1:%d", port)}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n",
		docs(t, "monitoring/alerts.yml"))
	for job, target := range targets {
		text += fmt.Sprintf("- {job_name: %s, static_configs: [{targets: [%q], labels: {instance: node}}]}\n", job, target)
	}
	testkit.Must(t, os.WriteFile(config, []byte(text), 0o600))
	process, err := host.Start(t.Context(), "prometheus", filepath.Join(dir, "log"), host.Answers(p.url+"/-/ready"),
		"prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		fmt.Sprintf("--web.listen-address=127.0.0.1:%d", port))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = process.Stop() })
	return p
}

func (p prometheus) data(t *testing.T, path string, into any) {
	t.Helper()
	text := testkit.Value(host.Get(p.url + "/api/v1/" + path))(t)
	testkit.Must(t, json.Unmarshal([]byte(text), &struct{ Data any }{into}))
}

type sample struct {
	Metric map[string]string
	Value  [2]any
}

func (p prometheus) query(t *testing.T, expr string) []sample {
	t.Helper()
	var answer struct{ Result []sample }
	p.data(t, "query?query="+url.QueryEscape(expr), &answer)
	return answer.Result
}

func (p prometheus) value(t *testing.T, expr string) float64 {
	t.Helper()
	found := p.query(t, expr)
	if len(found) == 0 {
		return 0
	}
	v, err := strconv.ParseFloat(fmt.Sprint(found[0].Value[1]), 64)
	if err != nil || math.IsNaN(v) {
		return 0
	}
	return v
}

// hasAll wants every metric of an expression with the labels of its selectors, and each label of its clauses.
func (p prometheus) hasAll(t *testing.T, expr string) {
	t.Helper()
	has := func(selector string) bool { return p.value(t, "count("+selector+")") > 0 }
	u := usesOf(expr)
	if len(u.labels) == 0 {
		t.Errorf("no metric is found in %s", expr)
	}
	for metric, labels := range u.labels {
		if !has(metric) {
			t.Errorf("no program has the metric %s", metric)
		}
		for _, l := range labels {
			if !has(fmt.Sprintf(`%s{%s!=""}`, metric, l)) {
				t.Errorf("%s has no label %s", metric, l)
			}
		}
	}
	for _, l := range u.grouped {
		found := false
		for metric := range u.labels {
			found = found || has(fmt.Sprintf(`%s{%s!=""}`, metric, l))
		}
		if !found {
			t.Errorf("no metric of %s has the label %s", expr, l)
		}
	}
}

// rulesAreWell wants every rule evaluated without an error, and none to fire: a few denied pulls are no surge.
func (p prometheus) rulesAreWell(t *testing.T) {
	t.Helper()
	var answer struct {
		Groups []struct {
			Rules []struct{ Name, Health, State, LastError string }
		}
	}
	p.data(t, "rules", &answer)
	seen := 0
	for _, g := range answer.Groups {
		for _, r := range g.Rules {
			seen++
			if r.Health != "ok" || r.State != "inactive" {
				t.Errorf("%s is %s and %s, %s; want ok and inactive", r.Name, r.Health, r.State, r.LastError)
			}
		}
	}
	if want := len(rules(t)); seen != want {
		t.Errorf("Prometheus has %d rules; want %d", seen, want)
	}
}
