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
	"time"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// whole returns a Decision with a value in every field.
func whole() decisionlog.Decision {
	return decisionlog.Decision{
		Call: "PullImage", Pod: tracker.Pod{UID: "u", Namespace: "ns", Name: "n", Static: true}, Image: "repo.test/a:1",
		Repository: "repo.test/a",
		Verdict: tracker.Verdict{
			Decision: policy.Decision{Verdict: policy.Allow, Reason: policy.Proved}, Credential: "c",
			Pair: records.Pair{ImageID: "sha256:1", Repository: "repo.test/a"}, Access: "a", AccessAudit: "b",
		},
		Secret:     records.SecretRef{Namespace: "ns", Name: "s"},
		PullPolicy: "Always", Outcome: "verified", Took: 1500 * time.Millisecond, Shadow: true,
		Container: "web",
		Admission: admission.Decision{Answer: admission.Deny, PolicyHash: "h", Findings: []admission.Finding{
			{
				Validator: "review", Policy: "scanner", Answer: admission.Admit, FailedOpen: true,
				AuditAnnotations: map[string]string{"ticket": "<T-7>"},
			},
			{
				Validator: "endorsement", Policy: "q", Answer: admission.Admit, Signers: []string{"key sha256:1"},
				Digest: "sha256:2",
			},
			{
				Validator: "restriction", Policy: "p", Rule: "spec", Answer: admission.Deny, Reason: admission.RestrictionViolated,
				Message: "a sentence",
			},
		}},
	}
}

// kinds returns the kind of every field of an object by its path. The keys in auditAnnotations are those of a backend.
func kinds(prefix string, object map[string]any) map[string]string {
	found := map[string]string{}
	for name, v := range object {
		switch v := v.(type) {
		case float64:
			found[prefix+name] = "number"
		case string:
			found[prefix+name] = "string"
		case bool:
			found[prefix+name] = "bool"
		case map[string]any:
			found[prefix+name] = "object"
			if name != "auditAnnotations" {
				maps.Copy(found, kinds(prefix+name+".", v))
			}
		case []any:
			found[prefix+name] = "array"
			for _, element := range v {
				element, _ := element.(map[string]any)
				maps.Copy(found, kinds(prefix+name+".", element))
			}
		}
	}
	return found
}

// everything returns the kinds of the fields of a line that has all of them.
func everything(t *testing.T) map[string]string {
	t.Helper()
	l := newLog(t, filepath.Join(t.TempDir(), "decisions.log"))
	for range decisionlog.QueueLimit {
		l.Record(decisionlog.Decision{})
	}
	l.Record(whole()) // dropped
	l.run()
	l.settled()
	l.Record(whole())
	l.stop()
	lines := l.lines()
	return kinds("", lines[len(lines)-1])
}

// Shows: 000-36
func TestALineHasTheDecision(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.log")
	l := newLog(t, path)
	l.run()
	before := time.Now().UTC()
	l.Record(whole())
	l.Record(decisionlog.Decision{})
	d := whole()
	d.Image = "<a>&\n\xff\u2028" + strings.Repeat("é", 2000)
	l.Record(d)
	l.stop()
	text, err := os.ReadFile(path)
	must(t, err)
	first, rest, _ := strings.Cut(string(text), "\n")
	least, second, _ := strings.Cut(rest, "\n")
	timeless := regexp.MustCompile(`"time":"[^"]*"`).ReplaceAllString(least, `"time":"T"`)
	want := `{"v":1,"time":"T","call":"","image":"","verdict":"Reverify","pullPolicy":"","shadow":false,"took":0}`
	if timeless != want {
		t.Errorf("a line of which nothing is known\n%s\nwant\n%s", timeless, want)
	}
	at := regexp.MustCompile(`"time":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z)",`).FindStringSubmatch(first)
	if at == nil {
		t.Fatalf("%s: no time in RFC 3339 with nine digits", first)
	}
	if when, err := time.Parse(time.RFC3339Nano, at[1]); err != nil || when.Before(before.Add(-time.Second)) ||
		when.After(time.Now()) {
		t.Errorf("time %s, %v; want now", at[1], err)
	}
	const whole = `{"v":1,"time":"T","call":"PullImage","pod":{"uid":"u","namespace":"ns","name":"n","static":true},` +
		`"image":"repo.test/a:1","imageID":"sha256:1",` +
		`"repository":"repo.test/a","verdict":"Allow","reason":"proved","credentialID":"c",` +
		`"secret":{"namespace":"ns","name":"s"},` +
		`"pullPolicy":"Always","outcome":"verified","shadow":true,"took":1.5,"container":"web","digest":"sha256:2",` +
		`"access":"a","accessAudit":"b","policyHash":"h","policies":[` +
		`{"validator":"restriction","policy":"p","rule":"spec","answer":"Deny","reason":"RESTRICTION_VIOLATED",` +
		`"audit":false,"failedOpen":false},` +
		`{"validator":"review","policy":"scanner","answer":"Admit","audit":false,"failedOpen":true,` +
		`"auditAnnotations":{"ticket":"<T-7>"}},{"validator":"endorsement",` +
		`"policy":"q","answer":"Admit","audit":false,"failedOpen":false,"signers":["key sha256:1"]}]}`
	if got := strings.Replace(first, at[1], "T", 1); got != whole {
		t.Errorf("line\n%s\nwant\n%s", got, whole)
	}
	// A name from a tenant stays within its line, and is cut between two characters.
	var odd map[string]any
	must(t, json.Unmarshal([]byte(second), &odd))
	image, _ := odd["image"].(string)
	if n := strings.Count(second, "\n"); n != 1 || !strings.HasPrefix(image, "<a>&\n") ||
		!strings.HasSuffix(image, "é") || len(image) > 1024 {
		t.Errorf("%d lines, image %q; want one line and at most 1024 bytes", n, image)
	}
}

// A tenant decides how many images a container mounts.
func TestALineHasTheFindingsThatMatter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.log")
	l := newLog(t, path)
	l.run()
	for _, last := range []admission.Finding{
		{Validator: "review", Policy: "last", Answer: admission.Admit, FailedOpen: true},
		{Validator: "review", Policy: "last", Answer: admission.Deny},
	} {
		d := whole()
		d.Admission.Answer, d.Admission.Findings = last.Answer, nil
		for range 300 {
			d.Admission.Findings = append(d.Admission.Findings,
				admission.Finding{Validator: "review", Answer: admission.Admit, FailedOpen: last.Answer == admission.Deny})
		}
		d.Admission.Findings = append(d.Admission.Findings, last)
		l.Record(d)
	}
	l.stop()
	text, err := os.ReadFile(path)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, `"policies":[{"validator":"review","policy":"last"`) {
			t.Errorf("%.600s; want the finding of the policy last first", line)
		}
	}
}

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
	fields := everything(t)
	maps.DeleteFunc(fields, func(name, kind string) bool {
		return kind == "object" && name != "policies.auditAnnotations"
	})
	want := slices.Sorted(maps.Keys(fields))
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("docs/decision-log.md has the fields\n%v\nwant those of a line\n%v", got, want)
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
	fields := everything(t)
	for name, kind := range kinds("", line) {
		if fields[name] != kind {
			t.Errorf("%s is of kind %s in the line of the manual; want %q", name, kind, fields[name])
		}
	}
	for _, name := range []string{"v", "time", "call", "image", "verdict", "pullPolicy", "shadow", "took"} {
		if _, ok := line[name]; !ok {
			t.Errorf("the line of the manual lacks %s", name)
		}
	}
}

// program returns the jq program of the manual.
func program(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`(?s)jq -Rr --arg repository registry\.example/team-a/app '([^']*)' ` +
		`/var/log/pullgate/decisions\.log`).FindStringSubmatch(manual(t))
	if m == nil {
		t.Fatal("docs/decision-log.md has no jq program that asks who used an image")
	}
	return m[1]
}

func TestManualsQueryNamesFieldsThatExist(t *testing.T) {
	fields := everything(t)
	named := regexp.MustCompile(`\.([a-zA-Z]+(?:\.[a-zA-Z]+)?)\b`).FindAllStringSubmatch(program(t), -1)
	for _, m := range named {
		if kind, ok := fields[m[1]]; !ok || kind == "object" {
			t.Errorf("the query asks for .%s; the fields are %v", m[1], slices.Sorted(maps.Keys(fields)))
		}
	}
	if len(named) < 8 {
		t.Errorf("the query asks for %v; want some more", named)
	}
}

// The query of the manual, run by jq.
func TestManualsQueryFindsThePodsThatUsedAnImage(t *testing.T) {
	const repository = "registry.example/team-a/app"
	decided := func(pod, repository string, verdict policy.Verdict, outcome string, shadow bool) decisionlog.Decision {
		d := decisionlog.Decision{
			Call: "PullImage", Image: repository + ":1", Repository: repository, Outcome: outcome, Shadow: shadow,
		}
		d.Verdict.Verdict = verdict
		if pod != "" {
			d.Pod = tracker.Pod{UID: pod, Namespace: "ns", Name: pod}
		}
		return d
	}
	l := newLog(t, filepath.Join(t.TempDir(), "decisions.log"))
	for _, d := range []decisionlog.Decision{
		decided("proved", repository, policy.Allow, "", false), decided("refused", repository, policy.Reverify, "", false),
		decided("pulled", repository, policy.Allow, "verified", false),
		decided("denied", repository, policy.Reverify, "denied", false),
		decided("other", repository+"/b", policy.Allow, "", false), decided("", repository, policy.Allow, "verified", false),
		decided("shadowed", repository, policy.Reverify, "", true),
		decided("broken", repository, policy.Reverify, "error", true),
	} {
		l.Record(d)
	}
	l.run()
	l.stop()
	want := []string{"proved", "pulled", "", "shadowed"}
	jq, err := exec.LookPath("jq")
	if err != nil {
		t.Skip("no jq on this machine")
	}
	must(t, appendTo(l.path, "{\"v\":1,\"torn\n"))
	out, err := exec.CommandContext(t.Context(), jq, "-Rr", "--arg", "repository", repository, program(t),
		l.path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var got []string
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
