package restriction_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/restriction"
)

const header = "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: test}\n"

// Each line has a file and the parts of its errors, one for each error.
func TestParseRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		file string
		want []string
	}{
		"an unknown kind":           {"apiVersion: policy/v1alpha1\nkind: PodRestrictions\nmetadata: {name: a}", []string{`kind: Invalid value: "PodRestrictions": unknown kind; did you mean PodRestriction?`}},
		"another kind":              {"apiVersion: policy/v1alpha1\nkind: Pod\nmetadata: {name: a}", []string{`kind: Invalid value: "Pod": must be PodRestriction`}},
		"another version":           {"apiVersion: v1\nkind: PodRestriction\nmetadata: {name: a}", []string{`apiVersion: Unsupported value: "v1": supported values: "policy.pullgate.dev/v1alpha1", "policy/v1alpha1"`}},
		"an empty file":             {"", []string{"apiVersion: ", "kind: ", "metadata.name: "}},
		"a list":                    {"[]", []string{"the document is array; must be a mapping"}},
		"two documents":             {header + "---\n" + header, []string{"more than one document"}},
		"a duplicate key":           {header + "spec: {}\nspec: {}\n", []string{`key "spec" already set`}},
		"no name":                   {"apiVersion: policy/v1alpha1\nkind: PodRestriction", []string{`metadata.name: Invalid value: ""`}},
		"an unknown field":          {header + "spec: {spec: {containers: [{securityContext: {privilegd: {require: false}}}]}}", []string{"spec.spec.containers[0].securityContext.privilegd: unknown field; did you mean privileged?"}},
		"a field of another type":   {header + "spec: {spec: {hostNetwork: {require: false}}}", []string{"spec.spec.hostNetwork: unknown field; known are volumes, initContainers"}},
		"a default":                 {header + "spec: {spec: {restartPolicy: {default: Always}}}", []string{"spec.spec.restartPolicy.default: unknown field"}},
		"an external call":          {header + "spec: {webhook: {url: 'https://registry.test'}}", []string{"spec.webhook: unknown field"}},
		"a binding to users":        {header + "binding: {users: [alice]}", []string{"binding.users: unknown field; known are mode, namespaces, namespaceSelector"}},
		"to service accounts":       {header + "binding: {serviceAccounts: [default]}", []string{"binding.serviceAccounts: unknown field"}},
		"a binding to pod labels":   {header + "binding: {podSelector: {}}", []string{"binding.podSelector: unknown field"}},
		"tolerations":               {header + "spec: {spec: {tolerations: []}}", []string{"spec.spec.tolerations: unknown field"}},
		"affinity":                  {header + "spec: {spec: {affinity: {}}}", []string{"spec.spec.affinity: unknown field"}},
		"schedulerName":             {header + "spec: {spec: {schedulerName: {}}}", []string{"spec.spec.schedulerName: unknown field"}},
		"an unknown mode":           {header + "binding: {mode: Permit}", []string{`binding.mode: Unsupported value: "Permit": supported values: "Accept", "Allow", "Drop"`}},
		"an unknown audit mode":     {strings.Replace(header, "name: test", "name: test, annotations: {policy.pullgate.dev/mode: audit}", 1), []string{`metadata.annotations[policy.pullgate.dev/mode]: Unsupported value: "audit": supported values: "Audit", "Enforce"`}},
		"an invalid namespace":      {header + "binding: {namespaces: [kube_system]}", []string{`binding.namespaces[0]: Invalid value: "kube_system"`}},
		"no namespaces":             {header + "binding: {namespaces: []}", []string{`binding.namespaces: Invalid value: "[]": must have at least one entry`}},
		"an invalid operator":       {header + "binding: {namespaceSelector: {matchExpressions: [{key: a, operator: Is}]}}", []string{`binding.namespaceSelector.matchExpressions[0].operator: Unsupported value: "Is": supported values: "In", "NotIn", "Exists", "DoesNotExist"`}},
		"In without values":         {header + "binding: {namespaceSelector: {matchExpressions: [{key: a, operator: In}]}}", []string{"matchExpressions[0].values: Required value"}},
		"Exists with values":        {header + "binding: {namespaceSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}", []string{"matchExpressions[0].values: Invalid value"}},
		"an invalid label":          {header + "binding: {namespaceSelector: {matchLabels: {'-a': b}}}", []string{`binding.namespaceSelector.matchLabels[-a]: Invalid value: "-a"`}},
		"an invalid value":          {header + "binding: {namespaceSelector: {matchLabels: {tier: 'a b'}}}", []string{`binding.namespaceSelector.matchLabels[tier]: Invalid value: "a b"`}},
		"a regex":                   {header + "spec: {metadata: {name: {regex: '('}}}", []string{`spec.metadata.name.regex: Invalid value: "(": must be an RE2 expression: error parsing regexp: missing closing ): ` + "`(`"}},
		"a regex in parentheses":    {header + "spec: {metadata: {name: {regex: 'a)|(b'}}}", []string{"spec.metadata.name.regex: Invalid value"}},
		"an unclosed quotation":     {header + `spec: {metadata: {name: {regex: '\Qa'}}}`, []string{"spec.metadata.name.regex: Invalid value"}},
		"a regex that is not RE2":   {header + `spec: {metadata: {name: {regex: '(?!a)b'}}}`, []string{"must be an RE2 expression"}},
		"min above max":             {header + "spec: {spec: {activeDeadlineSeconds: {ranges: [{min: 1}, {min: 3, max: 2}]}, containers: [{securityContext: {runAsUser: {ranges: [{min: 2, max: 1}]}}}]}}", []string{`spec.spec.activeDeadlineSeconds.ranges[1]: Invalid value: "min: 3, max: 2": min must be at most max`, `spec.spec.containers[0].securityContext.runAsUser.ranges[0]: Invalid value: "min: 2, max: 1": min must be at most max`}},
		"no ranges":                 {header + "spec: {spec: {securityContext: {fsGroup: {ranges: []}}}}", []string{"fsGroup.ranges: Invalid value"}},
		"forbidNil with requireNil": {header + "spec: {spec: {dnsPolicy: {forbidNil: true, requireNil: true}}}", []string{"spec.spec.dnsPolicy: Invalid value: \"forbidNil, requireNil\": both are true"}},
		"allowNil with requireNil":  {header + "spec: {spec: {dnsPolicy: {allowNil: false, requireNil: true}}}", []string{"both are true"}},
		"allowNil with forbidNil":   {header + "spec: {spec: {dnsPolicy: {allowNil: false, forbidNil: true}}}", []string{"spec.spec.dnsPolicy.allowNil: the opposite of forbidNil; give one of them"}},
		"allowNil as a string":      {header + "spec: {spec: {dnsPolicy: {allowNil: 'no'}}}", []string{"spec.spec.dnsPolicy.allowNil: Invalid value: no: must be true or false"}},
		"forbid and require empty":  {header + "spec: {metadata: {labels: {forbidEmpty: true, requireEmpty: true}}}", []string{"spec.metadata.labels: Invalid value: \"forbidEmpty, requireEmpty\""}},
		"required keys, empty":      {header + "spec: {metadata: {labels: {requireEmpty: true, requiredKeys: [a]}}}", []string{"spec.metadata.labels.requiredKeys: Invalid value"}},
		"required values, empty":    {header + "spec: {spec: {containers: [{securityContext: {capabilities: {drop: {requireEmpty: true, requiredValues: [ALL]}}}}]}}", []string{`spec.spec.containers[0].securityContext.capabilities.drop.requiredValues: Invalid value: ["ALL"]: must be absent with requireEmpty`}},
		"both names of a field":     {header + "spec: {metadata: {labels: {requireKeys: [a], requiredKeys: [b]}}}", []string{"spec.metadata.labels.requireKeys: another name of requiredKeys; give one of them"}},
		"an empty whitelist":        {header + "spec: {metadata: {name: {whitelist: []}}}", []string{"spec.metadata.name.whitelist: Invalid value: \"[]\": must have at least one entry"}},
		"an empty blacklist":        {header + "spec: {metadata: {name: {blacklist: []}}}", []string{"spec.metadata.name.blacklist: Invalid value"}},
		"an empty key whitelist":    {header + "spec: {metadata: {labels: {keyWhitelist: []}}}", []string{"spec.metadata.labels.keyWhitelist: Invalid value"}},
		"no containers":             {header + "spec: {spec: {containers: []}}", []string{"spec.spec.containers: Invalid value"}},
		"no volumes":                {header + "spec: {spec: {volumes: []}}", []string{"spec.spec.volumes: Invalid value"}},
		"no images":                 {header + "spec: {spec: {containers: [{image: []}]}}", []string{"spec.spec.containers[0].image: Invalid value"}},
		"a relative path":           {header + "spec: {spec: {volumes: {hostPath: {path: {whitelist: [var/log]}}}}}", []string{"spec.spec.volumes[0].hostPath.path.whitelist[0]: Invalid value: \"var/log\": must be an absolute path without .."}},
		"a path with ..":            {header + "spec: {spec: {volumes: {hostPath: {path: {blacklist: [/var/../etc]}}}}}", []string{"spec.spec.volumes[0].hostPath.path.blacklist[0]: Invalid value"}},
		"a number as a string":      {header + "spec: {spec: {containers: [{securityContext: {runAsUser: {ranges: [{min: '1'}]}}}]}}", []string{"runAsUser.ranges[0].min: Invalid type: string: must be a whole number"}},
		"a boolean as a string":     {header + "spec: {spec: {containers: [{securityContext: {privileged: {require: 'false'}}}]}}", []string{"privileged.require: Invalid type: string: must be true or false, without quotes"}},
		"a list without entries":    {header + "spec:\n  metadata:\n    name:\n      whitelist:\n      # - web\n", []string{"spec.metadata.name.whitelist: Invalid value: null: must have a value"}},
		"a container without rules": {header + "spec: {spec: {containers: [null]}}", []string{"spec.spec.containers[0]: Invalid value: null"}},
		"several errors": {
			header + "binding: {mode: X, user: [a]}\nspec: {metadata: {name: {regex: '('}}, spec: {restartPolicy: {whitelist: []}, volums: {}}}",
			[]string{"binding.user: unknown field", "spec.spec.volums: unknown field; did you mean volumes?", "binding.mode: ", "spec.metadata.name.regex: ", "spec.spec.restartPolicy.whitelist: "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := restriction.Parse([]byte(tc.file))
			if err == nil {
				t.Fatalf("Parse = %+v, nil; want errors with %q", p, tc.want)
			}
			lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
			if strings.HasPrefix(lines[0], "yaml:") {
				lines = []string{err.Error()}
			}
			for i, want := range tc.want {
				if len(lines) != len(tc.want) || !strings.Contains(lines[i], want) {
					t.Fatalf("Parse reports\n%v\nwant %q", err, tc.want)
				}
			}
		})
	}
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
func TestExamplesOfTheProposal(t *testing.T) {
	for name, want := range map[string]string{
		"proposal-restricted":              "",
		"proposal-kube-system":             "",
		"proposal-kube-system-malformed":   "yaml: line 16: mapping values are not allowed in this context",
		"proposal-kube-system-item-is-map": "spec.metadata.labels.requireKeys[1]: Invalid type: object: must be a string, in quotes (line 13)",
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
			golden(t, "testdata/"+name+".golden", p)
		}
	}
}

// golden compares the canonical form of a policy with a file. UPDATE=1 rewrites it.
func golden(t *testing.T, name string, p *restriction.PodRestriction) {
	t.Helper()
	got, err := yaml.Marshal(p)
	must(t, err)
	if os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile(name, got, 0o600))
	}
	if want := read(t, name); string(want) != string(got) {
		t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
	}
}

func read(tb testing.TB, name string) []byte {
	tb.Helper()
	data, err := os.ReadFile(name)
	must(tb, err)
	return data
}

// Both spellings of the proposal are one policy.
func TestSpellings(t *testing.T) {
	for given, spelled := range map[string]string{
		"{spec: {dnsPolicy: {allowNil: false}}}":                        "{spec: {dnsPolicy: {forbidNil: true}}}",
		"{spec: {dnsPolicy: {allowNil: true}}}":                         "{spec: {dnsPolicy: {forbidNil: false}}}",
		"{metadata: {labels: {requireKeys: [a]}}}":                      "{metadata: {labels: {requiredKeys: [a]}}}",
		"{metadata: {labels: {valueRestrictions: {a: {regex: b}}}}}":    "{metadata: {labels: {values: {a: {regex: b}}}}}",
		"{metadata: {labels: {values: {requireKeys: {regex: b}}}}}":     "{metadata: {labels: {values: {requireKeys: {regex: b}}}}}",
		"{spec: {volumes: {volumeType: {whitelist: [secret]}}}}":        "{spec: {volumes: [{volumeType: {whitelist: [secret]}}]}}",
		"{spec: {volumes: {volumeType: {values: {whitelist: [nfs]}}}}}": "{spec: {volumes: [{volumeType: {whitelist: [nfs]}}]}}",
	} {
		if got, want := parsed(t, file("a", "", given).Data), parsed(t, file("a", "", spelled).Data); !reflect.DeepEqual(got, want) {
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
