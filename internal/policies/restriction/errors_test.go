package restriction_test

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
)

const header = "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: test}\n"

// The golden file has for each case its name, a file without the header, and its errors. UPDATE=1 rewrites the errors.
// Shows: 003-07, 003-08, 003-09, 003-10, 003-13, 003-14, 003-27
func TestParseRefuses(t *testing.T) {
	const name = "testdata/errors.golden"
	var all strings.Builder
	for _, section := range strings.Split(string(read(t, name)), "=== ")[1:] {
		section, _, _ = strings.Cut(section, ">>> ")
		title, text, _ := strings.Cut(section, "\n")
		if strings.HasPrefix(text, "spec:") || strings.HasPrefix(text, "binding:") {
			text = header + text
		}
		p, err := restriction.Parse([]byte(text))
		if err == nil {
			t.Fatalf("%s: Parse = %+v; want errors", title, p)
		}
		fmt.Fprintf(&all, "=== %s>>> %s\n", section, strings.ReplaceAll(err.Error(), "\n", "\n>>> "))
	}
	golden(t, name, []byte(all.String()))
}

func TestLoadReportsAllFiles(t *testing.T) {
	set, err := restriction.Load([]restriction.File{
		{Name: "a.yaml", Data: []byte(header + "spec: {x: 1, z: 1}")},
		file("first", "", "{}"),
		{Name: "b.yaml", Data: []byte("{")},
		{Name: "copy.yaml", Data: file("first", "", "{}").Data},
	})
	if set != nil || err == nil {
		t.Fatalf("Load = %v, %v; want nil and errors", set, err)
	}
	want := []string{
		"a.yaml: spec.x: unknown field; known are metadata, spec (line 4)",
		"a.yaml: spec.z: unknown field; known are metadata, spec (line 4)",
		"b.yaml: yaml: line 1: did not find expected node content",
		`copy.yaml: metadata.name: Duplicate value: "first": also in first.yaml; each policy needs its own name (line 3)`,
	}
	if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
		t.Errorf("Load reports\n%s\nwant\n%s", err, strings.Join(want, "\n"))
	}
}

// The proposal has two examples. In the second, one item of a list is a mapping, and a colon is missing.
// Shows: 003-40, 003-41
func TestExamplesOfTheProposal(t *testing.T) {
	for name, want := range map[string]string{
		"proposal-restricted":            "",
		"proposal-kube-system":           "",
		"proposal-kube-system-malformed": "yaml: line 16: mapping values are not allowed in this context",
		"proposal-kube-system-item-is-map": "spec.metadata.labels.requireKeys[1]: Invalid type: object: must be a string, " +
			"in quotes (line 13)",
	} {
		p, err := restriction.Parse(read(t, "testdata/"+name+".yaml"))
		switch {
		case want != "":
			if err == nil || err.Error() != want {
				t.Errorf("%s: Parse = %v; want %q", name, err, want)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		default:
			text, err := yaml.Marshal(p)
			must(t, err)
			golden(t, "testdata/"+name+".golden", text)
		}
	}
}

// golden compares a text with a file. UPDATE=1 rewrites it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile(name, got, 0o600))
	}
	testkit.Equal(t, name, string(got), string(read(t, name)))
}

func read(tb testing.TB, name string) []byte {
	tb.Helper()
	data, err := os.ReadFile(name)
	must(tb, err)
	return data
}

// Both spellings of the proposal are one policy.
// Shows: 003-04, 003-14, 003-17
func TestSpellings(t *testing.T) {
	for given, spelled := range map[string]string{
		"{spec: {dnsPolicy: {allowNil: false}}}":                     "{spec: {dnsPolicy: {forbidNil: true}}}",
		"{spec: {dnsPolicy: {allowNil: true}}}":                      "{spec: {dnsPolicy: {forbidNil: false}}}",
		"{metadata: {labels: {requireKeys: [a]}}}":                   "{metadata: {labels: {requiredKeys: [a]}}}",
		"{metadata: {labels: {valueRestrictions: {a: {regex: b}}}}}": "{metadata: {labels: {values: {a: {regex: b}}}}}",
		"{metadata: {labels: {values: {requireKeys: {regex: b}}}}}": "{metadata: {labels: {values: {requireKeys: " +
			"{regex: b}}}}}",
		"{spec: {volumes: {volumeType: {whitelist: [secret]}}}}": "{spec: {volumes: [{volumeType: {whitelist: [secret]}}]}}",
		"{spec: {volumes: {volumeType: {values: {whitelist: [nfs]}}}}}": "{spec: {volumes: [{volumeType: {whitelist: " +
			"[nfs]}}]}}",
	} {
		if got, want := parsed(t, file("a", "", given).Data),
			parsed(t, file("a", "", spelled).Data); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is\n%+v\nwant\n%+v", given, got, want)
		}
	}
	accept := parsed(t, file("a", "{mode: Accept}", "{}").Data)
	allow := strings.Replace(string(file("a", "{mode: Allow}", "{}").Data), "policy.pullgate.dev/", "policy/", 1)
	if got := parsed(t, []byte(allow)); !reflect.DeepEqual(got, accept) {
		t.Errorf("the mode Allow in policy/v1alpha1 is %+v; want %+v", got, accept)
	}
}

func parsed(t *testing.T, data []byte) *restriction.PodRestriction {
	t.Helper()
	p, err := restriction.Parse(data)
	must(t, err)
	return p
}
