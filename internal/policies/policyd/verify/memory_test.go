package verify_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"

	ocidigest "github.com/opencontainers/go-digest"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"k8s.io/klog/v2/ktesting"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// hostile returns a registry in which an image has signatures of nearly the allowed size with very many subjects, and
// the digests of its manifest and configuration.
func hostile() (h http.Handler, manifest, image string) {
	var statement strings.Builder
	fmt.Fprintf(&statement,
		`{"_type":"https://in-toto.io/Statement/v1","predicateType":"https://sigstore.dev/cosign/sign/v1","subject":[{}`)
	for n := range 33_000 {
		fmt.Fprintf(&statement, `,{"digest":{"a%d":"%s"}}`, n, strings.Repeat("b", 120))
	}
	statement.WriteString("]}")
	return withBundles(2, func(string) ([]byte, []byte) { return []byte(statement.String()), []byte("nothing") })
}

// withBundles returns a registry in which an image has n bundles of a statement about its manifest.
func withBundles(n int, sign func(manifest string) (statement, signature []byte)) (
	h http.Handler, manifest, image string,
) {
	contents := map[string][]byte{}
	add := func(kind string, content any) string {
		data, ok := content.([]byte)
		if !ok {
			data, _ = json.Marshal(content)
		}
		d := ocidigest.FromBytes(data).String()
		contents["/v2/app/"+kind+"/"+d] = data
		return d
	}
	image = ocidigest.FromString("image").String()
	manifest = add("manifests", map[string]any{"config": map[string]any{"digest": image}})
	statement, signature := sign(manifest)
	bundle, _ := json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": "x"}},
		"dsseEnvelope": map[string]any{
			"payload":     base64.StdEncoding.EncodeToString(statement),
			"payloadType": "application/vnd.in-toto+json",
			"signatures":  []any{map[string]any{"sig": base64.StdEncoding.EncodeToString(signature)}},
		},
	})
	layer := map[string]any{
		"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "digest": add("blobs", bundle),
		"size": len(bundle),
	}
	var referrers []any
	for n := range n {
		referrers = append(referrers, map[string]any{"digest": add("manifests", map[string]any{
			"config": map[string]any{"digest": image}, "layers": []any{layer}, "annotations": map[string]any{"n": fmt.Sprint(n)},
		})})
	}
	list, _ := json.Marshal(map[string]any{"manifests": referrers})
	contents["/v2/app/referrers/"+manifest] = list
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := contents[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content)
	}), manifest, image
}

// As many images as are verified at a time, with signatures that a tenant has made, leave the memory that the unit
// and the Deployment of pullgate-policyd have.
func TestMemoryOfHostileSignatures(t *testing.T) {
	if testing.Short() || testkit.Raced {
		t.Skip("takes seconds; make race runs it without the detector")
	}
	s, rules, hash := realService(t, config.DefaultPolicyd())
	h, manifest, image := hostile()
	verifyAtOnce(t, 24, s, rules, hash, h, verify.Image{ID: image, Digests: []string{manifest}}, 128<<20,
		func(r requirement.Result) bool { return strings.Contains(r.Message, "a statement of") })
}

// The same, for as many images as have their documents in memory, with attestations of the largest size and number of
// parts that are signed as the policy requires.
func TestMemoryOfLargeAttestations(t *testing.T) {
	if testing.Short() || testkit.Raced {
		t.Skip("takes seconds; make race runs it without the detector")
	}
	s, rules, hash, h, image := largeAttestations(t, config.DefaultPolicyd())
	verifyAtOnce(t, 8, s, rules, hash, h, image, 96<<20,
		func(r requirement.Result) bool { return r.Reason == requirement.ConditionNotMet })
}

// The same, where conditions read all attestations.
func TestMemoryOfConditionsOnAttestations(t *testing.T) {
	if testing.Short() || testkit.Raced {
		t.Skip("takes seconds; make race runs it without the detector")
	}
	s, rules, hash, h, image := largeAttestationsFor(t, config.DefaultPolicyd(), 8,
		`validate: {deny: {conditions: {any: [{key: "{{ attestations[0].predicate.x }}", operator: Equals, value: 1}]}}}`)
	verifyAtOnce(t, 4, s, rules, hash, h, image, 96<<20,
		func(r requirement.Result) bool { return r.Reason == requirement.LimitExceeded })
}

// largeAttestations returns a service, and an image with an attestation of the largest size and number of parts that is
// signed as the policy requires.
func largeAttestations(t *testing.T, c config.Policyd) (
	s *verify.Service, rules *verify.Rules, hash string, h http.Handler, i verify.Image,
) {
	t.Helper()
	return largeAttestationsFor(t, c, 2,
		"  conditions: [{all: [{key: \"{{ list[?@ == 'x'][] | length(@) }}\", operator: Equals, value: 1}]}]")
}

// largeAttestationsFor returns n such attestations, and has one more line of the policy.
func largeAttestationsFor(t *testing.T, c config.Policyd, n int, line string) (
	s *verify.Service, rules *verify.Rules, hash string, h http.Handler, i verify.Image,
) {
	t.Helper()
	key := sigstoretest.NewKey(t)
	policy := `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: scanned}
spec:
  validationFailureAction: Enforce
  rules:
  - name: scan
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ["*"]
      attestations:
      - type: ` + scanType + `
        attestors: [{entries: [{keys: {publicKeys: ` + fmt.Sprintf("%q", sigstoretest.PublicPEM(t, key)) + `}}]}]
      ` + line + "\n"
	log := ktesting.NewLogger(t, ktesting.NewConfig())
	s, rules, all := newService(t, verify.ServiceOptions{Config: c, Log: log}, policy)
	var manifest, image string
	h, manifest, image = withBundles(n, func(manifest string) (statement, signature []byte) {
		const kind = "application/vnd.in-toto+json"
		payload := `{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + scanType +
			`","subject":[{"digest":{"sha256":"` +
			strings.TrimPrefix(manifest, "sha256:") + `"}}],"predicate":{"list":[` +
			strings.TrimSuffix(strings.Repeat(`{"":"`+strings.Repeat("x", 60)+`"},`, 59_000), ",") + `]}}`
		return []byte(payload), sigstoretest.Sign(t, key, dsse.PAE(kind, []byte(payload)))
	})
	return s, rules, all.Rules()[0].Hash, h, verify.Image{ID: image, Digests: []string{manifest}}
}

// verifyAtOnce has images of three registries verified, and compares how much the live heap grows.
func verifyAtOnce(t *testing.T, images int, s *verify.Service, rules *verify.Rules, hash string, h http.Handler,
	i verify.Image, most uint64, expected func(requirement.Result) bool,
) {
	t.Helper()
	r := verify.Request{Image: i, Requirements: []string{hash}}
	var hosts []string
	for range 3 {
		server := httptest.NewServer(h)
		defer server.Close()
		hosts = append(hosts, server.Listener.Addr().String())
	}
	used := func() uint64 { // without garbage, which depends on when it is collected
		runtime.GC()
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		return live[0].Value.Uint64()
	}
	before, peak := used(), uint64(0)
	done := make(chan struct{})
	var all sync.WaitGroup
	for n := range images {
		all.Go(func() {
			r := r
			r.Name = imageref.New(fmt.Sprintf("%s/app:%d", hosts[n%len(hosts)], n))
			report, err := s.Verify(t.Context(), rules, r)
			if err != nil || !expected(report.Results[0]) {
				t.Errorf("Verify = %+v, %v; want what is read and does not count", report, err)
			}
		})
	}
	go func() { all.Wait(); close(done) }()
	for running := true; running; {
		peak = max(peak, used())
		select {
		case <-done:
			running = false
		default:
		}
	}
	t.Logf("at most %d MiB above the beginning", (peak-before)>>20)
	if peak > before+most {
		t.Errorf("%d MiB above the beginning; want at most %d", (peak-before)>>20, most>>20)
	}
}

// What waits for memory that other images take is no answer about its image, so that no tenant has the image of
// another denied.
func TestWaitForMemoryIsNoAnswer(t *testing.T) {
	c := config.DefaultPolicyd()
	c.Limits.Time = "1s"
	s, rules, hash := realService(t, c)
	h, manifest, image := hostile()
	r := verify.Request{Image: verify.Image{ID: image, Digests: []string{manifest}}, Requirements: []string{hash}}
	server := httptest.NewServer(h)
	defer server.Close()
	r.Name = imageref.New(server.Listener.Addr().String() + "/app:1")
	defer s.TakeMemory()()
	if report, err := s.Verify(t.Context(), rules, r); !errors.Is(err, verify.ErrBusy) {
		t.Errorf("Verify without memory = %+v, %v; want ErrBusy", report.Results, err)
	}
}

// One predicate is decoded at a time, and a wait for the turn is no answer either.
func TestWaitToDecodeIsNoAnswer(t *testing.T) {
	c := config.DefaultPolicyd()
	c.Limits.Time = "2s"
	s, rules, hash, h, image := largeAttestations(t, c)
	server := httptest.NewServer(h)
	defer server.Close()
	image.Name = imageref.New(server.Listener.Addr().String() + "/app:1")
	defer s.TakeDecoding()()
	r := verify.Request{Image: image, Requirements: []string{hash}}
	if report, err := s.Verify(t.Context(), rules, r); !errors.Is(err, verify.ErrBusy) {
		t.Errorf("Verify without the turn = %+v, %v; want ErrBusy", report.Results, err)
	}
}
