package monitoring_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
)

// counted matches what a query counts: a metric and its selector.
var counted = regexp.MustCompile(`(?:increase|rate)\(([a-z_]+)((?:\{[^}]*\})?)\[`)

// never are label values without series: a pre-check is hidden and not denied, and only image reviews can fail open.
var never = []string{
	`pullgate_denials_total call="ImageStatus"`,
	`pullgate_admission_failed_open_total validator="restriction"`,
	`pullgate_admission_failed_open_total validator="endorsement"`,
}

// Every series that a query of a page, an alert rule or the dashboard counts exists before its first event, so that the
// query sees that event: each documented value of each label has a series, events make no other series, and promtool
// has an increase for each. Calls are left out: the first of them come with the kubelet, and most pairs of method and
// code never occur.
func TestQueriesCountTheFirstEvent(t *testing.T) {
	work := busyDaemon(t)
	before := work.series(t)
	work.calls(t)
	after := work.series(t)

	all := queriesOfDocs(t)
	pages := len(all)
	for _, r := range rules(t) {
		all = append(all, written{r.Alert, r.Expr})
	}
	for _, p := range panels(t) {
		for _, q := range p.Targets {
			all = append(all, written{p.Title, strings.NewReplacer("$__rate_interval", "1h", "$instance", ".*").Replace(q.Expr)})
		}
	}
	values, tests, tested := labelValues(t), "", map[string]bool{}
	for i, q := range all {
		for _, m := range counted.FindAllStringSubmatch(q.expr, -1) {
			name := m[1]
			if strings.HasPrefix(name, "pullgate_forwarded_calls") || strings.HasPrefix(name, "pullgate_call_duration") {
				continue
			}
			input := ""
			for series, value := range after {
				if base, _, _ := strings.Cut(series, "{"); base != name {
					continue
				}
				start, known := before[series]
				if !known {
					t.Errorf("%s: %s appears with its first event", q.page, series)
				}
				input += fmt.Sprintf("  - {series: '%s', values: '%gx5 %gx5'}\n", series, start, max(value, start+1))
			}
			for _, value := range values[regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")] {
				if !strings.Contains(input, value) && !slices.Contains(never, name+" "+value) {
					t.Errorf("%s: %s has no series with %s before the first event", q.page, name, value)
				}
			}
			exprs := []string{fmt.Sprintf("count(increase(%s[1h]) > 0) == bool count(%[1]s)", name+m[2])}
			if i < pages {
				exprs = append(exprs, "count(("+q.expr+") > 0) > bool 0")
			}
			for _, expr := range exprs {
				if !tested[expr] {
					tests += fmt.Sprintf("- interval: 1m\n  name: %q\n  input_series:\n%s  promql_expr_test:\n"+
						"  - {expr: %q, eval_time: 10m, exp_samples: [{labels: '{}', value: 1}]}\n", q.page, input, expr)
				}
				tested[expr] = true
			}
		}
	}
	if len(tested) < 20 {
		t.Errorf("%d queries that count were found; this test looks in the wrong place", len(tested))
	}
	path := filepath.Join(t.TempDir(), "first-event.yml")
	testkit.Must(t, os.WriteFile(path, []byte("tests:\n"+tests), 0o600))
	if out, err := exec.CommandContext(t.Context(), "promtool", "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

func (w workload) series(t *testing.T) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, scrape := range []func() (string, error){w.gate.Scrape, w.policyd.Scrape} {
		page := testkit.Value(scrape())(t)
		for line := range strings.Lines(page) {
			if series, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && series != "#" {
				all[series], _ = strconv.ParseFloat(value, 64)
			}
		}
	}
	return all
}

// labelValues returns the label values of each metric in docs/metrics.md as selectors, without "other".
func labelValues(t *testing.T) map[string][]string {
	t.Helper()
	metrics, labels, _ := strings.Cut(read(t, "metrics.md"), "\n## Labels\n")
	quoted := regexp.MustCompile("`([^`]+)`")
	values := map[string][]string{} // by anchor
	for _, section := range strings.Split(labels, "\n### ")[1:] {
		title, rest, _ := strings.Cut(section, "\n")
		anchor := strings.ReplaceAll(strings.ReplaceAll(title, "`", ""), " ", "-")
		for line := range strings.Lines(rest) {
			named, _, _ := strings.Cut(strings.TrimSpace(line), ": ")
			for _, m := range quoted.FindAllStringSubmatch(named, -1) {
				if strings.HasPrefix(line, "- ") && m[1] != "other" {
					values[anchor] = append(values[anchor], fmt.Sprintf("%s=%q", quoted.FindStringSubmatch(title)[1], m[1]))
				}
			}
		}
	}
	all := map[string][]string{}
	for _, section := range strings.Split(metrics, "\n### ")[1:] {
		title, rest, _ := strings.Cut(section, "\n")
		row, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
		for _, m := range regexp.MustCompile(`\]\(#([^)]+)\)`).FindAllStringSubmatch(row, -1) {
			all[strings.Trim(title, "`")] = slices.Concat(all[strings.Trim(title, "`")], values[m[1]])
		}
	}
	if len(all) < 10 {
		t.Fatalf("docs/metrics.md has %d metrics with labels; this test looks in the wrong place", len(all))
	}
	return all
}
