package adminapi_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// verifier is pullgate-policyd: every requirement has the same result.
type verifier struct {
	rules  []requirement.Rule
	result requirement.Result
	err    error
	asked  []policyclient.VerifyRequest
}

func (v *verifier) Rules() *requirement.Set {
	return requirement.NewSet("root", &requirement.Policies{Rules: slices.Clone(v.rules), Count: 1})
}

func (v *verifier) Verify(_ context.Context, r policyclient.VerifyRequest) (requirement.Report, error) {
	v.asked = append(v.asked, r)
	var answer requirement.Report
	for _, hash := range r.Requirements {
		result := v.result
		result.Requirement = hash
		answer.Results = append(answer.Results, result)
	}
	answer.Signatures = []requirement.Signature{{Repository: "repo.test/team/app", FoundBy: "referrers", Digest: "sha256:1", Subject: "sha256:2", Signer: "key", Counts: true, Reason: "valid"}}
	return answer, v.err
}

func signedBy(key string) *requirement.Requirement {
	return &requirement.Requirement{SignedBy: &requirement.Signer{Key: &requirement.Key{Public: []byte(key), Hash: "sha256"}}}
}

func patterns(t *testing.T, list ...string) (all []requirement.Pattern) {
	t.Helper()
	for _, s := range list {
		p, err := requirement.ParsePattern(s, requirement.KyvernoSyntax)
		must(t, err)
		all = append(all, p)
	}
	return all
}

func TestVerifyImage(t *testing.T) {
	v := &verifier{
		rules: []requirement.Rule{
			{Kind: "ClusterPolicy", Policy: "team", Name: "signed", Images: patterns(t, "repo.test/team/*"), Requirement: signedBy("a")},
			{Kind: "ClusterPolicy", Policy: "team", Name: "pinned", Images: patterns(t, "repo.test/team/*"), RequireDigest: true, Mode: requirement.Audit},
			{Kind: "ClusterPolicy", Policy: "any", Images: patterns(t, "repo.test/any/*"), Requirement: &requirement.Requirement{
				AtLeast: 1, Of: []requirement.Requirement{*signedBy("c"), {Static: &requirement.Static{Pass: true}}},
			}},
			{Kind: "ClusterPolicy", Policy: "zone", Name: "others", Images: patterns(t, "repo.test/none/*"), Requirement: signedBy("b"), Default: requirement.DenyUnmatched},
		},
		result: requirement.Result{Reason: requirement.IdentityMismatch, Message: "signed by someone else", Digest: "sha256:2"},
	}
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) { c.Signatures = v })
	r, err := w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{
		Image: "repo.test/team/app:1", Namespace: "team", Credential: &adminv1.RegistryLogin{Username: "u", Password: "p"},
	})
	must(t, err)
	if len(v.asked) != 1 || v.asked[0].Credential != (admission.Login{Username: "u", Password: "p"}) || len(v.asked[0].Requirements) != 1 || !v.asked[0].ListSignatures || v.asked[0].Name != "repo.test/team/app:1" {
		t.Fatalf("pullgate-policyd was asked %v; want one question about one requirement", v.asked)
	}
	if len(r.GetRules()) != 2 || r.GetDefaultRule() != nil || len(r.GetSignatures()) != 1 || r.GetImage().GetRepository() != "repo.test/team/app" {
		t.Fatalf("VerifyImage = %v; want two rules and a signature", r)
	}
	signed, pinned := r.GetRules()[0], r.GetRules()[1]
	if signed.GetMet() || signed.GetReason() != requirement.IdentityMismatch || signed.GetMessage() != "signed by someone else" || signed.GetRequires() == "" {
		t.Errorf("rule about signatures: %v; want what pullgate-policyd said", signed)
	}
	if pinned.GetMet() || pinned.GetReason() != "DIGEST_REQUIRED" || !pinned.GetAudit() {
		t.Errorf("rule about digests: %v; want DIGEST_REQUIRED, only reported", pinned)
	}

	r, err = w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{Image: "repo.test/any/app:1", Namespace: "team"})
	if err != nil || len(r.GetRules()) != 1 || !r.GetRules()[0].GetMet() || len(v.asked) != 1 {
		t.Errorf("VerifyImage by a rule that every image meets = %v, %v; want it met, and nothing asked", r, err)
	}

	r, err = w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{Image: "repo.test/other/app:1", Namespace: "team"})
	if err != nil || len(r.GetRules()) != 0 || r.GetDefaultRule().GetRequires() != "deny" || r.GetDefaultRule().GetMet() || len(v.asked) != 1 {
		t.Errorf("VerifyImage of an image that no rule is for = %v, %v; want the default, and nothing asked", r, err)
	}
}

func TestVerifyImageRefuses(t *testing.T) {
	signed := []requirement.Rule{{Kind: "ClusterPolicy", Policy: "team", Images: patterns(t, "*"), Requirement: signedBy("a")}}
	for name, tc := range map[string]struct {
		signatures adminapi.Signatures
		image      string
		want       codes.Code
	}{
		"no image":             {&verifier{rules: signed}, "", codes.InvalidArgument},
		"an image ID":          {&verifier{rules: signed}, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", codes.InvalidArgument},
		"no policy folder":     {nil, "repo.test/a:1", codes.FailedPrecondition},
		"no rule":              {&verifier{}, "repo.test/a:1", codes.FailedPrecondition},
		"policyd not reached":  {&verifier{rules: signed, err: policyclient.ErrNotReached}, "repo.test/a:1", codes.Unavailable},
		"an error with quotes": {&verifier{rules: signed, err: errors.New("a\xff")}, "repo.test/a:1", codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) { c.Signatures = tc.signatures })
			if _, err := w.VerifyImage(t.Context(), &adminv1.VerifyImageRequest{Image: tc.image}); status.Code(err) != tc.want {
				t.Errorf("VerifyImage = %v; want %v", err, tc.want)
			}
		})
	}
}
