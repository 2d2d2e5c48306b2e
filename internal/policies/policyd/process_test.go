package policyd_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyd"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A verdict of a backend about an image; nil means that it hangs up.
type verdict = *imagepolicyv1alpha1.ImageReviewStatus

// A backend is an image review backend over TLS.
type backend struct {
	*httptest.Server

	ca *testkit.Authority
}

// serveBackend starts a backend, which answers a review of images for a path.
func serveBackend(t *testing.T, answer func(path string, review imagepolicyv1alpha1.ImageReviewSpec) verdict) *backend {
	t.Helper()
	ca := newAuthority(t)
	pair := testkit.Value(issue(t, ca).TLS())(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review imagepolicyv1alpha1.ImageReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		v := answer(r.URL.Path, review.Spec)
		if v == nil {
			panic(http.ErrAbortHandler)
		}
		review.Status = *v
		_ = json.NewEncoder(w).Encode(review)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	return &backend{s, ca}
}

func (b *backend) kubeconfig(path string) string {
	_, port, _ := strings.Cut(strings.TrimPrefix(b.URL, "https://"), ":")
	return fmt.Sprintf("apiVersion: v1\nkind: Config\n"+
		"clusters: [{name: b, cluster: {server: 'https://localhost:%s%s', certificate-authority-data: %s}}]\n"+
		"contexts: [{name: b, context: {cluster: b}}]\ncurrent-context: b\n",
		port, path, base64.StdEncoding.EncodeToString(b.ca.PEM()))
}

// policy returns a policy file for a kubeconfig, with further fields.
func policy(kubeconfig string, fields ...string) string {
	fields = append(fields, "retryBackoff: 1", "defaultAllow: false")
	return "imagePolicy: {kubeConfigFile: " + kubeconfig + ", " + strings.Join(fields, ", ") + "}\n"
}

const wrong = "imagePolicy: {}"

// selected is a policy that selects namespaces by their labels.
const selected = `apiVersion: policy.pullgate.dev/v1alpha1
kind: PodRestriction
metadata: {name: s}
binding: {namespaceSelector: {matchLabels: {tier: dev}}}
spec: {spec: {securityContext: {hostNetwork: {require: false}}}}
`

// allowAll allows every image.
func allowAll(string, imagepolicyv1alpha1.ImageReviewSpec) verdict {
	return &imagepolicyv1alpha1.ImageReviewStatus{Allowed: true}
}

// denyAll denies every image, with the path of the request as its reason.
func denyAll(path string, _ imagepolicyv1alpha1.ImageReviewSpec) verdict {
	return &imagepolicyv1alpha1.ImageReviewStatus{Reason: path}
}

// A process is a pullgate-policyd in this process.
type process struct {
	*testing.T
	dir     string
	config  config.Policyd
	options policyd.Options
	reload  chan os.Signal
	at      policyd.Addresses
	log     *buffer
	cancel  context.CancelFunc
	done    chan error
}

// A buffer may be written and read concurrently.
type buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// prepare returns a process that does not run yet, with a policy whose backend allows every image.
func prepare(t *testing.T) *process {
	t.Helper()
	return prepareWith(t, serveBackend(t, allowAll))
}

// prepareWith returns a process that does not run yet, with a policy whose backend is asked for the path /first.
func prepareWith(t *testing.T, b *backend) *process {
	t.Helper()
	p := &process{T: t, dir: t.TempDir(), reload: make(chan os.Signal), log: &buffer{}}
	p.config = config.DefaultPolicyd()
	p.config.Policies = p.path("policies")
	p.config.Node.Listen = "unix://" + p.path("policy.sock")
	p.config.Metrics.Listen = "127.0.0.1:0"
	testkit.Must(t, os.Mkdir(p.config.Policies, 0o755))
	p.write("first.kubeconfig", b.kubeconfig("/first"))
	p.write("policies/scan.yaml", policy(p.path("first.kubeconfig")))
	p.options = policyd.Options{Reload: p.reload, Version: "v1"}
	return p
}

func (p *process) path(name string) string { return filepath.Join(p.dir, name) }

func (p *process) write(name, content string) {
	p.Helper()
	testkit.Must(p, os.WriteFile(p.path(name), []byte(content), 0o644))
}

// run runs the process; ready is closed when it serves, and done has its result.
func (p *process) run() (ready chan struct{}) {
	ready = make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.done = cancel, make(chan error, 1)
	o := p.options
	o.Config = p.config
	o.Log = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(p.log)))
	o.Ready = func(at policyd.Addresses) { p.at = at; close(ready) }
	go func() { p.done <- policyd.Run(ctx, o) }()
	return ready
}

// start runs the process until the end of the test, or until stop.
func (p *process) start() {
	p.Helper()
	select {
	case <-p.run():
	case err := <-p.done:
		p.Fatalf("Run = %v", err)
	}
	p.Cleanup(func() {
		p.cancel()
		if p.done == nil {
			return
		}
		if err := <-p.done; err != nil {
			p.Errorf("Run = %v; want nil", err)
		}
	})
}

func (p *process) stop() error {
	p.cancel()
	err := <-p.done
	p.done = nil
	return err
}

func (p *process) client() *policyclient.Client {
	p.Helper()
	c := testkit.Value(policyclient.New(p.config.Node.Listen, policyclient.Options{}))(p)
	p.Cleanup(func() { _ = c.Close() })
	return c
}

// connect returns a connection for requests that the client would not send.
func (p *process) connect() *grpc.ClientConn {
	p.Helper()
	insecure := grpc.WithTransportCredentials(insecure.NewCredentials())
	c := testkit.Value(grpc.NewClient(p.config.Node.Listen, insecure))(p)
	p.Cleanup(func() { _ = c.Close() })
	return c
}

// hash returns the hash of the folder as it is.
func (p *process) hash() string {
	p.Helper()
	return p.set().Hash
}

func (p *process) request() policyclient.ReviewRequest {
	return policyclient.ReviewRequest{PolicyHash: p.hash(), Namespace: "team", Images: []string{"app:1"}, Backends: 16}
}

// get returns a page of the metrics server.
func (p *process) get(path string) (int, string) {
	p.Helper()
	req := testkit.Value(http.NewRequestWithContext(p.Context(), http.MethodGet, "http://"+p.at.Metrics+path, nil))(p)
	req.Close = true
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text := testkit.Value(io.ReadAll(resp.Body))(p)
	return resp.StatusCode, string(text)
}

// dial opens a connection that sends nothing by itself.
func (p *process) dial(network, address string) net.Conn {
	p.Helper()
	c := testkit.Value((&net.Dialer{}).DialContext(p.Context(), network, address))(p)
	p.Cleanup(func() { _ = c.Close() })
	return c
}

// closes checks that the process closes connections.
func (p *process) closes(all map[string]net.Conn) {
	p.Helper()
	for name, c := range all {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err := io.Copy(io.Discard, c)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			p.Errorf("%s: still connected", name)
		}
	}
}

// until waits for a condition.
func (p *process) until(what string, is func() bool) {
	p.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-limit.C:
			p.Fatalf("not within 30 s: %s\n%s", what, p.log)
		}
	}
}

// has waits for a line of the metrics.
func (p *process) has(line string) {
	p.Helper()
	p.until(line, func() bool {
		_, page := p.get("/metrics")
		return strings.Contains(page, "\n"+line+"\n")
	})
}

func TestRunServesNodeAndMetricsAndStops(t *testing.T) {
	p := prepare(t)
	p.start()
	results := testkit.Value(p.client().Review(t.Context(), p.request()))(t)
	if len(results) != 1 || !results[0].Allowed || results[0].Backend+" "+results[0].Image != "scan app:1" {
		t.Errorf("Review = %+v; want one approval", results)
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ok\n"} {
		if code, text := p.get(path); code != 200 || text != want {
			t.Errorf("%s = %d %q; want 200 %q", path, code, text, want)
		}
	}
	for _, line := range []string{
		`pullgate_policyd_reviews_total{cached="false",outcome="allowed"} 1`,
		`pullgate_policyd_reviews_total{cached="false",outcome="failed_open"} 0`,
		"pullgate_policyd_policies_last_reload_success 1",
		fmt.Sprintf("pullgate_policyd_build_info{goversion=%q,version=%q} 1", runtime.Version(), "v1"),
	} {
		p.has(line)
	}
	if _, page := p.get("/metrics"); strings.Contains(page, "pullgate_policyd_certificate") {
		t.Error("metrics of a certificate that does not exist")
	}
	info, err := os.Stat(p.path("policy.sock"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want mode 0600", info, err)
	}
	if err := p.stop(); err != nil {
		t.Errorf("Run = %v; want nil", err)
	}
	if _, err := os.Stat(p.path("policy.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket after the stop: %v; want it gone", err)
	}
}

// Shows: 004-33
func TestRunRefusesToStart(t *testing.T) {
	taken := prepare(t)
	taken.start()
	cert := issue(t, newAuthority(t))
	secure := func(change func(*process)) func(*process) { return func(p *process) { p.https(cert); change(p) } }
	for name, tc := range map[string]struct {
		change func(p *process)
		want   string
	}{
		"nothing to serve": {func(p *process) { p.config.Node.Listen = "" }, "nothing to serve"},
		"a policy is wrong": {
			func(p *process) { p.write("policies/b.yaml", wrong) }, "b.yaml: imagePolicy.kubeConfigFile: Required value",
		},
		"no kubeconfig": {
			func(p *process) { _ = os.Remove(p.path("first.kubeconfig")) }, "scan.yaml: imagePolicy.kubeConfigFile: ",
		},
		"no API server": {
			secure(func(p *process) { p.write("policies/s.yaml", selected) }), "a policy has binding.namespaceSelector",
		},
		"a template": {secure(func(p *process) {
			p.config.PodTemplates = []config.PodTemplate{{Resource: "pods", Path: "spec"}}
		}), "podTemplates[0]"},
		"no policy folder": {func(p *process) { p.config.Policies = p.path("absent") }, "absent: no such file"},
		"socket in use":    {func(p *process) { p.config.Node.Listen = taken.config.Node.Listen }, "socket in use"},
		"address in use": {
			func(p *process) { p.config.Metrics.Listen = taken.at.Metrics }, "listen on metrics.listen 127.0.0.1:",
		},
		"no certificate": {secure(func(p *process) { _ = os.Remove(p.path("tls.crt")) }), "https.certFile: open "},
		"key of another": {secure(func(p *process) {
			p.write("tls.key", string(issue(p.T, newAuthority(p.T)).Key))
		}), "private key does not match public key"},
		"CA without a block": {secure(func(p *process) {
			p.config.HTTPS.ClientCAFile = p.path("policies/scan.yaml")
		}), "has no certificate in PEM"},
		"https in use": {secure(func(p *process) { p.config.HTTPS.Listen = taken.at.Metrics }), "listen on https.listen"},
	} {
		p := prepare(t)
		tc.change(p)
		p.run()
		if err := <-p.done; err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: Run = %v; want %s", name, err, tc.want)
		}
		p.cancel()
	}
}

// Shows: 004-33
func TestPoliciesAreReadAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for limits and intervals")
	}
	t.Parallel()
	b := serveBackend(t, denyAll)
	p := prepareWith(t, b)
	p.write("second.kubeconfig", b.kubeconfig("/second"))
	p.start()
	c := p.client()
	review := func() string {
		t.Helper()
		results, err := c.Review(t.Context(), p.request())
		if err != nil || len(results) != 1 {
			t.Fatalf("Review = %+v, %v; want one result", results, err)
		}
		return results[0].Reason
	}
	if got := review(); got != "/first" {
		t.Errorf("reason %q; want that of the first backend", got)
	}
	// A request with the hash of other files has the folder read at once.
	old := p.request()
	p.write("policies/scan.yaml", policy(p.path("second.kubeconfig")))
	if got := review(); got != "/second" {
		t.Errorf("reason %q; want that of the second backend", got)
	}
	if _, err := c.Review(t.Context(), old); !errors.Is(err, policyclient.ErrOtherPolicies) {
		t.Errorf("Review with the hash of earlier files = %v; want ErrOtherPolicies", err)
	}
	p.has("pullgate_policyd_policy_mismatches_total 1")
	// An invalid folder changes nothing, and is reported.
	second := p.request()
	p.write("policies/scan.yaml", wrong)
	p.reload <- syscall.SIGHUP
	p.has("pullgate_policyd_policies_last_reload_success 0")
	if results, err := c.Review(t.Context(), second); err != nil || results[0].Reason != "/second" {
		t.Errorf("Review = %+v, %v; want the last valid policies", results, err)
	}
	second.PolicyHash = "other"
	if _, err := c.Review(t.Context(), second); !errors.Is(err, policyclient.ErrOtherPolicies) {
		t.Errorf("Review with another hash = %v; want ErrOtherPolicies", err)
	}
	// Without a request or a signal a change is found by itself.
	p.write("policies/scan.yaml", policy(p.path("second.kubeconfig"), "denyTTL: -1"))
	p.has("pullgate_policyd_policies_last_reload_success 1")
	// So is a change of a kubeconfig; one that is invalid changes nothing.
	p.write("second.kubeconfig", b.kubeconfig("/third"))
	p.until("the third backend", func() bool { return review() == "/third" })
	p.write("second.kubeconfig", "x")
	p.reload <- syscall.SIGHUP
	p.has("pullgate_policyd_policies_last_reload_success 0")
	if got := review(); got != "/third" {
		t.Errorf("reason %q; want that of the last valid kubeconfig", got)
	}
	p.write("second.kubeconfig", b.kubeconfig("/first"))
	p.reload <- syscall.SIGHUP
	p.has("pullgate_policyd_policies_last_reload_success 1")
}

func TestWithoutPolicies(t *testing.T) {
	p, ca := prepare(t), newAuthority(t)
	p.https(issue(t, ca))
	request := p.request()
	p.config.Policies = ""
	p.start()
	if text := p.judge(trusting(ca), appPod); !strings.Contains(text, `"allowed":true`) {
		t.Errorf("the webhook: %s; want an admission", text)
	}
	_, err := p.client().Review(t.Context(), request)
	if !errors.Is(err, policyclient.ErrOtherPolicies) || !strings.Contains(err.Error(), `policies: ""`) {
		t.Errorf("without policies: %v; want ErrOtherPolicies that names the field", err)
	}
}

// A backend that does not answer delays only the containers of its namespaces, also if those are more than a node has.
func TestABackendThatHangsDelaysNoOther(t *testing.T) {
	release := make(chan struct{})
	var hanging atomic.Int32
	b := serveBackend(t, func(path string, _ imagepolicyv1alpha1.ImageReviewSpec) verdict {
		if path == "/hangs" {
			hanging.Add(1)
			<-release
		}
		return &imagepolicyv1alpha1.ImageReviewStatus{Allowed: true}
	})
	p := prepareWith(t, b)
	p.write("policies/scan.yaml", policy(p.path("first.kubeconfig"))+"match: {namespaces: [team]}\n")
	p.write("hangs.kubeconfig", b.kubeconfig("/hangs"))
	p.write("policies/hangs.yaml", policy(p.path("hangs.kubeconfig"))+"match: {namespaces: [hangs]}\n")
	p.start()
	c, team := p.client(), p.request()
	hangs := team
	hangs.Namespace = "hangs"
	var all sync.WaitGroup
	defer func() { close(release); all.Wait() }()
	for range 1000 {
		all.Go(func() {
			if _, err := c.Review(t.Context(), hangs); err != nil {
				t.Errorf("review that waited: %v; want its answer", err)
			}
		})
	}
	p.until("the backend is asked", func() bool { return hanging.Load() > 0 })
	for range 10 {
		begun := time.Now()
		results, err := c.Review(t.Context(), team)
		if took := time.Since(begun); err != nil || len(results) != 1 || !results[0].Allowed || took > 10*time.Second {
			t.Fatalf("review of another namespace: %+v, %v after %v; want an answer at once", results, err, took)
		}
	}
}

func TestStopDrainsReviews(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	p := prepareWith(t, serveBackend(t, func(string, imagepolicyv1alpha1.ImageReviewSpec) verdict {
		close(entered)
		<-release
		return &imagepolicyv1alpha1.ImageReviewStatus{Allowed: true}
	}))
	p.start()
	answered := make(chan error, 1)
	c, request := p.client(), p.request()
	go func() {
		results, err := c.Review(t.Context(), request)
		if err == nil && (len(results) != 1 || !results[0].Allowed) {
			err = errors.New("no approval")
		}
		answered <- err
	}()
	<-entered
	p.cancel()
	p.until("/readyz reports the stop", func() bool {
		code, text := p.get("/readyz")
		return code == http.StatusServiceUnavailable && text == "stopping\n"
	})
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("review during the stop: %v; want its answer", err)
	}
	if err := p.stop(); err != nil {
		t.Errorf("Run = %v; want nil", err)
	}
}
