package restrict_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/pkg/admission/files"
	"github.com/pullgate/pullgate/pkg/admission/restrict"
)

// A folder with every error of a policy has all of them reported at once. Each names the file, the field, its value and what is allowed.
func TestErrorsOfAFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policies")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	policy := func(name, rest string) string {
		return "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: " + name + "}\n" + rest
	}
	errors := map[string]struct{ text, want string }{
		"kind":           {"apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestrictions\n", `kind: Unsupported value: "PodRestrictions": did you mean PodRestriction?`},
		"field":          {policy("a", "spec: {spec: {securityContext: {hostNetwrk: {}}}}"), "spec.spec.securityContext.hostNetwrk: unknown field; did you mean hostNetwork?"},
		"name":           {policy("same", ""), ""},
		"other":          {policy("same", ""), `metadata.name: Duplicate value: "same": also in ` + dir + "/name.yaml; each policy needs its own name"},
		"regex":          {policy("b", "spec: {metadata: {name: {regex: '('}}}"), `spec.metadata.name.regex: Invalid value: "(": must be an RE2 expression: error parsing regexp: missing closing ): ` + "`(`"},
		"range":          {policy("c", "spec: {spec: {containers: [{securityContext: {runAsUser: {ranges: [{min: 2, max: 1}]}}}]}}"), `spec.spec.containers[0].securityContext.runAsUser.ranges[0]: Invalid value: "min: 2, max: 1": min must be at most max`},
		"nil":            {policy("d", "spec: {spec: {dnsPolicy: {forbidNil: true, requireNil: true}}}"), `spec.spec.dnsPolicy: Invalid value: "forbidNil, requireNil": both are true`},
		"empty":          {policy("e", "spec: {spec: {containers: [{securityContext: {capabilities: {drop: {requireEmpty: true, requiredValues: [ALL]}}}}]}}"), `spec.spec.containers[0].securityContext.capabilities.drop.requiredValues: Invalid value: ["ALL"]: must be absent with requireEmpty`},
		"whitelist":      {policy("f", "spec: {spec: {restartPolicy: {whitelist: []}}}"), `spec.spec.restartPolicy.whitelist: Invalid value: "[]": must have at least one entry`},
		"selector":       {policy("g", "binding: {namespaceSelector: {matchExpressions: [{key: tier, operator: Is, values: [a]}]}}"), `binding.namespaceSelector.matchExpressions[0].operator: Unsupported value: "Is": supported values: "In", "NotIn", "Exists", "DoesNotExist"`},
		"selector-label": {policy("h", "binding: {namespaceSelector: {matchLabels: {tier: 'a b'}}}"), `binding.namespaceSelector.matchLabels[tier]: Invalid value: "a b"`},
		"size":           {policy("i", strings.Repeat("#", 1<<20)), "more than 1 MiB"},
	}
	for name, e := range errors {
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(e.text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set, err := files.Read(files.Paths{Folder: dir}, []files.Kind{restrict.Files()})
	if set != nil || err == nil {
		t.Fatalf("Read = %v, %v; want errors", set, err)
	}
	lines := strings.Split(err.Error(), "\n")
	for _, name := range slices.Sorted(maps.Keys(errors)) {
		var about []string
		for _, line := range lines {
			if text, ok := strings.CutPrefix(line, dir+"/"+name+".yaml: "); ok {
				about = append(about, text)
			}
		}
		if want := errors[name].want; want == "" && about != nil || want != "" && (len(about) != 1 || !strings.HasPrefix(about[0], want)) {
			t.Errorf("errors of %s.yaml: %q; want %q", name, about, want)
		}
	}
	if len(lines) != len(errors)-1 {
		t.Errorf("%d lines; want %d:\n%v", len(lines), len(errors)-1, err)
	}
}
