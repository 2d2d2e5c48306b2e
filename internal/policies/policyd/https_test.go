package policyd_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"

	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/testkit"
)

func newAuthority(t *testing.T) *testkit.Authority {
	t.Helper()
	return testkit.Value(testkit.NewAuthority("CA"))(t)
}

func issue(t *testing.T, ca *testkit.Authority) testkit.Pair {
	t.Helper()
	return testkit.Value(ca.Issue(pkix.Name{CommonName: "localhost"}, time.Time{}))(t)
}

// https has the process serve HTTPS.
func (p *process) https(cert testkit.Pair) {
	p.write("tls.crt", string(cert.Certificate))
	p.write("tls.key", string(cert.Key))
	p.config.HTTPS.Listen = "127.0.0.1:0"
	p.config.HTTPS.CertFile, p.config.HTTPS.KeyFile = p.path("tls.crt"), p.path("tls.key")
}

// post sends a body over a connection of its own, and returns status and answer.
func (p *process) post(c *tls.Config, path string, body io.Reader) (int, string, error) {
	p.Helper()
	c.ServerName = "localhost"
	tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	req := testkit.Value(http.NewRequestWithContext(p.Context(), http.MethodPost, "https://"+p.at.HTTPS+path, body))(p)
	req.Header.Set("Content-Type", "application/json")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// Specs of pods.
const (
	appPod    = `{"containers":[{"name":"c","image":"app:1"}]}`
	onNetwork = `{"containers":[{"name":"c","image":"app:1"}],"hostNetwork":true}`
)

// admissionReview returns the review of a pod.
func admissionReview(namespace string, dryRun bool, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1",
		"kind":{"version":"v1","kind":"Pod"},"resource":{"version":"v1","resource":"pods"},
		"operation":"CREATE","namespace":%q,"name":"app","dryRun":%v,"object":{"apiVersion":"v1","kind":"Pod",
		"metadata":{"name":"app","namespace":"team"},"spec":%s}}}`, namespace, dryRun, spec)
}

// judge returns the answer to the review of a pod, or the error.
func (p *process) judge(c *tls.Config, spec string) string {
	p.Helper()
	body := strings.NewReader(admissionReview("team", false, spec))
	code, text, err := p.post(c, webhook.ValidatePath+"?timeout=30s", body)
	if err != nil || code != http.StatusOK {
		return fmt.Sprintf("%d %s %v", code, text, err)
	}
	return text
}

// A rule for custom resources is in force in the process, with the other images of the object as they were.
func TestCustomResourcesOverHTTPS(t *testing.T) {
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	p.write("policies/tasks.yaml", `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: tasks}
spec:
  validationFailureAction: Enforce
  rules:
  - name: digests
    match: {any: [{resources: {kinds: [tekton.dev/v1/Task]}}]}
    verifyImages: [{imageReferences: ['*'], digestVerify: true, imagePaths: [{path: "{{ spec.steps[*] }}"}]}]
`)
	p.start()
	const byTag = `pullgate: tasks.tekton.dev team/app: image \"app:1\": rule digests of policy tasks requires that`
	for image, want := range map[string]string{
		"app@sha256:" + strings.Repeat("0", 64): `"allowed":true`,
		"app:1":                                 byTag,
	} {
		review := strings.NewReplacer(`"version":"v1","kind":"Pod"`, `"group":"tekton.dev","version":"v1","kind":"Task"`,
			`"version":"v1","resource":"pods"`, `"group":"tekton.dev","version":"v1","resource":"tasks"`).
			Replace(admissionReview("team", false, fmt.Sprintf(`{"steps":[{"name":"a","image":%q}]}`, image)))
		code, text, err := p.post(trusting(ca), webhook.ValidatePath+"?timeout=10s", strings.NewReader(review))
		if err != nil || code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, %v; want %s", image, code, text, err, want)
		}
	}
	if text := p.judge(trusting(ca), appPod); !strings.Contains(text, `"allowed":true`) {
		t.Errorf("a pod: %s; want an admission", text)
	}
}

// trusting returns the configuration of a client that trusts a CA.
func trusting(ca *testkit.Authority) *tls.Config { return &tls.Config{RootCAs: ca.Pool()} }

func TestHTTPSServesTheWebhook(t *testing.T) {
	ca := newAuthority(t)
	b := serveBackend(t, func(_ string, s imagepolicyv1alpha1.ImageReviewSpec) verdict {
		v := &imagepolicyv1alpha1.ImageReviewStatus{Allowed: true, AuditAnnotations: map[string]string{"ticket": "T-7"}}
		switch s.Containers[0].Image {
		case "denied:1":
			v.Allowed, v.Reason = false, "not scanned"
		case "fails:1":
			return nil
		}
		return v
	})
	p := prepareWith(t, b)
	p.https(issue(t, ca))
	p.write("policies/no-host-network.yaml", noHostNetwork)
	p.start()
	ask := func(path, body string) string {
		t.Helper()
		code, text, err := p.post(trusting(ca), path, strings.NewReader(body))
		if err != nil || code != http.StatusOK {
			t.Errorf("%s: answer %d %q, %v", path, code, text, err)
		}
		return text
	}
	for spec, want := range map[string]string{
		appPod:    `"allowed":true,"auditAnnotations":{"ticket":"T-7"}`,
		onNetwork: `no-host-network`,
		`{"containers":[{"name":"c","image":"denied:1"}]}`: `not scanned`,
		`{"containers":[{"name":"c","image":"fails:1"}]}`:  `no valid answer from the image review backend scan`,
		`{"containers":[{"name":"d","image":7}]}`:          `cannot be decoded`,
	} {
		for _, dryRun := range []bool{false, true} {
			text := ask(webhook.ValidatePath+"?timeout=10s", admissionReview("team", dryRun, spec))
			if !strings.Contains(text, want) || !strings.Contains(text, `"uid":"u-1"`) {
				t.Errorf("%s: %s; want %s", spec, text, want)
			}
		}
	}
	const review = `{"kind":"ImageReview","apiVersion":"imagepolicy.k8s.io/v1alpha1","metadata":{},` +
		`"spec":{"containers":[{"image":"app:1"}],"namespace":"team"},"status":{"allowed":false}}`
	if text := ask(webhook.ImageReviewPath+"?timeout=30s", review); !strings.Contains(text, `"allowed":true`) {
		t.Errorf("an image review: %s; want an approval", text)
	}
	for _, line := range []string{
		`webhook_requests_total{outcome="allowed",path="/admission/validate"} 2`,
		`webhook_requests_total{outcome="denied",path="/admission/validate"} 6`,
		`webhook_requests_total{outcome="allowed",path="/imagereview"} 1`,
		`webhook_seconds_count{path="/admission/validate"} 10`, "certificate_last_reload_success 1",
	} {
		p.has("pullgate_policyd_" + line)
	}
	if log := p.log.String(); strings.Count(log, "\"Denied\"") != 8 || !strings.Contains(log, "dryRun=true") {
		t.Errorf("log:\n%s", log)
	}
	code, _, err := p.post(trusting(ca), webhook.ValidatePath, bytes.NewReader(make([]byte, 8<<20)))
	if err == nil && code != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of 8 MiB: %d; want 413", code)
	}
	old := &tls.Config{RootCAs: ca.Pool(), MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	if _, _, err := p.post(old, "/", nil); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
}

// A pod whose review takes long does not keep other requests from being answered.
func TestWebhookAnswersBesideSlowReviews(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	const reviews = 100
	asked, release := make(chan struct{}, reviews), make(chan struct{})
	p := prepareWith(t, serveBackend(t, func(_ string, s imagepolicyv1alpha1.ImageReviewSpec) verdict {
		if s.Namespace == "team" {
			asked <- struct{}{}
			<-release
		}
		return &imagepolicyv1alpha1.ImageReviewStatus{Allowed: true}
	}))
	p.https(issue(t, ca))
	p.start()
	ask := func(namespace, image string) {
		body := strings.NewReader(admissionReview(namespace, false, `{"containers":[{"name":"c","image":"`+image+`"}]}`))
		code, text, err := p.post(trusting(ca), webhook.ValidatePath+"?timeout=30s", body)
		if err != nil || !strings.Contains(text, `"allowed":true`) {
			t.Errorf("%s of %s: %d %s, %v", image, namespace, code, text, err)
		}
	}
	var slow sync.WaitGroup
	for i := range reviews {
		slow.Go(func() { ask("team", fmt.Sprint("app:", i)) })
	}
	for range 8 { // as many as are asked for one namespace at the same time
		<-asked
	}
	begin := time.Now()
	ask("other", "app:1")
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("a pod of another namespace: an answer after %v", took)
	}
	close(release)
	slow.Wait()
}

// noHostNetwork is a policy that denies hostNetwork.
const noHostNetwork = `apiVersion: policy.pullgate.dev/v1alpha1
kind: PodRestriction
metadata: {name: no-host-network}
spec: {spec: {securityContext: {hostNetwork: {require: false}}}}
`

func TestHTTPSWithoutNode(t *testing.T) {
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	p.config.Node.Listen, p.config.Policies = "", ""
	p.start()
	if text := p.judge(trusting(ca), appPod); !strings.Contains(text, `"allowed":true`) || p.at.Node != "" {
		t.Errorf("without policies: %s; want an admission, and no node server at %q", text, p.at.Node)
	}
}

func TestHTTPSReadsCertificatesAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for limits and intervals")
	}
	t.Parallel()
	first, second := newAuthority(t), newAuthority(t)
	p := prepare(t)
	p.https(issue(t, first))
	p.start()
	trusts := func(a *testkit.Authority) bool {
		_, _, err := p.post(trusting(a), "/x", nil)
		return err == nil
	}
	if !trusts(first) || trusts(second) {
		t.Fatal("the certificate at the start is not the first")
	}
	// A certificate without its key is not used.
	next := issue(t, second)
	p.write("tls.crt", string(next.Certificate))
	p.reload <- syscall.SIGHUP
	p.has("pullgate_policyd_certificate_last_reload_success 0")
	if !trusts(first) {
		t.Error("the last valid certificate is not in use")
	}
	// With its key it is, without a signal.
	p.write("tls.key", string(next.Key))
	p.until("the second certificate", func() bool { return trusts(second) })
	p.has("pullgate_policyd_certificate_last_reload_success 1")
	// Nothing of a key is in the log.
	log := p.log.String()
	if strings.Contains(log, "PRIVATE") || !strings.Contains(log, "private key does not match public key") {
		t.Errorf("log:\n%s", log)
	}
}

// One process serves the API servers of two clusters, each with a CA of its own. Pods of the same UID, namespace and
// name are judged apart.
// Shows: 004-16
func TestOneWebhookForTwoClusters(t *testing.T) {
	ca, one, two := newAuthority(t), newAuthority(t), newAuthority(t)
	p := prepareWith(t, serveBackend(t, func(_ string, s imagepolicyv1alpha1.ImageReviewSpec) verdict {
		return &imagepolicyv1alpha1.ImageReviewStatus{Allowed: s.Containers[0].Image == "scanned:1", Reason: "not scanned"}
	}))
	p.https(issue(t, ca))
	p.write("ca.crt", string(one.PEM())+string(two.PEM()))
	p.config.HTTPS.ClientCAFile = p.path("ca.crt")
	p.write("policies/no-host-network.yaml", noHostNetwork)
	p.start()
	with := func(c testkit.Pair) *tls.Config {
		return &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{testkit.Value(c.TLS())(t)}}
	}
	scanned, other := `{"containers":[{"name":"c","image":"scanned:1"}]`, `{"containers":[{"name":"c","image":"other:1"}]`
	for cluster, tc := range map[*testkit.Authority][]struct{ spec, want string }{
		one: {{scanned + "}", `"allowed":true`}, {scanned + `,"hostNetwork":true}`, "no-host-network"}},
		two: {{other + "}", "not scanned"}, {scanned + "}", `"allowed":true`}},
	} {
		cert := issue(t, cluster)
		for _, pod := range tc {
			if text := p.judge(with(cert), pod.spec); !strings.Contains(text, pod.want) {
				t.Errorf("%s: %s; want %s", pod.spec, text, pod.want)
			}
		}
	}
	if _, _, err := p.post(with(issue(t, ca)), "/x", nil); err == nil {
		t.Error("a certificate of another CA is accepted")
	}
	if _, _, err := p.post(trusting(ca), "/x", nil); err == nil {
		t.Error("a client without a certificate is accepted")
	}
}
