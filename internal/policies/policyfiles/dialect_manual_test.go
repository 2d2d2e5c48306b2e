package policyfiles_test

import (
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// signaturesPage returns the path of the page about policies, from the folder of the package.
func signaturesPage() string { return filepath.Join("..", "..", "..", "docs", "signatures.md") }

// checkFields checks that the table of a section of the manual names each field below spec of a policy file, as
// parent.field, and no other one. document is the type of the file. If types of fields are used in several places, the
// first one counts.
func checkFields(t *testing.T, section string, document reflect.Type) {
	t.Helper()
	_, text, ok := strings.Cut(readFile(t, signaturesPage()), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %s", signaturesPage(), section)
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
			t.Errorf("section %s of %s does not have the field %s", section, signaturesPage(), f)
		}
	}
	for i, f := range documented {
		if !slices.Contains(fields, f) || slices.Contains(documented[:i], f) {
			t.Errorf("section %s of %s has %s, which is not a field or there twice", section, signaturesPage(), f)
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

// example returns the example of the manual that has a text.
func example(t *testing.T, has string) string {
	t.Helper()
	for i, example := range strings.Split(readFile(t, signaturesPage()), "```") {
		if text, ok := strings.CutPrefix(example, "yaml\n"); ok && i%2 == 1 && strings.Contains(text, has) {
			return text
		}
	}
	t.Fatalf("%s has no example with %s", signaturesPage(), has)
	return ""
}
