package policyfiles_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A dialect is the function Load of a dialect.
type dialect func(files []policyfiles.File, now time.Time) (*requirement.Policies, error)

// now is a time at which the certificates of testdata are valid.
func now() time.Time { return time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC) }

// loadDialect reads files with the names a.yaml, b.yaml, …
func (r dialect) Load(texts ...string) (*requirement.Policies, error) {
	var files []policyfiles.File
	for i, text := range texts {
		files = append(files, policyfiles.File{Name: fmt.Sprintf("%c.yaml", 'a'+i), Data: []byte(text)})
	}
	return r(files, now())
}

// Valid reads files, and fails the test if one is invalid.
func (r dialect) Valid(t *testing.T, texts ...string) *requirement.Policies {
	t.Helper()
	p, err := r.Load(texts...)
	if err != nil {
		t.Fatalf("%v; files:\n%s", err, strings.Join(texts, "\n"))
	}
	return p
}

// Errors checks that each line of the error about a file has one of the texts, in their order, and that none has a
// value that may be secret.
func (r dialect) Errors(t *testing.T, file string, texts []string) {
	t.Helper()
	p, err := r.Load(file)
	if err == nil {
		t.Fatalf("Load = %s; want errors with %q", describePolicies(p), texts)
	}
	if strings.Contains(err.Error(), "secret-") || strings.Contains(err.Error(), ":secret@") {
		t.Errorf("the error has a part of a value that may be secret: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	for i, want := range texts {
		if len(lines) != len(texts) || !strings.HasPrefix(lines[i], "a.yaml: ") || !strings.Contains(lines[i], want) {
			t.Fatalf("Load reports\n%v\nwant %q", err, texts)
		}
	}
}

// Example checks that the example of the manual that has a text is one rule without notes.
func (r dialect) Example(t *testing.T, has string) {
	t.Helper()
	p, err := r.Load(example(t, has))
	if err != nil || len(p.Rules) != 1 || len(p.Notes) > 0 {
		t.Errorf("Load = %+v, %v; want one rule without notes", p, err)
	}
}

// Fuzz reads files, first some small ones: files of testdata are large, and the fuzzer would spend its time on making
// them smaller. check is called with each rule of a valid file.
func (r dialect) Fuzz(f *testing.F, check func(*testing.T, requirement.Rule), texts ...string) {
	f.Helper()
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := r.Load(string(data))
		if (p == nil) == (err == nil) || err != nil && !strings.HasPrefix(err.Error(), "a.yaml: ") {
			t.Fatalf("Load = %v, %v; want one of them, and the name of the file", p, err)
		}
		if err != nil {
			return
		}
		for _, rule := range requirement.NewSet("", p).Rules() {
			check(t, rule)
		}
	})
}

// pemText returns the content of files of testdata as one YAML string.
func pemText(t *testing.T, names ...string) string {
	t.Helper()
	var all strings.Builder
	for _, name := range names {
		all.WriteString(readFile(t, "testdata/"+name))
	}
	return `"` + strings.ReplaceAll(all.String(), "\n", `\n`) + `"`
}
