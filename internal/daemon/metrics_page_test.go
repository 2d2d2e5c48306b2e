package daemon_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// busyScrape returns the metrics page of the built daemon, with every optional part, after a hit, a miss and a hidden
// pre-check.
func busyScrape(t *testing.T) string {
	t.Helper()
	r := criproxytest.NewRuntime(t)
	api := newAPIServer(t, (&criproxytest.Kubelet{}).PodFrom("source", "api"), tableCase{Image: app})
	policies := newPolicyFolder(t)
	p := prepare(t, r.Endpoint(), "kubeletSkipsAlwaysPrecheck: true", api.settings(),
		"admission: {policies: "+policies+", recheckEndorsements: 1h}")
	serves(r, app, "good", id1)
	p.start()
	p.until("pullgate_pod_source_synced", 1)
	k := p.kubelet()
	alice, bob := k.Pod("alice"), k.Pod("bob")
	for _, pod := range []*criproxytest.Pod{alice, bob} {
		k.Precheck(pod, app)
		k.MustPull(pod, app, "good")
	}
	mallory := k.Pod("mallory")
	if got := k.Precheck(mallory, app); got != "" {
		t.Fatalf("pre-check = %q; want it hidden", got)
	}
	if _, err := k.Pull(t.Context(), mallory, app, "bad"); err == nil {
		t.Fatal("a pull with a wrong password succeeds")
	}
	page, err := p.get("/metrics")
	testkit.Must(t, err)
	return page
}

// newPolicyFolder returns a folder with a restriction, an image review backend, and a rule about signatures of images
// that no pod uses.
func newPolicyFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "policies")
	text, err := restriction.Preset("baseline")
	if err := errors.Join(err, os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "baseline.yaml"), text, 0o644),
		os.WriteFile(filepath.Join(dir, "scanner.yaml"), []byte("imagePolicy: {kubeConfigFile: /etc/scanner.kubeconfig}\n"),
			0o644),
		os.WriteFile(filepath.Join(dir, "signed.yaml"), []byte(`apiVersion: policy.sigstore.dev/v1beta1
kind: ClusterImagePolicy
metadata: {name: signed}
spec: {images: [{glob: repo.test/signed}], authorities: [{keyless: {identities: [{issuer: i, subject: s}]}}]}
`), 0o644)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// docs/metrics.md lists every metric of the daemon with its type and labels, and no other. promlint finds no problem in
// any of them, nor in those of Go and of the process.
func TestMetricsPageIsARealScrape(t *testing.T) {
	t.Parallel()
	page, scrape := readMetricsPage(t), busyScrape(t)
	problems, err := promlint.New(strings.NewReader(scrape)).Lint()
	testkit.Must(t, err)
	for _, p := range problems {
		t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
	if diff := cmp.Diff(scraped(scrape), page.metrics); diff != "" {
		t.Errorf("docs/metrics.md (-scrape +page):\n%s", diff)
	}
	for name, unit := range page.units {
		for suffix, want := range map[string]string{"_seconds": "seconds", "_bytes": "bytes"} {
			if strings.HasSuffix(strings.TrimSuffix(name, "_total"), suffix) && unit != want {
				t.Errorf("docs/metrics.md: unit of %s = %q; want %q", name, unit, want)
			}
		}
	}
}

// metricsPage is the content of docs/metrics.md.
type metricsPage struct {
	metrics map[string]string // type and labels
	units   map[string]string
}

func readMetricsPage(t *testing.T) metricsPage {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	testkit.Must(t, err)
	page := metricsPage{metrics: map[string]string{}, units: map[string]string{}}
	ofMetrics, _, _ := strings.Cut(string(text), "\n## Labels\n")
	quoted := regexp.MustCompile("`([^`]+)`")
	for _, section := range strings.Split(ofMetrics, "\n### ")[1:] {
		title, rest, _ := strings.Cut(section, "\n")
		name := strings.Trim(title, "`")
		row, text, _ := strings.Cut(strings.TrimPrefix(rest, "\n"), "\n\n")
		cells := regexp.MustCompile(`(?s)^([A-Z][a-z]+), ([^,]+?)(?:, by (.+))?\.$`).FindStringSubmatch(row)
		if cells == nil {
			t.Errorf("docs/metrics.md: %s: line %q; want type, unit and labels", name, row)
			continue
		}
		if !strings.Contains("\n"+text, "\n*Look* ") {
			t.Errorf("docs/metrics.md: %s: no line that begins with *Look*", name)
		}
		var labels []string
		for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
			labels = append(labels, m[1])
		}
		slices.Sort(labels)
		page.metrics[name] = strings.ToLower(cells[1]) + " " + strings.Join(labels, ",")
		page.units[name] = cells[2]
	}
	return page
}

// scraped returns type and labels of every metric of pullgate on a page.
func scraped(page string) map[string]string {
	types := map[string]string{}
	labels := map[string]map[string]bool{}
	label := regexp.MustCompile(`([a-z_]+)="`)
	for line := range strings.Lines(page) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(strings.TrimSpace(name), " ")
			types[name], labels[name] = kind, map[string]bool{}
			continue
		}
		name := line[:strings.IndexAny(line, "{ ")]
		if _, ok := types[name]; !ok {
			name = name[:max(strings.LastIndex(name, "_"), 0)] // a series of a histogram
		}
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			if labels[name] != nil && (m[1] != "le" || types[name] != "histogram") {
				labels[name][m[1]] = true
			}
		}
	}
	all := map[string]string{}
	for name, kind := range types {
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			all[name] = kind + " " + strings.Join(slices.Sorted(maps.Keys(labels[name])), ",")
		}
	}
	return all
}
