package signatures_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log" //nolint:depguard // the registry takes its logger
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"

	"github.com/pullgate/pullgate/e2e/hookserver"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/signing"
)

const (
	loadImages, imagesOfPod = 50, 5
	// loadRate is how many requests are sent in a second, and loadAtOnce how many may wait for their answer on a machine
	// with other work: pullgate-policyd refuses some beyond 512 connections, and those that waited 10 s for a hook.
	loadRate, loadAtOnce = 1000, 256
)

// A load is a webhook that adds digests to, and verifies, the images of a registry; or that asks hooks.
type load struct {
	testing.TB
	webhook *node.Webhook
	client  *http.Client
	bodies  [2][][]byte // of pods by tag, and of the same by digest
	hooked  bool        // two hooks are asked, and nothing is changed
}

var loadPaths = [2]string{"/admission/mutate", "/admission/validate"}

func prepareLoad(tb testing.TB, hooked bool) *load {
	tb.Helper()
	images := httptest.NewServer(registry.New(registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0))))
	tb.Cleanup(images.Close)
	address, dir, key := images.Listener.Addr().String(), criproxytest.SocketDir(tb), sigstoretest.NewKey(tb)
	keys := kyvernoKeys(0, string(sigstoretest.PublicPEM(tb, key)))
	policy := kyvernoPolicy("load", address+"/", fmt.Sprintf("%s\n      mutateDigest: true\n      verifyDigest: true\n"+
		"      attestations: [{type: %q, conditions: [{all: [{key: '{{ length(@) }}', operator: Equals, value: 0}]}]}]",
		keys, scanType))
	policies, hosts := filepath.Join(dir, "policies"), filepath.Join(dir, "hosts", address)
	mirror := fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", images.URL)
	testkit.Must(tb, os.MkdirAll(policies, 0o755), os.MkdirAll(hosts, 0o755),
		os.WriteFile(filepath.Join(policies, "load.yaml"), []byte(policy), 0o644),
		os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(mirror), 0o644))
	if hooked {
		hooks := hookserver.New(tb, filepath.Join(dir, "hooks.sock")).File("load", "policy.pullgate.dev/at: Both",
			hookserver.Hook{Name: "a"}, hookserver.Hook{Name: "b"})
		testkit.Must(tb, os.WriteFile(filepath.Join(policies, "load.yaml"), hooks, 0o644))
	}
	authority := testkit.Value(testkit.NewAuthority("authority of webhooks"))(tb)
	at := fmt.Sprintf("127.0.0.1:%d", testkit.Value(host.FreePort())(tb))
	l := &load{TB: tb, hooked: hooked}
	l.webhook = node.StartWebhook(tb, authority, at, filepath.Join(dir, "policyd"), policies,
		"registries: {hostsDir: "+filepath.Dir(hosts)+"}")
	l.client = l.webhook.Client()
	tb.Cleanup(l.client.CloseIdleConnections)
	var names [2][]string
	for i := range loadImages {
		repository := testkit.Value(signing.Open(fmt.Sprintf("%s/team/app-%d", address, i), nil))(tb)
		image := testkit.Value(repository.Image(tb.Context(), "1", fmt.Sprint("app ", i)))(tb)
		repository.Sign(tb, key, image.Digest)
		payload := sigstoretest.Statement{Predicate: scanType, Digests: []string{image.Digest}}.JSON(tb)
		bundle := sigstoretest.BundleJSON(tb, sigstoretest.KeyBundle(tb, key, payload))
		testkit.Must(tb, repository.Attach(tb.Context(), image.Digest, bundle, signing.BundleMediaType))
		names[0] = append(names[0], image.Name)
		names[1] = append(names[1], image.Name+"@"+image.Digest)
	}
	for kind, list := range names {
		for some := range slices.Chunk(list, imagesOfPod) {
			var containers []string
			for i, image := range some {
				containers = append(containers, fmt.Sprintf(`{"name":"c%d","image":%q,"env":[{"name":"A","value":%q}]}`, i, image,
					strings.Repeat("a", 300)))
			}
			l.bodies[kind] = append(l.bodies[kind], fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1",`+
				`"kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","namespace":"team-%d",`+
				`"kind":{"version":"v1","kind":"Pod"},"resource":{"version":"v1","resource":"pods"},"object":{"apiVersion":"v1",`+
				`"kind":"Pod","metadata":{"name":"app"},"spec":{"containers":[%s]}}}}`,
				len(l.bodies[kind]), strings.Join(containers, ",")))
		}
	}
	return l
}

// post sends one of the requests. It returns an error unless the pod is admitted.
func (l *load) post(i int) error {
	kind := i % 2
	if l.hooked {
		kind = 1
	}
	url, body := "https://"+l.webhook.Address+loadPaths[kind], l.bodies[kind][i/2%len(l.bodies[kind])]
	req, err := http.NewRequestWithContext(l.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	var review struct {
		Response struct {
			Allowed  bool
			Patch    []byte
			Warnings []string
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &review)
	}
	if r := review.Response; err == nil && (!r.Allowed || len(r.Warnings) > 0 || (kind == 0) != (len(r.Patch) > 0)) {
		err = fmt.Errorf("%s: %s", loadPaths[kind], text)
	}
	return err
}

// send sends so many requests at loadRate, or more slowly while loadAtOnce wait for their answers. It returns how long
// each took, in order of length, and the whole.
func (l *load) send(n int) (took []time.Duration, whole time.Duration) {
	l.Helper()
	took = make([]time.Duration, n)
	var all sync.WaitGroup
	waiting := make(chan struct{}, loadAtOnce)
	began := time.Now()
	for i := range n {
		time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / loadRate)))
		waiting <- struct{}{}
		all.Go(func() {
			defer func() { <-waiting }()
			sent := time.Now()
			if err := l.post(i); err != nil {
				l.Error(err)
			}
			took[i] = time.Since(sent)
		})
	}
	all.Wait()
	slices.Sort(took)
	return took, time.Since(began)
}

// measure sends so many requests, and returns the p99 and the most memory that pullgate-policyd had.
func (l *load) measure(n int) (p99 time.Duration, memory int) {
	l.Helper()
	for i := range 2 * len(l.bodies[0]) { // so that the caches have each image
		testkit.Must(l, l.post(i))
	}
	took, whole := l.send(n)
	u := testkit.Value(l.webhook.Usage())(l)
	p99 = took[n*99/100]
	l.Logf("%.0f requests in a second, median %v, p99 %v, %v of CPU, %d MB of memory",
		float64(n)/whole.Seconds(), took[n/2], p99, u.Processor, u.Peak>>20)
	asked := testkit.Value(l.webhook.Metric("pullgate_policyd_hook_requests_total", `outcome="allowed"`))(l)
	if l.hooked && int(asked) < 2*n {
		l.Errorf("hooks have allowed %v requests; want two for each pod", asked)
	}
	return p99, u.Peak
}

// With a thousand requests in a second, pullgate-policyd has at most 150 MB of memory.
// Shows: 004-R5
func TestMemoryOfAThousandRequests(t *testing.T) {
	for _, hooked := range []bool{false, true} {
		t.Run(fmt.Sprint("hooks ", hooked), func(t *testing.T) {
			if _, memory := prepareLoad(t, hooked).measure(3 * loadRate); memory > 150<<20 {
				t.Errorf("pullgate-policyd had %d MB of memory; want at most 150", memory>>20)
			}
		})
	}
}

// BenchmarkAThousandRequests measures the same for longer. Half of the requests are for /admission/mutate, half for
// /admission/validate; with hooks, all are for the latter.
//
//	go test -run '^$' -bench AThousandRequests -benchtime 60000x ./signatures
func BenchmarkAThousandRequests(b *testing.B) {
	for _, hooked := range []bool{false, true} {
		b.Run(fmt.Sprint("hooks ", hooked), func(b *testing.B) {
			l := prepareLoad(b, hooked)
			b.ResetTimer()
			p99, memory := l.measure(b.N)
			b.ReportMetric(float64(p99.Microseconds()), "p99-us")
			b.ReportMetric(float64(memory>>20), "MB")
		})
	}
}
