package requirement_test

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const digest = "@sha256:38a8906435c4dd5f4258899d46621bfd8eea3ad6ff494ee3c2f17ef0321625bd"

// Shows: 002-13
func TestPattern(t *testing.T) {
	for _, tc := range []struct {
		pattern string
		syntax  requirement.Syntax
		yes, no string // names, separated by spaces
	}{
		{"*", requirement.KyvernoSyntax, "nginx a/b repo.test/a/b/c:1 repo.test:5000/a" + digest, ""},
		{"*/*", requirement.KyvernoSyntax, "nginx a/b repo.test/a", ""},
		{
			"registry.company.com/*", requirement.KyvernoSyntax,
			"registry.company.com/a registry.company.com/a/b/c:1 registry.company.com/a" + digest +
				" REGISTRY.company.com:443/a",
			"registry.company.com.evil.test/a evil.test/registry.company.com/a registry.company.com:5000/a " +
				"registry-company.com/a",
		},
		{
			"a/manager*", requirement.KyvernoSyntax, "a/manager a/manager-b:1 docker.io/a/manager index.docker.io/a/manager:2 " +
				"a/manager" + digest + " a/manager:1" + digest,
			"repo.test/a/manager ba/manager a/other/manager a/amanager b/a/manager",
		},
		{"repo.test/a/manager*", requirement.KyvernoSyntax, "repo.test/a/manager " +
			"repo.test/a/manager-b:1", "repo.test/ba/manager repo.test/x/a/manager a/manager"},
		{"nginx", requirement.KyvernoSyntax, "nginx nginx:1 docker.io/nginx library/nginx index.docker.io/library/nginx " +
			"nginx" + digest, "repo.test/nginx a/nginx nginx-b library/nginx/x"},
		{"nginx:1", requirement.KyvernoSyntax, "nginx:1 docker.io/library/nginx:1 " +
			"nginx" + digest + " nginx:2" + digest, "nginx nginx:2 nginx:12"},
		{"nginx:1*", requirement.KyvernoSyntax, "nginx:1 nginx:1.2 nginx:3" + digest, "nginx nginx:2"},
		{"nginx*", requirement.KyvernoSyntax, "nginx nginx-a:1 library/nginx-b" + digest, "a/nginx nginx.test/a"},
		{"docker.io/nginx*", requirement.KyvernoSyntax, "nginx nginx-a:1 index.docker.io/nginx " +
			"registry-1.docker.io/library/nginx registry.hub.docker.com/library/nginx", "repo.test/nginx a/nginx"},
		{"repo.test:5000/app", requirement.KyvernoSyntax, "repo.test:5000/app repo.test:5000/app:1", "repo.test/app " +
			"repo.test:5000/app/x"},
		{"repo.test:443/app", requirement.KyvernoSyntax, "repo.test/app Repo.Test:443/app:1 " +
			"repo.test:0443/app", "repo.test:5000/app repo.test:4430/app"},
		{"repo.test:443*", requirement.KyvernoSyntax, "repo.test/app repo.test:443/app:1 repo.test:4430/app " +
			"repo.test:443", "repo.test:5000/app repo.tests/app"},
		{"repo.test:*", requirement.KyvernoSyntax, "repo.test/app repo.test:443/app:1 repo.test:5000/app " +
			"repo.test:1", "repo.tests/app"},
		{"repo.test:5*", requirement.KyvernoSyntax, "repo.test:5000/app repo.test:5", "repo.test/app repo.test:443/app"},
		{"repo*:5000/app", requirement.KyvernoSyntax, "repo.test:5000/app:1", "repo.test/app repo.test:5001/app"},
		{"repo.test", requirement.KyvernoSyntax, "repo.test docker.io/library/repo.test:1", "repo.test:5000/a repo.test/a"},
		{"repo.test*", requirement.KyvernoSyntax, "repo.test/a repo.test:5000/a", "a.repo.test/a"},
		{"*.test/app", requirement.KyvernoSyntax, "repo.test/app a.b.test/app:1", "repo.tests/app test/app " +
			"docker.io/x.test/apps"},
		{"repo.test/app?1", requirement.KyvernoSyntax, "repo.test/app-1 repo.test/app-1:2", "repo.test/app:1 " +
			"repo.test/app1 repo.test/app/1"},
		{"repo.test/app*-rc", requirement.KyvernoSyntax, "repo.test/app:1-rc repo.test/app-rc:1 " +
			"repo.test/app" + digest, "repo.test/app:1 repo.test/other" + digest},
		{"localhost/app", requirement.KyvernoSyntax, "localhost/app:1", "docker.io/localhost/app app"},

		{"**", requirement.SigstoreSyntax, "nginx a/b repo.test/a/b:1", ""},
		{"index.docker.io/**", requirement.SigstoreSyntax, "nginx a/b docker.io/a/b/c:1", "repo.test/a"},
		{"index.docker.io/library/*", requirement.SigstoreSyntax, "nginx nginx:1 library/nginx" + digest, "a/nginx " +
			"library/a/b"},
		{"inde**", requirement.SigstoreSyntax, "nginx a/b", "repo.test/a"},
		{"ghcr.io/*/*", requirement.SigstoreSyntax, "ghcr.io/a/b ghcr.io/a/b:1 ghcr.io/a/b" + digest, "ghcr.io/a " +
			"ghcr.io/a/b/c"},
		{"ghcr.io/**", requirement.SigstoreSyntax, "ghcr.io/a ghcr.io/a/b/c:1", "ghcrxio/a ghcr.io.test/a"},
		{"ghcr.io/a*", requirement.SigstoreSyntax, "ghcr.io/a ghcr.io/ab:1", "ghcr.io/a/b ghcr.io/ba"},
		{"ghcr.io/a/b:v1", requirement.SigstoreSyntax, "ghcr.io/a/b:v1 ghcr.io/a/b" + digest, "ghcr.io/a/b:v2 ghcr.io/a/b"},
		{"*/app", requirement.SigstoreSyntax, "repo.test/app docker.io/team/app team/app:1 app", "repo.test/team/app"},
	} {
		p, err := requirement.ParsePattern(tc.pattern, tc.syntax)
		if err != nil || p.String() != tc.pattern {
			t.Errorf("ParsePattern(%q) = %v, %v", tc.pattern, p, err)
			continue
		}
		for names, want := range map[string]bool{tc.yes: true, tc.no: false} {
			for name := range strings.FieldsSeq(names) {
				if n, err := imageref.Parse(name); err != nil || p.Matches(n) != want {
					t.Errorf("%q matches %s is %v, %v; want %v", tc.pattern, name, !want, err, want)
				}
			}
		}
		if p.Matches(imageref.Name{}) {
			t.Errorf("%q matches the zero Name", tc.pattern)
		}
	}
	if n, _ := imageref.Parse("nginx"); (requirement.Pattern{}).Matches(n) {
		t.Error("the zero Pattern matches nginx")
	}
}

func TestPatternRefuses(t *testing.T) {
	for pattern, want := range map[string]string{
		"":                                      "must not be empty",
		"repo.test/app" + digest:                "must not have a digest",
		"repo.test/{{ x }}":                     "variables are not supported",
		"repo.test:50*/x":                       "must not have wildcards in a port",
		"repo*:5?/x":                            "must not have wildcards in a port",
		"https://repo.test/app":                 "matches no image name",
		"repo.test/App":                         "matches no image name",
		"repo.test/app:":                        "matches no image name",
		"repo.test/":                            "matches no image name",
		"/app":                                  "matches no image name",
		"a//b*":                                 "matches no image name",
		"*/A":                                   "matches no image name",
		"repo.test/app:-*":                      "matches no image name",
		" nginx":                                "must have only letters",
		"repo.test/a,b":                         "must have only letters",
		"repo.test/(a|b)":                       "must have only letters",
		"repo.test/" + strings.Repeat("a", 300): "matches no image name",
		"repo.test/" + strings.Repeat("*", 503): "must have at most 512 characters",
	} {
		for _, syntax := range []requirement.Syntax{requirement.KyvernoSyntax, requirement.SigstoreSyntax} {
			if p, err := requirement.ParsePattern(pattern, syntax); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("ParsePattern(%q) = %v, %v; want %s", pattern, p, err, want)
			}
		}
	}
	if _, err := requirement.ParsePattern("repo.test/a?", requirement.SigstoreSyntax); err == nil ||
		!strings.Contains(err.Error(), "the wildcards * and **") {
		t.Errorf("a question mark: %v", err)
	}
}

// The tables of image names and of the allowlist's patterns hold for patterns of rules too.
func TestPatternsOfTheConformanceTables(t *testing.T) {
	var names []struct {
		In         string `json:"in"`
		Repository string `json:"repository"`
		Error      bool   `json:"error"`
	}
	var allowlist struct {
		Matches []struct {
			List         []string `json:"list"`
			Image        string   `json:"image"`
			Match        bool     `json:"match"`
			ResolvedAsID bool     `json:"resolved_as_id"`
		} `json:"matches"`
	}
	for file, into := range map[string]any{
		"../../../pkg/imageref/testdata/names.yaml":  &names,
		"../../../pkg/policy/testdata/policies.yaml": &allowlist,
	} {
		data, err := os.ReadFile(file)
		if err == nil {
			err = yaml.Unmarshal(data, into)
		}
		testkit.Must(t, err)
	}
	matches := func(pattern, image string) bool {
		p, err := requirement.ParsePattern(pattern, requirement.KyvernoSyntax)
		if err != nil {
			t.Errorf("ParsePattern(%q) = %v", pattern, err)
			return false
		}
		n, err := imageref.Parse(image)
		return err == nil && p.Matches(n)
	}
	for _, n := range names {
		if !n.Error && !matches(n.Repository, n.In) {
			t.Errorf("%s does not match %s", n.Repository, n.In)
		}
	}
	for _, m := range allowlist.Matches {
		if !m.ResolvedAsID && matches(m.List[0], m.Image) != m.Match { // Set.For reports names that mean an image ID
			t.Errorf("%s matches %s is %v; want %v", m.List[0], m.Image, !m.Match, m.Match)
		}
	}
	if len(names) != 11 || len(allowlist.Matches) != 10 {
		t.Errorf("the tables have %d and %d rows; want 11 and 10", len(names), len(allowlist.Matches))
	}
}

// A name is a pattern of itself, of all its tags and of its digests.
func FuzzPattern(f *testing.F) {
	for _, s := range []string{
		"nginx", "a/b:1", "repo.test:5000/a/b", "*", "*/a*b:c?", "REPO.test:443/a",
		"docker.io/library/a", "**", "[::1]:5000/a", "a.b*", "localhost/x:V1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, syntax := range []requirement.Syntax{requirement.KyvernoSyntax, requirement.SigstoreSyntax} {
			p, err := requirement.ParsePattern(s, syntax)
			n, invalid := imageref.Parse(s)
			if invalid != nil || n.IsDigest() {
				continue
			}
			byDigest, _ := imageref.Parse(n.Repository() + digest)
			if err != nil || !p.Matches(n) || !p.Matches(byDigest) {
				t.Errorf("ParsePattern(%q) = %v, %v, which does not match %s and %s", s, p, err, n, byDigest)
			}
		}
	})
}
