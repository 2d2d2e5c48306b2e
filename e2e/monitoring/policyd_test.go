package monitoring_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/certtest"
	"github.com/pullgate/pullgate/pkg/criproxy/criproxytest"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// The page of pullgate-policyd lists every metric of a real scrape with its labels, and no other.
func TestPolicydPageIsARealScrape(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := startPolicyd(ctx, t, criproxytest.SocketDir(t), policies(t))
	scraped := p.scrape(ctx, t)
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
	for _, row := range regexp.MustCompile("(?m)^\\| `(pullgate_policyd_[a-z_]+)` \\| ([^|]*)\\|").FindAllStringSubmatch(read(t, "pullgate-policyd.md"), -1) {
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

// A policyd is a pullgate-policyd that serves the webhook.
type policyd struct {
	*node.Policyd
	https  string
	client *http.Client
}

func startPolicyd(ctx context.Context, t *testing.T, dir, policies string) policyd {
	t.Helper()
	authority, err := certtest.New("authority of the webhook")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pkix.Name{CommonName: "webhook"}, time.Now().Add(90*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	files := t.TempDir()
	for name, content := range map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key} {
		if err := os.WriteFile(filepath.Join(files, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port, err := host.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	p := policyd{https: fmt.Sprintf("127.0.0.1:%d", port)}
	p.Policyd, err = node.StartPolicyd(ctx, dir, policies,
		fmt.Sprintf("https: {listen: %q, certFile: %s/tls.crt, keyFile: %s/tls.key}", p.https, files, files))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	p.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Pool()}}}
	t.Cleanup(p.client.CloseIdleConnections)
	return p
}

// reviews makes a request to each path of the HTTPS server.
func (p policyd) reviews(ctx context.Context, t *testing.T) {
	t.Helper()
	for path, body := range map[string]string{
		"/imagereview": `{"kind":"ImageReview","apiVersion":"imagepolicy.k8s.io/v1alpha1","metadata":{},"spec":{"containers":[{"image":"app:1"}],"namespace":"default"},"status":{"allowed":false}}`,
		"/admission/validate": `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","kind":{"group":"","version":"v1","kind":"Pod"},` +
			`"resource":{"group":"","version":"v1","resource":"pods"},"namespace":"default","operation":"CREATE","userInfo":{},` +
			`"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default"},"spec":{"containers":[{"name":"c","image":"app:1"}]}}}}`,
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+p.https+path, bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := p.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // all was read
		if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte(`"allowed":true`)) {
			t.Fatalf("POST %s = %s, %v: %s; want it allowed", path, resp.Status, err, answer)
		}
	}
}

// scrape returns the labels of all metrics of pullgate, without le of histograms.
func (p policyd) scrape(ctx context.Context, t *testing.T) map[string][]string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.MetricsAddress()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // all was read
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	series := regexp.MustCompile(`^(pullgate_[a-z_]+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? `)
	for line := range strings.Lines(string(page)) {
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
