package decisionlog_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// whole returns a Decision with a value in every field.
func whole() decisionlog.Decision {
	return decisionlog.Decision{
		Call: "PullImage", Pod: tracker.Pod{UID: "u", Namespace: "ns", Name: "n", Static: true}, Image: "repo.test/a:1", Repository: "repo.test/a",
		Verdict: tracker.Verdict{
			Decision: policy.Decision{Verdict: policy.Allow, Reason: policy.Proved}, Credential: "c",
			Pair: records.Pair{ImageID: "sha256:1", Repository: "repo.test/a"},
		},
		Secret:     records.SecretRef{Namespace: "ns", Name: "s"},
		PullPolicy: "Always", Outcome: "verified", Took: 1500 * time.Millisecond, Shadow: true,
		Container: "web",
		Admission: admission.Decision{Answer: admission.Deny, PolicyHash: "h", Findings: []admission.Finding{
			{Validator: "review", Policy: "scanner", Answer: admission.Admit, FailedOpen: true, AuditAnnotations: map[string]string{"ticket": "<T-7>"}},
			{Validator: "endorsement", Policy: "q", Answer: admission.Admit, Signers: []string{"key sha256:1"}, Digest: "sha256:2"},
			{Validator: "restriction", Policy: "p", Rule: "spec", Answer: admission.Deny, Reason: admission.RestrictionViolated, Message: "a sentence"},
		}},
	}
}

// A drawn field is one line of the table in doc.go.
type drawn struct{ Kind, Presence string }

// drawing reads the table in doc.go: the fields of a line by their path.
func drawing(t *testing.T) map[string]drawn {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	must(t, err)
	fields, outer := map[string]drawn{}, ""
	for _, m := range regexp.MustCompile(`(?m)^//\t( *)([a-zA-Z]+) +(number|string|object|array|bool) +(always|if [a-z ]+?)(?:   *.*)?$`).FindAllStringSubmatch(string(text), -1) {
		path := m[2]
		if m[1] != "" {
			path = outer + "." + m[2]
		} else {
			outer = m[2]
		}
		fields[path] = drawn{m[3], m[4]}
	}
	if rows := strings.Count(string(text), "\n//\t"); rows != len(fields) {
		t.Fatalf("%d rows of the drawing in doc.go are read; it has %d", len(fields), rows)
	}
	return fields
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

func TestLinesMatchTheSchema(t *testing.T) {
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
	least, most := map[string]string{}, map[string]string{}
	for name, d := range drawing(t) {
		most[name] = d.Kind
		if d.Presence == "always" && !strings.Contains(name, ".") {
			least[name] = d.Kind
		}
	}
	if diff := cmp.Diff(least, kinds("", lines[0])); diff != "" {
		t.Errorf("a line of which nothing is known (-drawing +line):\n%s", diff)
	}
	if diff := cmp.Diff(most, kinds("", lines[len(lines)-1])); diff != "" {
		t.Errorf("a line with everything (-drawing +line):\n%s", diff)
	}
}

func TestALineHasTheDecision(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.log")
	l := newLog(t, path)
	l.run()
	before := time.Now().UTC()
	l.Record(whole())
	d := whole()
	d.Image = "<a>&\n\xff\u2028" + strings.Repeat("é", 2000)
	l.Record(d)
	l.stop()
	text, err := os.ReadFile(path)
	must(t, err)
	first, second, _ := strings.Cut(string(text), "\n")
	at := regexp.MustCompile(`"time":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z)",`).FindStringSubmatch(first)
	if at == nil {
		t.Fatalf("%s: no time in RFC 3339 with nine digits", first)
	}
	if when, err := time.Parse(time.RFC3339Nano, at[1]); err != nil || when.Before(before.Add(-time.Second)) || when.After(time.Now()) {
		t.Errorf("time %s, %v; want now", at[1], err)
	}
	const want = `{"v":1,"time":"T","call":"PullImage","pod":{"uid":"u","namespace":"ns","name":"n","static":true},"image":"repo.test/a:1","imageID":"sha256:1",` +
		`"repository":"repo.test/a","verdict":"Allow","reason":"proved","credentialID":"c","secret":{"namespace":"ns","name":"s"},` +
		`"pullPolicy":"Always","outcome":"verified","shadow":true,"took":1.5,"container":"web","digest":"sha256:2","policyHash":"h","policies":[` +
		`{"validator":"restriction","policy":"p","rule":"spec","answer":"Deny","reason":"RESTRICTION_VIOLATED","audit":false,"failedOpen":false},` +
		`{"validator":"review","policy":"scanner","answer":"Admit","audit":false,"failedOpen":true,"auditAnnotations":{"ticket":"<T-7>"}},{"validator":"endorsement","policy":"q","answer":"Admit","audit":false,"failedOpen":false,"signers":["key sha256:1"]}]}`
	if got := strings.Replace(first, at[1], "T", 1); got != want {
		t.Errorf("line\n%s\nwant\n%s", got, want)
	}
	// A name from a tenant stays within its line, and is cut between two characters.
	var odd map[string]any
	must(t, json.Unmarshal([]byte(second), &odd))
	image, _ := odd["image"].(string)
	if n := strings.Count(second, "\n"); n != 1 || !strings.HasPrefix(image, "<a>&\n") || !strings.HasSuffix(image, "é") || len(image) > 1024 {
		t.Errorf("%d lines, image %q; want one line and at most 1024 bytes", n, image)
	}
}

// A tenant decides how many images a container mounts.
func TestALineHasTheFindingsThatMatter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.log")
	l := newLog(t, path)
	l.run()
	for _, last := range []admission.Finding{
		{Validator: "review", Policy: "last", Answer: admission.Admit, FailedOpen: true}, {Validator: "review", Policy: "last", Answer: admission.Deny},
	} {
		d := whole()
		d.Admission.Answer, d.Admission.Findings = last.Answer, nil
		for range 300 {
			d.Admission.Findings = append(d.Admission.Findings, admission.Finding{Validator: "review", Answer: admission.Admit, FailedOpen: last.Answer == admission.Deny})
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
