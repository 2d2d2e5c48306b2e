package decisionlog_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// manual returns docs/decision-log.md.
func manual(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../../docs/decision-log.md")
	must(t, err)
	return string(data)
}

func TestManualHasEveryField(t *testing.T) {
	var got []string
	_, table, _ := strings.Cut(manual(t), "\n## Fields\n")
	for line := range strings.Lines(table) {
		if names, _, ok := strings.Cut(line[min(1, len(line)):], "|"); ok && strings.HasPrefix(line, "| `") {
			for _, m := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(names, -1) {
				got = append(got, m[1])
			}
		}
	}
	var want []string
	for name, d := range drawing(t) {
		if d.Kind != "object" || name == "policies.auditAnnotations" { // which has no fields of its own
			want = append(want, name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("docs/decision-log.md has the fields\n%v\nwant those of the drawing in doc.go\n%v", got, want)
	}
}

// The line that the manual shows has only fields that exist, of their kind, and all that are always there.
func TestManualsLineIsOne(t *testing.T) {
	m := regexp.MustCompile("(?s)```json\n(.*?)```").FindStringSubmatch(manual(t))
	if m == nil {
		t.Fatal("docs/decision-log.md shows no line")
	}
	var line map[string]any
	must(t, json.Unmarshal([]byte(m[1]), &line))
	shown := kinds("", line)
	for name, d := range drawing(t) {
		kind, ok := shown[name]
		if ok && kind != d.Kind || !ok && d.Presence == "always" && !strings.Contains(name, ".") {
			t.Errorf("%s is %q in the line; want %s, %s", name, kind, d.Kind, d.Presence)
		}
		delete(shown, name)
	}
	for name := range shown {
		t.Errorf("the line has %s, which is no field", name)
	}
}

// program returns the jq program of the manual.
func program(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?s)jq -Rr --arg repository registry\.example/team-a/app '([^']*)' /var/log/pullgate/decisions\.log`).FindStringSubmatch(manual(t))
	if m == nil {
		t.Fatal("docs/decision-log.md has no jq program that asks who used an image")
	}
	return m[1]
}

func TestManualsQueryNamesFieldsThatExist(t *testing.T) {
	fields := drawing(t)
	named := regexp.MustCompile(`\.([a-zA-Z]+(?:\.[a-zA-Z]+)?)\b`).FindAllStringSubmatch(program(t), -1)
	for _, m := range named {
		if d, ok := fields[m[1]]; !ok || d.Kind == "object" {
			t.Errorf("the query asks for .%s; the fields are %v", m[1], slices.Sorted(maps.Keys(fields)))
		}
	}
	if len(named) < 8 {
		t.Errorf("the query asks for %v; want some more", named)
	}
}

// The query of the manual, implemented in Go, and also run by jq if it is installed.
func TestManualsQueryFindsThePodsThatUsedAnImage(t *testing.T) {
	const repository = "registry.example/team-a/app"
	decided := func(pod, repository string, verdict policy.Verdict, outcome string, shadow bool) decisionlog.Decision {
		d := decisionlog.Decision{Call: "PullImage", Image: repository + ":1", Repository: repository, Outcome: outcome, Shadow: shadow}
		d.Verdict.Verdict = verdict
		if pod != "" {
			d.Pod = tracker.Pod{UID: pod, Namespace: "ns", Name: pod}
		}
		return d
	}
	l := newLog(t, filepath.Join(t.TempDir(), "decisions.log"))
	for _, d := range []decisionlog.Decision{
		decided("proved", repository, policy.Allow, "", false),
		decided("refused", repository, policy.Reverify, "", false),
		decided("pulled", repository, policy.Allow, "verified", false),
		decided("denied", repository, policy.Reverify, "denied", false),
		decided("other", repository+"/b", policy.Allow, "", false),
		decided("", repository, policy.Allow, "verified", false),
		decided("shadowed", repository, policy.Reverify, "", true),
		decided("broken", repository, policy.Reverify, "error", true),
	} {
		l.Record(d)
	}
	l.run()
	l.stop()
	want := []string{"proved", "pulled", "", "shadowed"}
	var got []string
	for _, line := range l.lines() {
		if line["v"] == 1.0 && line["repository"] == repository && (line["verdict"] == "Allow" || line["shadow"] == true && line["outcome"] == nil) {
			pod, _ := line["pod"].(map[string]any)
			name, _ := pod["name"].(string)
			got = append(got, name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the query in Go returns %q; want %q", got, want)
	}
	jq, err := exec.LookPath("jq")
	if err != nil {
		t.Skip("no jq on this machine")
	}
	must(t, appendTo(l.path, "{\"v\":1,\"torn\n"))
	out, err := exec.CommandContext(t.Context(), jq, "-Rr", "--arg", "repository", repository, program(t), l.path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got = nil
	for line := range bytes.Lines(out) {
		cells := strings.Split(string(line), "\t")
		if len(cells) != 8 {
			t.Fatalf("jq prints %q; want 8 cells a line", out)
		}
		got = append(got, cells[2])
	}
	if !slices.Equal(got, want) {
		t.Errorf("jq prints %q; want %q", got, want)
	}
}

func appendTo(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(old, text...), 0o600)
}
