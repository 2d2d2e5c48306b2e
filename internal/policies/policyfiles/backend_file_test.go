package policyfiles_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// read reads a folder with files, given by name and content.
func readBackends(t *testing.T, pairs ...string) (policyfiles.Backends, string, error) {
	t.Helper()
	dir := folder(t, pairs...)
	set, err := policyfiles.Read(policyfiles.Paths{Folder: dir})
	return policyfiles.BackendsOf(set), dir, err
}

func TestLoad(t *testing.T) {
	const minimal = "imagePolicy: {kubeConfigFile: /k}\n"
	for name, c := range map[string]struct {
		file, text string
		want       policyfiles.Backend
	}{
		"absent": {"a.yaml", minimal, policyfiles.Backend{
			Kubeconfig: "/k", AllowTTL: time.Hour, DenyTTL: 30 * time.Second, RetryBackoff: 500 * time.Millisecond,
			DefaultAllow: true, DefaultAllowAbsent: true, IncludeImageVolumes: true,
		}},
		"zero": {"a.yml", "imagePolicy:\n  kubeConfigFile: /k\n  allowTTL: 0\n  denyTTL: 0\n  retryBackoff: 0\n  defaultAllow: false\n", policyfiles.Backend{
			Kubeconfig: "/k", AllowTTL: time.Hour, DenyTTL: 30 * time.Second, RetryBackoff: 500 * time.Millisecond, IncludeImageVolumes: true,
		}},
		"off": {"a.yaml", "imagePolicy: {kubeConfigFile: /k, allowTTL: -1, denyTTL: -1, retryBackoff: -1, defaultAllow: true}", policyfiles.Backend{
			Kubeconfig: "/k", DefaultAllow: true, IncludeImageVolumes: true,
		}},
		"JSON": {"a.json", `{"imagePolicy": {"kubeConfigFile": "/etc/k/c", "allowTTL": 50, "denyTTL": 1, "retryBackoff": 300000, "defaultAllow": true},
			"match": {"namespaces": ["a", "b"]}, "includeImageVolumes": false}`, policyfiles.Backend{
			Kubeconfig: "/etc/k/c", AllowTTL: 50 * time.Second, DenyTTL: time.Second, RetryBackoff: 5 * time.Minute, DefaultAllow: true, Namespaces: []string{"a", "b"},
		}},
		"more than the plugin's maximum": {"a.yaml", "imagePolicy: {kubeConfigFile: /k, allowTTL: 86400, denyTTL: 315360000, defaultAllow: true}\nmatch: {}\nincludeImageVolumes: true\n", policyfiles.Backend{
			Kubeconfig: "/k", AllowTTL: 24 * time.Hour, DenyTTL: 87600 * time.Hour, RetryBackoff: 500 * time.Millisecond, DefaultAllow: true, IncludeImageVolumes: true,
		}},
	} {
		set, dir, err := readBackends(t, c.file, c.text)
		c.want.Name, c.want.File = "a", filepath.Join(dir, c.file)
		if diff := cmp.Diff(policyfiles.Backends{c.want}, set); err != nil || diff != "" || set.Len() != 1 {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
		warnings := set.Warnings()
		if absent := len(warnings) == 1 && strings.HasPrefix(warnings[0], c.want.File+": imagePolicy.defaultAllow: absent: "); absent != c.want.DefaultAllowAbsent {
			t.Errorf("%s: warnings %q", name, warnings)
		}
	}
}

func TestLoadOfNoneAndOfSeveral(t *testing.T) {
	none, _, err := readBackends(t)
	if err != nil || none != nil || none.Len() != 0 || none.Warnings() != nil {
		t.Errorf("an empty folder: %v, %v; want nil", none, err)
	}
	set, _, err := readBackends(t, "b.yaml", "imagePolicy: {kubeConfigFile: /b}", "a.yaml", "imagePolicy: {kubeConfigFile: /a}")
	if err != nil || set.Len() != 2 || set[0].Name != "a" || set[1].Kubeconfig != "/b" {
		t.Errorf("two files: %v, %v", set, err)
	}
}

func TestErrors(t *testing.T) {
	for text, want := range map[string][]string{
		"imagePolicy: {}":                           {"imagePolicy.kubeConfigFile: Required value: must be an absolute path, as in /etc/pullgate/scanner.kubeconfig"},
		"imagePolicy: {kubeConfigFile: k}":          {`imagePolicy.kubeConfigFile: Invalid value: "k": must be an absolute path, as in /etc/pullgate/scanner.kubeconfig`},
		"imagePolicy: {kubeConfigFile: /a/../k}":    {`imagePolicy.kubeConfigFile: Invalid value: "/a/../k": must be an absolute path, as in /etc/pullgate/scanner.kubeconfig`},
		"imagePolicy:\n":                            {"imagePolicy: Invalid value: null: must have a value; leave the field out otherwise"},
		"imagePolicy: []":                           {"imagePolicy: Invalid type: array: must be a mapping with the fields kubeConfigFile, allowTTL, denyTTL, retryBackoff, defaultAllow"},
		"imagePolicy: {kubeconfigFile: /k}":         {"imagePolicy.kubeconfigFile: unknown field; did you mean kubeConfigFile?"},
		"imagePolicy: {kubeConfigFile: /k}\nx: 1":   {"x: unknown field"},
		"imagePolicy: {kubeConfigFile: /k}\nmtch: ": {"mtch: unknown field; did you mean match?"},
		"imagePolicy: {kubeConfigFile: /k, allowTTL: 1h, denyTTL: '30', retryBackoff: 0.5, defaultAllow: 'no'}": {
			"imagePolicy.allowTTL: Invalid type: string: must be a whole number, without quotes and unit", "imagePolicy.defaultAllow: Invalid type: string: must be true or false, without quotes",
			"imagePolicy.denyTTL: Invalid type: string: must be a whole number, without quotes and unit", "imagePolicy.retryBackoff: Invalid type: number: must be a whole number, without quotes and unit",
		},
		"imagePolicy: {kubeConfigFile: /k, allowTTL: -2, denyTTL: 315360001, retryBackoff: 300001}": {
			"imagePolicy.allowTTL: Invalid value: -2: must be 1 to 315360000 seconds, 0 for the default 3600, or -1 for no cache",
			"imagePolicy.denyTTL: Invalid value: 315360001: must be 1 to 315360000 seconds, 0 for the default 30, or -1 for no cache",
			"imagePolicy.retryBackoff: Invalid value: 300001: must be 1 to 300000 milliseconds, 0 for the default 500, or -1 for no wait",
		},
		"imagePolicy: {kubeConfigFile: /k, defaultAllow: }":                            {"imagePolicy.defaultAllow: Invalid value: null: must have a value; leave the field out otherwise"},
		"imagePolicy: {kubeConfigFile: /k, defaultAllow: true}\nmatch: {namespace: a}": {"match.namespace: unknown field; did you mean namespaces?"},
		"imagePolicy: {kubeConfigFile: /k}\nmatch: {namespaces: []}":                   {`match.namespaces: Invalid value: "[]": must have at least one entry; leave the field out to review images in all namespaces`},
		"imagePolicy: {kubeConfigFile: /k}\nmatch: {namespaces: [a, B]}":               {`match.namespaces[1]: Invalid value: "B": a lowercase RFC 1123 label must`},
		"imagePolicy: {kubeConfigFile: /k}\nincludeImageVolumes: 1":                    {"includeImageVolumes: Invalid type: number: must be true or false"},
		"imagePolicy: {kubeConfigFile: /k}\nimagePolicy: {kubeConfigFile: /l}":         {"yaml: unmarshal errors:", `  line 2: key "imagePolicy" already set in map`},
		"imagePolicy: {kubeConfigFile: /k}\n---\n":                                     {"more than one document; give one"},
		"# kind: Other\nimagePolicy: {defaultAllow: false, kubeConfigFile: ''}":        {"imagePolicy.kubeConfigFile: Required value: must be an absolute path"},
		"apiVersion: v1\nkind: ImagePolicy\nimagePolicy: {kubeConfigFile: /k}":         {`kind: Unsupported value: "ImagePolicy"`},
		"imagepolicy: {kubeConfigFile: /k}":                                            {"imagepolicy: unknown field; did you mean imagePolicy?"},
	} {
		set, dir, err := readBackends(t, "a.yaml", text)
		var got []string
		if err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		prefix := filepath.Join(dir, "a.yaml") + ": "
		matches := slices.EqualFunc(got, want, func(g, w string) bool {
			if !strings.HasPrefix(w, " ") { // otherwise a further line of an error
				w = prefix + w
			}
			return strings.HasPrefix(g, w)
		})
		if set != nil || !matches {
			t.Errorf("%q: %v\n%s\nwant\n%s", text, set, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestErrorsOfSeveralFiles(t *testing.T) {
	set, dir, err := readBackends(t, "a.json", `{"imagePolicy": {"kubeConfigFile": "/k"}}`, "a.yaml", "imagePolicy: {kubeConfigFile: k}", "b.yaml", "imagePolicy: {allowTTL: -3}")
	lines := []string{
		`a.yaml: imagePolicy.kubeConfigFile: Invalid value: "k": must be an absolute path, as in /etc/pullgate/scanner.kubeconfig (line 1)`,
		`a.yaml: the backend has the name "a", which the backend of ` + dir + `/a.json has too; rename one of the files`,
		"b.yaml: imagePolicy.kubeConfigFile: Required value: must be an absolute path, as in /etc/pullgate/scanner.kubeconfig (line 1)",
		"b.yaml: imagePolicy.allowTTL: Invalid value: -3: must be 1 to 315360000 seconds, 0 for the default 3600, or -1 for no cache (line 1)",
	}
	if want := dir + "/" + strings.Join(lines, "\n"+dir+"/"); set != nil || err == nil || err.Error() != want {
		t.Errorf("Read = %v\n%v\nwant\n%s", set, err, want)
	}
}
