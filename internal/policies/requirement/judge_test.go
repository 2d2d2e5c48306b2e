package requirement_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// Shows: 002-14, 002-15, 002-50
func TestJudge(t *testing.T) {
	signed := &requirement.Requirement{SignedBy: &requirement.Signer{Key: &requirement.Key{}}}
	deny := &requirement.Requirement{Static: &requirement.Static{Message: "retired"}}
	pass := &requirement.Requirement{Static: &requirement.Static{Pass: true}}
	rules := []*requirement.Rule{
		{Policy: "p", Name: "signed", Requirement: signed},
		{Policy: "p", Name: "digest", RequireDigest: true},
		{Policy: "p", Name: "static", Requirement: deny, Mode: requirement.Audit},
		{Policy: "q", Requirement: pass},
		{Policy: "never", Requirement: &requirement.Requirement{}},
		{Policy: "r", Default: requirement.AllowUnmatched},
	}
	byDefault := &requirement.Rule{Policy: "d", Name: "all", Default: requirement.DenyUnmatched}
	digest := "sha256:" + strings.Repeat("0", 64)
	const (
		noRule  = `image "app:1": no policy about signatures has a rule for it, and rule all of policy d `
		unknown = `Deny FIELD_UNKNOWN image "abcdef" is an image ID or not a valid name, and rule `
		named   = " may be for it; name the image by its repository with a tag or digest"
	)
	for _, tc := range []struct {
		name    string
		applied requirement.ImageRules
		image   string
		want    []string
		signed  int
	}{
		{"no rule", requirement.ImageRules{}, "app:1", nil, 0},
		{
			"allowed by default",
			requirement.ImageRules{Default: requirement.AllowUnmatched, DefaultRule: byDefault},
			"app:1",
			[]string{"Admit SIGNATURE_MISSING " + noRule + "allows such images"},
			0,
		},
		{
			"denied by default",
			requirement.ImageRules{Default: requirement.DenyUnmatched, DefaultRule: byDefault},
			"app:1",
			[]string{"Deny SIGNATURE_MISSING " + noRule + "denies such images; use an image that a policy has a rule for"},
			0,
		},
		{"by tag", requirement.ImageRules{Rules: rules}, "app:1", []string{
			`Deny DIGEST_REQUIRED image "app:1": rule digest of policy p requires that the image is named by a digest; ` +
				"write NAME@sha256:…",
			`audit Deny SIGNATURE_MISSING image "app:1": rule static of policy p denies it: retired`,
			`Admit image "app:1": policy q requires no signature`,
			`Deny SIGNATURE_MISSING image "app:1": policy never denies it, whatever its signatures are`,
			`Admit image "app:1": policy r requires no signature`,
		}, 1},
		{"by digest", requirement.ImageRules{Rules: rules[:2]}, "app:1@" + digest, []string{
			`Admit image "app:1@` + digest + `": rule digest of policy p requires no signature`,
		}, 1},
		{
			"by image ID",
			requirement.ImageRules{Rules: append(rules[:4:4], rules[5], byDefault), Unknown: true},
			"abcdef",
			[]string{
				unknown + "signed of policy p" + named, unknown + "digest of policy p" + named,
				"audit " + unknown + "static of policy p" + named, unknown + "all of policy d" + named,
			},
			0,
		},
		{"without a name", requirement.ImageRules{Rules: rules[:1], Unknown: true}, "", []string{
			"Deny FIELD_UNKNOWN an image of the container has a name that is not known, and rule signed of policy p" + named,
		}, 0},
	} {
		j := tc.applied.Judge(imageref.New(tc.image))
		var got []string
		for _, f := range j.Findings {
			text := strings.TrimSpace(f.Answer.String()+" "+string(f.Reason)) + " " + f.Message
			if f.Audit {
				text = "audit " + text
			}
			if got = append(got, text); f.Policy == "" {
				t.Errorf("%s: finding %+v; want a policy", tc.name, f)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || len(j.Signed) != tc.signed {
			t.Errorf("%s: %d rules about signatures; want %d; findings (-want +got):\n%s", tc.name, len(j.Signed), tc.signed,
				diff)
		}
	}
}

func TestNotMet(t *testing.T) {
	rule := &requirement.Rule{Policy: "p", Requirement: &requirement.Requirement{SignedBy: &requirement.Signer{}}}
	for reason, want := range map[string]admission.Reason{
		"IDENTITY_MISMATCH": admission.IdentityMismatch,
		"REGISTRY_DENIED":   admission.SignatureMissing,
	} {
		got := rule.NotMet(imageref.New("app:1"), reason, "signed by x")
		want := admission.Finding{
			Validator: "endorsement", Policy: "p", Answer: admission.Deny, Reason: want,
			Message: `image "app:1": policy p is not met: signed by x; required: no signer`,
		}
		testkit.Equal(t, "NotMet", got, want)
	}
}
