package admission_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

const (
	loadRestrictions = 100
	loadRate         = 1000 // reviews in a second
	loadTime         = 5 * time.Second
	loadOpen         = 64 // reviews at the same time
	// idleMemory and loadedMemory are what a pullgate-policyd may have resident.
	idleMemory, loadedMemory = 40_000_000, 100_000_000
)

// A webhook with 100 restrictions is asked 1,000 times in a second over TLS, as an API server does. The memory of the
// process is limited. Times depend on what else the machine does, so they are printed only.
func TestWebhookUnderLoad(t *testing.T) {
	if os.Getenv("NODES") != "matrix" {
		t.Skip("a part of make matrix")
	}
	p, post := startLoaded(t)
	idle := 0
	// what the start has allocated is collected
	if !host.Within(10*time.Second, func() bool { idle = resident(t, p); return idle <= idleMemory }) {
		t.Errorf("%.1f MB resident when idle; at most 40 MB", float64(idle)/1e6)
	}
	t.Logf("%.1f MB resident when idle", float64(idle)/1e6)
	body := loadBody()
	for range 200 { // connections and caches as in a process that runs for a while
		must(t, post(t.Context(), body))
	}
	before, err := p.Usage()
	must(t, err)
	took, failed := atRate(t.Context(), func(ctx context.Context) error { return post(ctx, body) })
	for _, err := range failed[:min(3, len(failed))] {
		t.Error(err)
	}
	after, err := p.Usage()
	must(t, err)
	at := func(hundredth int) time.Duration { return took[len(took)*hundredth/100].Round(10 * time.Microsecond) }
	t.Logf("%d restrictions, %d bytes, %d reviews in %v (%d failed): p50 %v, p90 %v, p99 %v, %v of a processor each, %.1f MB resident at most",
		loadRestrictions, len(body), len(took), loadTime, len(failed), at(50), at(90), at(99), ((after.Processor - before.Processor) / time.Duration(len(took))).Round(time.Microsecond), float64(after.Peak)/1e6)
	if after.Peak > loadedMemory {
		t.Errorf("%.1f MB resident under load; at most 100 MB", float64(after.Peak)/1e6)
	}
}

// startLoaded starts a pullgate-policyd with 100 restrictions, and returns what sends a review to its webhook and wants
// it allowed.
func startLoaded(t *testing.T) (p *node.Policyd, post func(ctx context.Context, body []byte) error) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "policies"), 0o700))
	for i, text := range loadPolicies(t) {
		must(t, os.WriteFile(filepath.Join(dir, "policies", fmt.Sprintf("%d.yaml", i)), []byte(text), 0o600))
	}
	h := node.StartWebhook(t, filepath.Join(dir, "run"), filepath.Join(dir, "policies"))
	return h.Policyd, func(ctx context.Context, body []byte) error {
		return h.Allows(ctx, "/admission/validate?timeout=10s", body)
	}
}

// loadPolicies returns restrictions, each the preset restricted with a registry of its own.
func loadPolicies(t *testing.T) (all []string) {
	t.Helper()
	path, err := host.Upward("internal/policies/restriction/presets/restricted.yaml")
	must(t, err)
	preset, err := os.ReadFile(path)
	must(t, err)
	for i := range loadRestrictions {
		text := strings.Replace(string(preset), "name: restricted", fmt.Sprintf("name: policy-%d", i), 1)
		all = append(all, strings.Replace(text, "    - securityContext:", fmt.Sprintf("    - image: [{registry: {whitelist: [r%d.test, good.test]}}]\n      securityContext:", i), 1))
	}
	return all
}

// loadBody is the review of a pod with three containers.
func loadBody() []byte {
	container := func(name string) string {
		return `{"name":"` + name + `","image":"good.test/a:1","resources":{"limits":{"cpu":"1","memory":"1Gi"}},"env":[{"name":"A","value":"b"}],` +
			`"securityContext":{"privileged":false,"allowPrivilegeEscalation":false,"runAsNonRoot":true,"capabilities":{"drop":["ALL"]}},` +
			`"volumeMounts":[{"name":"v","mountPath":"/v"}],"readinessProbe":{"httpGet":{"path":"/","port":80}}}`
	}
	return []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002",` +
		`"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},"name":"p","namespace":"default","operation":"CREATE",` +
		`"userInfo":{"username":"system:serviceaccount:kube-system:replicaset-controller"},"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default"},` +
		`"spec":{"initContainers":[` + container("i") + `],"containers":[` + strings.Join([]string{container("a"), container("b")}, ",") + `],` +
		`"volumes":[{"name":"v","emptyDir":{}}]}}}}`)
}

// atRate makes calls at a rate, whether earlier ones have been answered or not, and returns how long after its due time
// each ended, sorted. If the machine is too slow for the rate, calls wait here and not in the process.
func atRate(ctx context.Context, call func(ctx context.Context) error) (took []time.Duration, failed []error) {
	var (
		mu    sync.Mutex
		calls sync.WaitGroup
		open  = make(chan struct{}, loadOpen)
	)
	tick := time.NewTicker(time.Second / loadRate)
	defer tick.Stop()
	began := time.Now()
	for i := 0; ; {
		now := <-tick.C
		if now.Sub(began) > loadTime {
			break
		}
		for due := began.Add(time.Duration(i) * time.Second / loadRate); !due.After(now); due = began.Add(time.Duration(i) * time.Second / loadRate) {
			i++
			open <- struct{}{}
			calls.Go(func() {
				err := call(ctx)
				<-open
				d := time.Since(due)
				mu.Lock()
				defer mu.Unlock()
				took = append(took, d)
				if err != nil {
					failed = append(failed, err)
				}
			})
		}
	}
	calls.Wait()
	slices.Sort(took)
	return took, failed
}

func resident(t *testing.T, p *node.Policyd) int {
	t.Helper()
	u, err := p.Usage()
	must(t, err)
	return u.Resident
}
