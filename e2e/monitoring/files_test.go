// Package monitoring_test checks that the dashboard and the alert rules of docs/monitoring are consistent with each
// other, with the runbooks, and with the metrics that a real Prometheus scrapes from the built programs.
package monitoring_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/e2e/host"
)

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

type panel struct {
	Title   string
	Targets []struct{ RefID, Expr, LegendFormat string } // queries
}

func docs(t *testing.T, name string) string {
	t.Helper()
	return testkit.Value(host.Upward(filepath.Join("docs", name)))(t)
}

func read(t *testing.T, name string) string {
	t.Helper()
	text := testkit.Value(os.ReadFile(docs(t, name)))(t)
	return string(text)
}

func rules(t *testing.T) []rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	testkit.Must(t, yaml.UnmarshalStrict([]byte(read(t, "monitoring/alerts.yml")), &file))
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("no rules in docs/monitoring/alerts.yml")
	}
	return all
}

func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct{ Panels []panel }
	testkit.Must(t, json.Unmarshal([]byte(read(t, "monitoring/dashboard.json")), &dashboard))
	return dashboard.Panels
}

// Every alert has a severity, a description and an existing runbook.
func TestEveryAlertHasARunbook(t *testing.T) {
	sections := map[string]string{}
	for _, s := range strings.Split(read(t, "runbooks.md"), "\n## ")[1:] {
		title, text, _ := strings.Cut(s, "\n")
		sections[title] = text
	}
	const home = "https://github.com/pullgate/pullgate/blob/main/docs/runbooks.md#"
	for _, r := range rules(t) {
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q; want critical or warning", r.Alert, s)
		}
		for _, a := range []string{"summary", "description"} {
			if r.Annotations[a] == "" {
				t.Errorf("%s has no %s", r.Alert, a)
			}
		}
		if got, want := r.Annotations["runbook_url"], home+strings.ToLower(r.Alert); got != want {
			t.Errorf("%s: runbook_url %q; want %q", r.Alert, got, want)
		}
		if sections[r.Alert] == "" {
			t.Errorf("docs/runbooks.md has no section %s", r.Alert)
		}
		delete(sections, r.Alert)
	}
	for title := range sections {
		if strings.HasPrefix(title, "Pullgate") {
			t.Errorf("docs/runbooks.md: %s is not an alert", title)
		}
	}
}

// Every alert has a case in which it fires and one in which it does not.
func TestEveryAlertIsTestedBothWays(t *testing.T) {
	var file struct {
		Tests []struct {
			Cases []struct {
				Alertname string `json:"alertname"`
				Alerts    []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	testkit.Must(t, yaml.Unmarshal([]byte(read(t, "monitoring/alerts_test.yml")), &file))
	fires, notFiring := map[string]int{}, map[string]int{}
	for _, test := range file.Tests {
		for _, c := range test.Cases {
			if len(c.Alerts) > 0 {
				fires[c.Alertname]++
			} else {
				notFiring[c.Alertname]++
			}
		}
	}
	for _, r := range rules(t) {
		if fires[r.Alert] == 0 || notFiring[r.Alert] == 0 {
			t.Errorf("%s has %d cases in which it fires and %d in which it does not; want some of both",
				r.Alert, fires[r.Alert], notFiring[r.Alert])
		}
	}
}

// What the panels have to show.
func TestDashboardShows(t *testing.T) {
	var all strings.Builder
	for _, p := range panels(t) {
		for _, q := range p.Targets {
			all.WriteString(q.Expr + "\n")
		}
	}
	own := regexp.MustCompile("(?m)^### `((?:pullgate|image_pull)_[a-z_]+)`$")
	names := own.FindAllStringSubmatch(read(t, "metrics.md"), -1)
	if len(names) < 15 {
		t.Fatalf("docs/metrics.md has %d metrics; this test looks in the wrong place", len(names))
	}
	var documented []string
	for _, m := range names {
		documented = append(documented, m[1])
	}
	for name := range policydMetrics(t) {
		documented = append(documented, name)
	}
	for _, name := range documented {
		if !strings.Contains(all.String(), name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}

type written struct{ page, expr string }

var (
	codeSpan  = regexp.MustCompile("`([^`]+)`") // a line may end in it
	codeBlock = regexp.MustCompile("(?s)```[a-z]*\n(.*?)```")
	codeLine  = regexp.MustCompile(`(?m)^ {4,}(.+)$`)
	// A query selects from a metric, has it as an argument, or compares it. Other code has only its name.
	queryLike = regexp.MustCompile(
		`^[a-z_0-9., ()]*(image_pull_secret|pullgate|kubelet_imagemanager)_[a-z_]+ *[{[)<>=!].*$`)
)

// queriesOfDocs returns what README.md and the pages of docs have as code and selects from a metric.
func queriesOfDocs(t *testing.T) (all []written) {
	t.Helper()
	root := filepath.Dir(filepath.Dir(docs(t, "metrics.md")))
	pages := []string{filepath.Join(root, "README.md")}
	for _, folder := range []string{"docs", "docs/monitoring"} {
		found := testkit.Value(filepath.Glob(filepath.Join(root, folder, "*.md")))(t)
		pages = append(pages, found...)
	}
	for _, page := range pages {
		text := testkit.Value(os.ReadFile(page))(t)
		all = append(all, queriesOf(filepath.Base(page), string(text))...)
	}
	return all
}

func queriesOf(page, text string) (all []written) {
	code := codeLine.FindAllStringSubmatch(text, -1)
	for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
		for line := range strings.Lines(block[1]) {
			code = append(code, []string{"", line})
		}
	}
	code = append(code, codeSpan.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1)...)
	for _, m := range code {
		if expr := strings.Join(strings.Fields(m[1]), " "); queryLike.MatchString(expr) {
			all = append(all, written{page, expr})
		}
	}
	return all
}
