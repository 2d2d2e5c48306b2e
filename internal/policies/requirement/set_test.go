package requirement_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// rule returns a rule that requires a signature of a key with the same name.
func rule(t *testing.T, name, images string, change func(*requirement.Rule)) requirement.Rule {
	t.Helper()
	k := key(name)
	r := requirement.Rule{Kind: "ClusterPolicy", Policy: name, Requirement: &k}
	for pattern := range strings.FieldsSeq(images) {
		p, err := requirement.ParsePattern(pattern, requirement.KyvernoSyntax)
		testkit.Must(t, err)
		r.Images = append(r.Images, p)
	}
	if change != nil {
		change(&r)
	}
	return r
}

func TestFor(t *testing.T) {
	in := func(names ...string) []requirement.Namespaces {
		var n requirement.Namespaces
		for _, name := range names {
			n = append(n, requirement.Glob(name))
		}
		return []requirement.Namespaces{n}
	}
	set := requirement.NewSet("root", &requirement.Policies{Count: 5, Rules: []requirement.Rule{
		rule(t, "all", "repo.test/*", nil),
		rule(t, "team", "repo.test/team/* other.test/app:1",
			func(r *requirement.Rule) { r.Scope.Include = [][]requirement.Namespaces{in("team-*")} }),
		rule(t, "audited", "repo.test/team/app", func(r *requirement.Rule) { r.Mode = requirement.Audit }),
		rule(t, "digest", "other.test/*", func(r *requirement.Rule) { r.Requirement, r.RequireDigest = nil, true }),
		rule(t, "not-system", "*", func(r *requirement.Rule) {
			r.Scope.Exclude = [][]requirement.Namespaces{in("kube-system"), append(in("team-*"), in("*")...)}
		}),
	}})
	const everything = "all audited digest not-system team"
	for _, tc := range []struct{ namespace, image, want string }{
		{"team-a", "repo.test/team/app:1", "all audited team"},
		{"team-a", "repo.test/x", "all"},
		{"kube-system", "nginx", ""},
		{"other", "nginx", "not-system"},
		{"other", "repo.test/team/app", "all audited not-system"},
		{"team-a", "other.test/app:1", "digest team"},
		{"team-a", "other.test/app:2", "digest"},
		{"", "other.test/app:1", "digest not-system team"}, // a namespace that is not known excludes no rule
		{"", "", everything},
		{"team-a", "", "all audited digest team"},
		{"team-a", "sha256:7692", "all audited digest team"},
		{"team-a", "7692ac1", "all audited digest team"},
		{"team-a", "not a name", "all audited digest team"},
	} {
		a := set.For(tc.namespace, imageref.New(tc.image))
		var names []string
		for _, r := range a.Rules {
			names = append(names, r.Policy)
			if (r.Hash == "") != (r.Requirement == nil) || r.Requirement != nil && r.Hash != r.Requirement.Hash("root") {
				t.Errorf("%s has the hash %q", r.Policy, r.Hash)
			}
		}
		if got := strings.Join(names, " "); got != tc.want ||
			a.Unknown != strings.Contains("sha256:7692ac1 not a name", tc.image) || a.Default != requirement.NoDefault {
			t.Errorf("For(%q, %q) = %q, unknown %v, default %q; want %q", tc.namespace, tc.image, got, a.Unknown, a.Default,
				tc.want)
		}
	}
	var none *requirement.Set
	if a := none.For("a", imageref.New("nginx")); a.Rules != nil || none.Rules() != nil {
		t.Errorf("a nil set has rules: %v", a)
	}
}

// Shows: 002-14
func TestDefaults(t *testing.T) {
	with := func(d requirement.Default, m requirement.Mode) func(*requirement.Rule) {
		return func(r *requirement.Rule) { r.Default, r.Mode = d, m }
	}
	inTeam := func(r *requirement.Rule) {
		r.Default = requirement.DenyUnmatched
		r.Scope.Include = [][]requirement.Namespaces{{{requirement.Exactly("team")}}}
	}
	const deny, allow = requirement.DenyUnmatched, requirement.AllowUnmatched
	for _, tc := range []struct {
		name                     string
		rules                    []requirement.Rule
		inNamespace, image, want string
	}{
		{"absent", []requirement.Rule{rule(t, "a", "repo.test/*", nil)}, "team", "nginx", ""},
		{"deny", []requirement.Rule{rule(t, "a", "repo.test/*", with(deny, 0))}, "team", "nginx", "deny Enforce a"},
		{"deny, audited", []requirement.Rule{rule(t, "a", "repo.tes"+
			"t/*", with(deny, requirement.Audit))}, "team", "nginx", "deny Audit a"},
		{"allow", []requirement.Rule{rule(t, "a", "repo.test/*", with(allow, 0))}, "team", "nginx", "allow Enforce a"},
		{"deny, of two", []requirement.Rule{rule(t, "a", "repo.test/*", with(deny, requirement.Audit)), rule(t, "b", "b.tes"+
			"t/*", with(deny, 0)), rule(t, "c", "c.test/*", with(deny, requirement.Audit))}, "team", "nginx", "deny Enforce b"},
		{"a rule matches", []requirement.Rule{rule(t, "a", "repo.test/*", with(deny, 0))}, "team", "repo.test/a", ""},
		{"another rule matches", []requirement.Rule{rule(t, "a", "repo.tes"+
			"t/*", with(deny, 0)), rule(t, "b", "nginx", nil)}, "team", "nginx", ""},
		{"an audited rule matches", []requirement.Rule{rule(t, "a", "repo.tes"+
			"t/*", with(deny, 0)), rule(t, "b", "*", with(0, requirement.Audit))}, "team", "nginx", "deny Enforce a"},
		{"both audited", []requirement.Rule{rule(t, "a", "repo.tes"+
			"t/*", with(deny, requirement.Audit)), rule(t, "b", "*", with(0, requirement.Audit))}, "team", "nginx", ""},
		{
			"only a digest required",
			[]requirement.Rule{
				rule(t, "a", "repo.test/*", with(deny, 0)),
				rule(t, "b", "*", func(r *requirement.Rule) { r.Requirement, r.RequireDigest = nil, true }),
			},
			"team", "nginx",
			"deny Enforce a",
		},
		{
			"a rule matches perhaps",
			[]requirement.Rule{
				rule(t, "a", "repo.test/*", with(deny, 0)),
				rule(t, "b", "*", func(r *requirement.Rule) { r.Partly = true }),
			},
			"team", "nginx",
			"deny Enforce a",
		},
		{"in another namespace", []requirement.Rule{rule(t, "a", "repo.test/*", inTeam)}, "other", "nginx", ""},
		{"in the namespace", []requirement.Rule{rule(t, "a", "repo.test/*", inTeam)}, "team", "nginx", "deny Enforce a"},
		{"in an unknown namespace", []requirement.Rule{rule(t, "a", "repo.test/*", inTeam)}, "", "nginx", "deny Enforce a"},
		{"matches elsewhere only", []requirement.Rule{rule(t, "a", "repo.tes"+
			"t/*", with(deny, 0)), rule(t, "b", "nginx", inTeam)}, "other", "nginx", "deny Enforce a"},
		{"the image is not known", []requirement.Rule{rule(t, "a", "repo.test/*", with(deny, 0))}, "team", "", ""},
	} {
		a := requirement.NewSet("", &requirement.Policies{Rules: tc.rules}).For(tc.inNamespace, imageref.New(tc.image))
		got := ""
		if a.DefaultRule != nil {
			got = fmt.Sprintf("%s %s %s", a.Default, a.DefaultRule.Mode, a.DefaultRule.Policy)
		}
		if got != tc.want || (a.DefaultRule == nil) != (a.Default == requirement.NoDefault) {
			t.Errorf("%s: default %q; want %q", tc.name, got, tc.want)
		}
	}
}
