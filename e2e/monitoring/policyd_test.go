package monitoring_test

import (
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"

	"github.com/pullgate/pullgate/e2e/node"
)

// The page of pullgate-policyd lists every metric of a real scrape with its labels, and no other.
func TestPolicydPageIsARealScrape(t *testing.T) {
	scraped := labelsOf(t, startWebhook(t, filepath.Join(criproxytest.SocketDir(t), "policyd"), policies(t)))
	written := policydMetrics(t)
	for name, labels := range written {
		if got, ok := scraped[name]; !ok || !slices.Equal(got, labels) {
			t.Errorf("docs/pullgate-policyd.md: %s has the labels %q; the scrape has it: %v, with %q", name, labels, ok, got)
		}
	}
	for name := range scraped {
		if _, ok := written[name]; !ok {
			t.Errorf("docs/pullgate-policyd.md does not have %s", name)
		}
	}
}

// policydMetrics returns the metrics of docs/pullgate-policyd.md, with their labels.
func policydMetrics(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	label := regexp.MustCompile("^ *`([a-z]+)`")
	rows := regexp.MustCompile("(?m)^\\| `(pullgate_policyd_[a-z_]+)` \\| ([^|]*)\\|")
	for _, row := range rows.FindAllStringSubmatch(read(t, "pullgate-policyd.md"), -1) {
		all[row[1]] = nil
		// Labels are separated by a semicolon if values are listed, else by a comma.
		separator := ","
		if strings.Contains(row[2], ":") {
			separator = ";"
		}
		for part := range strings.SplitSeq(row[2], separator) {
			if m := label.FindStringSubmatch(part); m != nil {
				all[row[1]] = append(all[row[1]], m[1])
			}
		}
		slices.Sort(all[row[1]])
	}
	if len(all) < 7 {
		t.Fatalf("docs/pullgate-policyd.md has %d metrics; this test looks in the wrong place", len(all))
	}
	return all
}

func reviews(t *testing.T, h *node.Webhook) {
	t.Helper()
	const pod = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u",
		"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},
		"namespace":"default","operation":"CREATE","userInfo":{},"object":{"apiVersion":"v1","kind":"Pod",
		"metadata":{"name":"p","namespace":"default"},"spec":{"containers":[{"name":"c","image":"app:1"}]}}}}`
	for path, body := range map[string]string{
		"/imagereview": `{"kind":"ImageReview","apiVersion":"imagepolicy.k8s.io/v1alpha1","metadata":{},
			"spec":{"containers":[{"image":"app:1"}],"namespace":"default"},"status":{"allowed":false}}`,
		"/admission/validate": pod,
		"/admission/mutate":   pod,
	} {
		status, answer, err := h.Post(t.Context(), path, strings.NewReader(body))
		if err != nil || status != http.StatusOK || !strings.Contains(answer, `"allowed":true`) {
			t.Fatalf("POST %s: %d %s, %v; want it allowed", path, status, answer, err)
		}
	}
}

// labelsOf returns the labels of all metrics of pullgate, without le of histograms.
func labelsOf(t *testing.T, p *node.Webhook) map[string][]string {
	t.Helper()
	page := testkit.Value(p.Scrape())(t)
	all := map[string][]string{}
	series := regexp.MustCompile(`^(pullgate_[a-z_]+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? `)
	for line := range strings.Lines(page) {
		m := series.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		var labels []string
		for _, l := range regexp.MustCompile(`([a-z]+)="`).FindAllStringSubmatch(m[2], -1) {
			if l[1] != "le" {
				labels = append(labels, l[1])
			}
		}
		slices.Sort(labels)
		all[m[1]] = labels
	}
	return all
}
