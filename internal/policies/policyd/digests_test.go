package policyd_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/testkit"
)

// pinning is a policy that adds digests to all images.
const pinning = `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: pinning}
spec:
  failurePolicy: Fail
  rules:
  - name: digest
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages: [{imageReferences: ["*"], mutateDigest: true}]
`

// Digests are added as soon as a policy says so, with the client of the webhook, and are logged and counted.
func TestDigestsAreAdded(t *testing.T) {
	const manifest = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{},"layers":[]}`
	const digest = "sha256:21d94c4ae81f56d81b98c4468796264cbff924c3fae1fd9e8379120a7d264f31"
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/app/manifests/1" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, manifest)
	}))
	t.Cleanup(images.Close)
	ca := newAuthority(t)
	p := prepare(t)
	p.https(issue(t, ca))
	address := images.Listener.Addr().String()
	p.config.Registries.HostsDir = p.path("hosts")
	testkit.Must(t, os.MkdirAll(p.path("hosts/"+address), 0o755))
	p.write("hosts/"+address+"/hosts.toml", "[host.\""+images.URL+"\"]\n  capabilities = [\"pull\", \"resolve\"]\n")
	p.start()
	mutated := func(image string) string {
		t.Helper()
		spec := `{"containers":[{"name":"c","image":"` + image + `"}]}`
		body := strings.NewReader(admissionReview("team", false, spec))
		code, text, err := p.post(trusting(ca), webhook.MutatePath+"?timeout=10s", body)
		if err != nil || code != http.StatusOK {
			t.Errorf("%s: answer %d %q, %v", image, code, text, err)
		}
		return text
	}
	if text := mutated(address + "/app:1"); !strings.Contains(text, `"allowed":true`) || strings.Contains(text, "patch") {
		t.Errorf("without a policy: %s", text)
	}
	p.has(`pullgate_policyd_webhook_requests_total{outcome="unchanged",path="/admission/mutate"} 1`)
	p.write("policies/pinning.yaml", pinning)
	p.reload <- os.Interrupt
	p.reload <- os.Interrupt // the first one has been handled
	if text := mutated(address + "/app:1"); !strings.Contains(text, `"patchType":"JSONPatch"`) ||
		!strings.Contains(text, digest) {
		t.Errorf("with a policy: %s", text)
	}
	if text := mutated(address + "/absent:1"); !strings.Contains(text, `"allowed":false`) ||
		!strings.Contains(text, "could not read it from the registry") || strings.Contains(text, "not found") {
		t.Errorf("an image that is absent: %s", text)
	}
	for _, metric := range []string{
		`pullgate_policyd_webhook_requests_total{outcome="changed",path="/admission/mutate"} 1`,
		`pullgate_policyd_webhook_requests_total{outcome="denied",path="/admission/mutate"} 1`,
		`pullgate_policyd_registry_requests_total{outcome="ok"} 1`,
	} {
		p.has(metric)
	}
	if text := p.log.String(); !strings.Contains(text, "Added digests to images") || !strings.Contains(text, digest) ||
		!strings.Contains(text, "Failed to resolve an image to its digest") {
		t.Errorf("log:\n%s", text)
	}
}
