package policyfiles_test

import (
	"errors"
	"path/filepath"
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

// Shows: 000-18, 000-21, 000-23, 000-25
func TestLoad(t *testing.T) {
	const minimal = "imagePolicy: {kubeConfigFile: /k}\n"
	for _, c := range []struct {
		name       string
		file, text string
		want       policyfiles.Backend
	}{
		{"absent", "a.yaml", minimal, policyfiles.Backend{
			Kubeconfig: "/k", AllowTTL: time.Hour, DenyTTL: 30 * time.Second, RetryBackoff: 500 * time.Millisecond,
			DefaultAllow: true, DefaultAllowAbsent: true, IncludeImageVolumes: true,
		}},
		{"zero", "a.yml", "imagePolicy:\n  kubeConfigFile: /k\n  allowTTL: 0\n  denyTTL: 0\n  retryBackoff: 0\n  " +
			"defaultAllow: false\n", policyfiles.Backend{
			Kubeconfig: "/k", AllowTTL: time.Hour, DenyTTL: 30 * time.Second, RetryBackoff: 500 * time.Millisecond,
			IncludeImageVolumes: true,
		}},
		{"off", "a.yaml", "imagePolicy: {kubeConfigFile: /k, allowTTL: -1, denyTTL: -1, retryBackoff: -1, defaultAllow: " +
			"true}", policyfiles.Backend{Kubeconfig: "/k", DefaultAllow: true, IncludeImageVolumes: true}},
		{"JSON", "a.json", `{"imagePolicy": {"kubeConfigFile": "/etc/k/c", "allowTTL": 50, "denyTTL": 1,
			"retryBackoff": 300000, "defaultAllow": true}, "match": {"namespaces": ["a", "b"]},
			"includeImageVolumes": false}`, policyfiles.Backend{
			Kubeconfig: "/etc/k/c", AllowTTL: 50 * time.Second, DenyTTL: time.Second, RetryBackoff: 5 * time.Minute,
			DefaultAllow: true, Namespaces: []string{"a", "b"},
		}},
		{"more than the plugin's maximum", "a.yaml", "imagePolicy: {kubeConfigFile: /k, allowTTL: 86400, denyTTL: " +
			"315360000, defaultAllow: true}\nmatch: {}\nincludeImageVolumes: true\n", policyfiles.Backend{
			Kubeconfig: "/k", AllowTTL: 24 * time.Hour, DenyTTL: 87600 * time.Hour, RetryBackoff: 500 * time.Millisecond,
			DefaultAllow: true, IncludeImageVolumes: true,
		}},
	} {
		set, dir, err := readBackends(t, c.file, c.text)
		c.want.Name, c.want.File = "a", filepath.Join(dir, c.file)
		if diff := cmp.Diff(policyfiles.Backends{c.want}, set); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", c.name, err, diff)
		}
		warnings := set.Warnings()
		if absent := len(warnings) == 1 && strings.HasPrefix(warnings[0],
			c.want.File+": imagePolicy.defaultAllow: absent: "); absent != c.want.DefaultAllowAbsent {
			t.Errorf("%s: warnings %q", c.name, warnings)
		}
	}
}

// Shows: 000-04, 000-07, 000-21
func TestErrors(t *testing.T) {
	refusals(t, "testdata/backend-errors.golden", func(text string) error {
		set, dir, err := readBackends(t, "a.yaml", text)
		if err == nil || set != nil {
			t.Fatalf("%q: %v, %v; want errors", text, set, err)
		}
		return errors.New(strings.ReplaceAll(err.Error(), dir+"/", ""))
	})
}

func TestErrorsOfSeveralFiles(t *testing.T) {
	set, dir, err := readBackends(t, "a.json", `{"imagePolicy": {"kubeConfigFile": "/k"}}`, "a.yaml",
		"imagePolicy: {kubeConfigFile: k}", "b.yaml", "imagePolicy: {allowTTL: -3}")
	if set != nil || err == nil {
		t.Fatalf("Read = %v, %v; want errors", set, err)
	}
	compare(t, "testdata/backends-errors.golden", strings.ReplaceAll(err.Error(), dir, "DIR")+"\n")
}
