package policyfiles_test

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A dialect is the function Load of a dialect.
type dialect func(files []policyfiles.File, now time.Time) (*requirement.Policies, error)

var cip, kyverno dialect = policyfiles.LoadCIP, policyfiles.LoadKyverno

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

// Errors checks the errors of the files in a golden file, and that none has a value that may be secret.
func (r dialect) Errors(t *testing.T, name, header string) {
	t.Helper()
	refusals(t, name, func(text string) error {
		text = strings.ReplaceAll(text, "<stars>", strings.Repeat("*", 2049))
		for _, file := range []string{"a.pub", "b.pub", "root.crt", "leaf.crt", "rsa-1024.pub"} {
			text = strings.ReplaceAll(text, "<"+file+">", strings.Trim(pemText(t, file), `"`))
		}
		if strings.HasPrefix(text, "spec:") {
			text = header + text
		}
		_, err := r.Load(text)
		if err != nil && (strings.Contains(err.Error(), "secret-") || strings.Contains(err.Error(), ":secret@")) {
			t.Errorf("the error has a part of a value that may be secret: %v", err)
		}
		return err
	})
}

// refusals checks a golden file of invalid files: a line with the name of each, its text, and its errors. UPDATE=1
// rewrites the errors.
func refusals(t *testing.T, golden string, load func(text string) error) {
	t.Helper()
	var all strings.Builder
	for _, section := range strings.Split(readFile(t, golden), "=== ")[1:] {
		section, _, _ = strings.Cut(section, ">>> ")
		name, text, _ := strings.Cut(section, "\n")
		err := load(text)
		if err == nil {
			t.Errorf("%s: want an error; file:\n%s", name, text)
			continue
		}
		errs := strings.ReplaceAll(strings.ReplaceAll(err.Error(), "a.yaml: ", ""), "\n", "\n>>> ")
		fmt.Fprintf(&all, "=== %s>>> %s\n", section, errs)
	}
	compare(t, golden, all.String())
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
		for _, rule := range slices.Concat(requirement.NewSet("", p).Rules(), requirement.NewCustomSet("", p).Rules()) {
			check(t, rule)
		}
	})
}

// pemText returns the content of files of testdata as one YAML string.
func pemText(t *testing.T, names ...string) string {
	t.Helper()
	all := ""
	for _, name := range names {
		all += readFile(t, "testdata/"+name)
	}
	return `"` + strings.ReplaceAll(all, "\n", `\n`) + `"`
}

// readFile returns the content of a file.
func readFile(tb testing.TB, name string) string {
	tb.Helper()
	data, err := os.ReadFile(name)
	must(tb, err)
	return string(data)
}

// compare compares a text with a file. UPDATE=1 rewrites it.
func compare(t *testing.T, name, got string) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile(name, []byte(got), 0o600))
	}
	testkit.Equal(t, name, got, readFile(t, name))
}

// describePolicies returns policies as text: rules, the hashes of what they require, and notes.
func describePolicies(p *requirement.Policies) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d policies\n", p.Count)
	for _, r := range slices.Concat(requirement.NewSet("root", p).Rules(), requirement.NewCustomSet("root", p).Rules()) {
		fmt.Fprintf(&out, "rule %s/%s of %s, %s\n", r.Policy, r.Name, r.Kind, r.Mode)
		fmt.Fprintf(&out, "  images %v, default %q, digest %v, pods only %v\n", r.Images, r.Default, r.RequireDigest,
			r.PodsOnly)
		if r.MutateDigest {
			fmt.Fprintf(&out, "  adds digests, fails closed %v\n", r.FailClosed)
		}
		if c := r.Custom; c == nil {
			fmt.Fprintf(&out, "  namespaces %v without %v\n", r.Scope.Include, r.Scope.Exclude)
		} else {
			fmt.Fprintf(&out, "  objects %v without %v\n  paths %v\n", c.Include, c.Exclude, c.Paths)
		}
		if r.Requirement == nil {
			continue
		}
		fmt.Fprintf(&out, "  %s %s\n", r.Hash, r.Requirement)
		for _, s := range r.Requirement.Signers() {
			describe(&out, s)
		}
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&out, "note %s\n", n)
	}
	return out.String()
}

func describe(out *strings.Builder, s *requirement.Signer) {
	fmt.Fprintf(out, "    %s\n", s)
	if s.Repository != "" {
		fmt.Fprintf(out, "      repository %s\n", s.Repository)
	}
	if s.Key != nil && s.Key.Hash != "sha256" {
		fmt.Fprintf(out, "      hash %s\n", s.Key.Hash)
	}
	if l := s.Log; l != nil {
		fmt.Fprintf(out, "      log %q with %d keys\n", l.URL, len(l.Keys))
	}
	if t := s.Timestamp; t != nil {
		fmt.Fprintf(out, "      timestamp with %d certificates\n", len(t.Chain))
	}
	if k := s.Keyless; k != nil {
		fmt.Fprintf(out, "      extensions %v, %d roots, ignore SCT %v, %d keys of certificate logs\n", k.Extensions,
			len(k.Roots), k.IgnoreSCT, len(k.CTLogKeys))
	}
}

const signaturesPage = "../../../docs/signatures.md"

// checkFields checks that the table of a section of the manual names each field below spec of a policy file, as
// parent.field, and no other one. document is the type of the file. If types of fields are used in several places, the
// first one counts.
func checkFields(t *testing.T, section string, document reflect.Type) {
	t.Helper()
	_, text, ok := strings.Cut(readFile(t, signaturesPage), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %s", signaturesPage, section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var documented []string
	for line := range strings.Lines(text) {
		if row, ok := strings.CutPrefix(line, "| "); ok {
			names, _, _ := strings.Cut(row, " | ")
			for _, m := range regexp.MustCompile("`([A-Za-z0-9-]+\\.[A-Za-z0-9-]+)`").FindAllStringSubmatch(names, -1) {
				documented = append(documented, m[1])
			}
		}
	}
	spec, _ := document.FieldByName("Spec")
	fields := fieldsOf("spec", spec.Type, map[reflect.Type]bool{})
	for _, f := range fields {
		if !slices.Contains(documented, f) {
			t.Errorf("section %s of %s does not have the field %s", section, signaturesPage, f)
		}
	}
	for i, f := range documented {
		if !slices.Contains(fields, f) || slices.Contains(documented[:i], f) {
			t.Errorf("section %s of %s has %s, which is not a field or there twice", section, signaturesPage, f)
		}
	}
}

func fieldsOf(parent string, of reflect.Type, seen map[reflect.Type]bool) (fields []string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || seen[of] {
		return nil
	}
	seen[of] = true
	for f := range of.Fields() {
		name := f.Tag.Get("json")
		if name == "" { // how a field was written
			continue
		}
		fields = append(fields, parent+"."+name)
		fields = append(fields, fieldsOf(name, f.Type, seen)...)
	}
	return fields
}

func TestDocumentedFields(t *testing.T) {
	checkFields(t, "Kyverno", reflect.TypeFor[policyfiles.KyvernoDocument]())
	checkFields(t, "Sigstore", reflect.TypeFor[policyfiles.CIPDocument]())
	checkFields(t, "ImageValidatingPolicy", reflect.TypeFor[policyfiles.IVPDocument]())
}

// The first example of each dialect in the manual is one rule without notes.
func TestDocumentedExamples(t *testing.T) {
	for has, dialect := range map[string]dialect{
		"kyverno.io/v1": kyverno, "policy.sigstore.dev/v1beta1": cip, "policies.kyverno.io/v1": ivp,
	} {
		found := 0
		for _, text := range strings.Split(readFile(t, signaturesPage), "```yaml\n")[1:] {
			text, _, _ = strings.Cut(text, "```")
			if !strings.Contains(text, has) || found > 0 {
				continue
			}
			found++
			if p, err := dialect.Load(text); err != nil || len(p.Rules) != 1 || len(p.Notes) > 0 {
				t.Errorf("%s: Load = %+v, %v; want one rule without notes", has, p, err)
			}
		}
		if found == 0 {
			t.Errorf("%s has no example of %s", signaturesPage, has)
		}
	}
}
