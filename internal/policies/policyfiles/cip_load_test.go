package policyfiles_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

func TestCIPEveryField(t *testing.T) {
	p := cip.Valid(t, readFile(t, "testdata/cip/every-field.yaml"), readFile(t, "testdata/cip/static.yaml"),
		readFile(t, "testdata/cip/pass.yaml"))
	compare(t, "testdata/cip/every-field.golden", describePolicies(p))
}

const cipHeader = "apiVersion: policy.sigstore.dev/v1beta1\nkind: ClusterImagePolicy\nmetadata: {name: p}\n"

// cipPolicy returns a policy in flow style.
func cipPolicy(spec string) string { return cipHeader + "spec: {" + spec + "}\n" }

func TestCIPErrors(t *testing.T) { cip.Errors(t, "testdata/cip/errors.golden", cipHeader) }

func TestCIPMatch(t *testing.T) {
	for match, want := range map[string]bool{
		"":                            true,
		"match: [], ":                 true,
		"match: [{version: v1}], ":    true,
		"match: [{}], ":               true,
		"match: [{resource: pods}], ": true,
		"match: [{group: apps, version: v1, resource: deployments}, {version: v1, resource: pods}], ": true,
		"match: [{group: apps, version: v1, resource: deployments}], ":                                false,
		"match: [{group: apps}], ":                                     false,
		"match: [{version: v2, resource: pods}], ":                     false,
		"match: [{group: tekton.dev, version: v1, resource: tasks}], ": false,
		"match: [{group: tekton.dev, resource: tasks}, {}], ":          true,
	} {
		p, err := cip.Load(cipPolicy(match + "images: [{glob: '**'}], authorities: [{static: {action: fail}}]"))
		if err != nil || (len(p.Rules) == 1) != want || p.Count != 1 {
			t.Errorf("%s: %+v, %v; want a rule: %v", match, p, err, want)
			continue
		}
		noted := slices.ContainsFunc(p.Notes, func(n string) bool {
			return strings.Contains(n, "spec.match: not enforced: the policy is not for pods")
		})
		if noted == want {
			t.Errorf("%s: notes %q", match, p.Notes)
		}
	}
}

// Regular expressions match the whole text, and each identity counts with its own issuer.
func TestCIPIdentities(t *testing.T) {
	p := cip.Valid(t, cipPolicy("images: [{glob: '**'}], authorities: [{keyless: {identities: [{issuerRegExp: "+
		"'https://a', subjectRegExp: 'x|y'}, {issuer: 'https://b.*', subject: z}]}}]"))
	signers := p.Rules[0].Requirement.Signers()
	if len(signers) != 2 || p.Rules[0].Requirement.AtLeast != 1 {
		t.Fatalf("requirement %s; want one of two", p.Rules[0].Requirement)
	}
	for _, tc := range []struct {
		issuer, subject string
		want            bool
	}{
		{"https://a", "x", true},
		{"https://a", "y", true},
		{"https://a.evil", "x", false},
		{"https://a", "xy", false},
		{"https://a", "z", false},
		{"https://b.*", "z", true},
		{"https://b.test", "z", false},
	} {
		got := slices.ContainsFunc(signers, func(s *requirement.Signer) bool {
			return s.Keyless.Issuer.Matches(tc.issuer) && s.Keyless.Subject.Matches(tc.subject)
		})
		if got != tc.want {
			t.Errorf("%s of %s: %v; want %v", tc.subject, tc.issuer, got, tc.want)
		}
	}
}

// The same requirement in both dialects has the same hash, so that a policy can be converted without verifying images
// again.
func TestDialectsHaveTheSameHash(t *testing.T) {
	a, b := pemText(t, "a.pub"), pemText(t, "b.pub")
	for ours, theirs := range map[string]string{
		"{key: {data: " + a + "}}": "{entries: [{keys: " +
			"{publicKeys: " + a + "}}]}",
		"{key: {data: " + b + "}}, {key: {data: " + a +
			"}}": "{count: 1, entries: [{keys: {publicKeys: " + pemText(t, "a.pub",
			"b.pub") + "}}]}",
		"{source: [{oci: repo.test/s}], ctlog: {url: 'https://r.test'}, key: {data: " + a +
			"}}": "{entries: [{repository: repo.test/s, keys: {rekor: {url: 'https://r.test'}, publicKeys: " + a + "}}]}",
		"{keyless: {identities: [{issuer: i, subjectRegExp: 's.*'}]}}": "{entries: [{keyless: " +
			"{issuer: i, subjectRegExp: 's.*'}}]}",
		"{ctlog: {}, keyless: {identities: [{issuer: i, subject: s}], insecureIgnoreSCT: true}}": "{entries: [{keyless: " +
			"{issuer: i, subject: s, rekor: {ignoreTlog: true}, ctlog: {ignoreSCT: true}}}]}",
	} {
		p := cip.Valid(t, cipPolicy("images: [{glob: '**'}], authorities: ["+ours+"]"))
		q := kyverno.Valid(t, "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\n"+
			"spec: {rules: [{name: r, match: {resources: {kinds: [Pod]}}, verifyImages: [{imageReferences: ['*'], "+
			"attestors: ["+theirs+"]}]}]}\n")
		if x, y := p.Rules[0].Requirement.Hash("r"), q.Rules[0].Requirement.Hash("r"); x != y {
			t.Errorf("%s and %s have the hashes %s, %s; want the same", ours, theirs, x, y)
		}
	}
}

// All rules of both dialects that match an image apply, each in its own mode.
func TestRulesOfBothDialects(t *testing.T) {
	p := cip.Valid(t, cipPolicy("mode: warn, images: [{glob: 'repo.test/**'}], authorities: [{key: {data: "+pemText(t,
		"a.pub")+"}}]"))
	q := kyverno.Valid(t, "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\n"+
		"spec: {rules: [{name: r, match: {resources: {kinds: [Pod]}}, imageVerify: {images: ['repo.test/team/*'], default: "+
		"deny, attestors: [{entries: [{keys: {publicKeys: "+pemText(t, "b.pub")+"}}]}]}}]}\n")
	set := requirement.NewSet("", p, q)
	for image, want := range map[string]string{
		"repo.test/team/app": "ClusterImagePolicy/p/ Audit, ClusterPolicy/p/r Enforce, ",
		"repo.test/x/app":    "ClusterImagePolicy/p/ Audit, deny Enforce",
		"nginx":              "deny Enforce",
	} {
		a := set.For("team", imageref.New(image))
		var got strings.Builder
		for _, r := range a.Rules {
			fmt.Fprintf(&got, "%s/%s/%s %s, ", r.Kind, r.Policy, r.Name, r.Mode)
		}
		if a.DefaultRule != nil {
			fmt.Fprintf(&got, "%s %s", a.Default, a.DefaultRule.Mode)
		}
		if got.String() != want {
			t.Errorf("rules for %s: %q; want %q", image, got.String(), want)
		}
	}
}

func FuzzCIP(f *testing.F) {
	cip.Fuzz(f, func(t *testing.T, r requirement.Rule) {
		t.Helper()
		if len(r.Images) == 0 || r.Requirement == nil || r.Hash == "" {
			t.Errorf("a rule without effect: %+v", r)
		}
		if s := r.Requirement.Signers(); len(s) == 0 && r.Requirement.NeedsSignature() {
			t.Errorf("a requirement without signers: %s", r.Requirement)
		}
	},
		cipPolicy("mode: warn, images: [{glob: 'a/**'}], authorities: [{static: {action: fail}}]"),
		cipPolicy("images: [{glob: '*'}], match: [{resource: pods}], authorities: [{ctlog: {}, source: [{oci: a}], "+
			"keyless: {identities: [{issuer: i, subjectRegExp: s}]}}, {key: {data: k}}]"),
		cipPolicy("policy: {type: cue}, images: [], authorities: [{keyless: {ca-cert: {data: x}}}]"))
}
