package policyclient_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

func verifyRequest() policyclient.VerifyRequest {
	return policyclient.VerifyRequest{
		PolicyHash: "hash", TrustedRoot: "root", Name: "registry.test/app:1", ImageID: "sha256:1",
		Digests:      []string{"sha256:2"},
		Requirements: []string{"v1:a", "v1:b"},
	}
}

func verifyResponse() *policyv1.VerifyResponse {
	return &policyv1.VerifyResponse{PolicyHash: "hash", TrustedRoot: "root", Results: []*policyv1.VerifyResult{
		{Requirement: "v1:a", Met: true, Signers: []string{"key sha256:3"}, Digest: "sha256:2"},
		{Requirement: "v1:b", Reason: "SIGNATURE_MISSING", Message: "no signature"},
	}}
}

// verifier returns a client of a server that answers with *response.
func verifier(t *testing.T, response **policyv1.VerifyResponse) *policyclient.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	serveFake(t, path, &fakeServer{verify: func(context.Context, *policyv1.VerifyRequest) (*policyv1.VerifyResponse,
		error,
	) {
		return *response, nil
	}})
	return dial(t, path, policyclient.Options{Reconnect: time.Millisecond})
}

func TestVerify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	var asked *policyv1.VerifyRequest
	response := verifyResponse()
	response.Signatures = []*policyv1.FoundSignature{
		{
			Repository: "registry.test/app", FoundBy: "referrers", Digest: "sha256:4", Subject: "sha256:2", Signer: "s",
			Counts: true, Reason: "r",
		},
	}
	serveFake(t, path, &fakeServer{verify: func(_ context.Context, r *policyv1.VerifyRequest) (*policyv1.VerifyResponse,
		error,
	) {
		asked = r
		return response, nil
	}})
	r := verifyRequest()
	r.Credential = admission.Login{Username: "u", Password: "p", IdentityToken: "i", RegistryToken: "r"}
	r.ListSignatures = true
	got, err := dial(t, path, policyclient.Options{}).Verify(t.Context(), r)
	want := requirement.Report{
		Results: []requirement.Result{
			{Requirement: "v1:a", Met: true, Signers: []string{"key sha256:3"}, Digest: "sha256:2"},
			{Requirement: "v1:b", Reason: requirement.SignatureMissing, Message: "no signature"},
		},
		Signatures: []requirement.Signature{
			{
				Repository: "registry.test/app", FoundBy: "referrers", Digest: "sha256:4", Subject: "sha256:2", Signer: "s",
				Counts: true, Reason: "r",
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("Verify: %v, (-want +got):\n%s", err, diff)
	}
	wantAsked := &policyv1.VerifyRequest{
		PolicyHash: "hash", TrustedRoot: "root", Name: "registry.test/app:1", ImageId: "sha256:1",
		Digests: []string{"sha256:2"}, Requirements: []string{"v1:a", "v1:b"},
		Credential:     &policyv1.RegistryCredential{Username: "u", Password: "p", IdentityToken: "i", RegistryToken: "r"},
		ListSignatures: true,
	}
	if !proto.Equal(asked, wantAsked) {
		t.Errorf("asked %v; want %v", asked, wantAsked)
	}
}

func TestVerifyAsAnonymous(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	var asked *policyv1.VerifyRequest
	serveFake(t, path, &fakeServer{verify: func(_ context.Context, r *policyv1.VerifyRequest) (*policyv1.VerifyResponse,
		error,
	) {
		asked = r
		return verifyResponse(), nil
	}})
	r := verifyRequest()
	r.Digests = slices.Repeat([]string{"sha256:2"}, 100)
	if _, err := dial(t, path, policyclient.Options{}).Verify(t.Context(), r); err != nil ||
		asked.GetCredential() != nil || len(asked.GetDigests()) != 64 {
		t.Errorf("asked with credential %v and %d digests, %v; want none and 64", asked.GetCredential() != nil,
			len(asked.GetDigests()), err)
	}
}

func TestVerifyChecksAnswers(t *testing.T) {
	var response *policyv1.VerifyResponse
	c := verifier(t, &response)
	for _, tc := range []struct {
		name   string
		change func(*policyv1.VerifyResponse)
		want   error
	}{
		{"other policies", func(r *policyv1.VerifyResponse) { r.PolicyHash = "x" }, policyclient.ErrOtherPolicies},
		{"another trusted root", func(r *policyv1.VerifyResponse) { r.TrustedRoot = "" }, policyclient.ErrOtherPolicies},
		{"no results", func(r *policyv1.VerifyResponse) { r.Results = nil }, policyclient.ErrFailed},
		{"a result is missing", func(r *policyv1.VerifyResponse) { r.Results = r.GetResults()[:1] }, policyclient.ErrFailed},
		{
			"a result more", func(r *policyv1.VerifyResponse) { r.Results = append(r.GetResults(), r.GetResults()[0]) },
			policyclient.ErrFailed,
		},
		{"another " +
			"requirement", func(r *policyv1.VerifyResponse) { r.GetResults()[0].Requirement = "v1:b" }, policyclient.ErrFailed},
		{"another order", func(r *policyv1.VerifyResponse) { slices.Reverse(r.GetResults()) }, policyclient.ErrFailed},
		{"met, with a reason", func(r *policyv1.VerifyResponse) {
			r.GetResults()[0].Reason = "SIGNATURE_MISS" +
				"ING"
		}, policyclient.ErrFailed},
		{"no reason", func(r *policyv1.VerifyResponse) { r.GetResults()[1].Reason = "" }, policyclient.ErrFailed},
		{"an unknown reason", func(r *policyv1.VerifyResponse) { r.GetResults()[1].Reason = "NEW" }, policyclient.ErrFailed},
		{
			"a long message", func(r *policyv1.VerifyResponse) { r.GetResults()[1].Message = strings.Repeat("x", 3<<10) },
			policyclient.ErrFailed,
		},
		{"a long signer", func(r *policyv1.VerifyResponse) {
			r.GetResults()[0].Signers = []string{strings.Repeat("x",
				3<<10)}
		}, policyclient.ErrFailed},
		{"many sign" +
			"ers", func(r *policyv1.VerifyResponse) { r.GetResults()[0].Signers = make([]string, 65) }, policyclient.ErrFailed},
		{
			"a long digest", func(r *policyv1.VerifyResponse) { r.GetResults()[0].Digest = strings.Repeat("x", 257) },
			policyclient.ErrFailed,
		},
		{"signatures, not wan" +
			"ted", func(r *policyv1.VerifyResponse) { r.Signatures = []*policyv1.FoundSignature{{}} }, policyclient.ErrFailed},
		{
			"too large", func(r *policyv1.VerifyResponse) { r.GetResults()[1].Message = strings.Repeat("x", 128<<10) },
			policyclient.ErrFailed,
		},
		{"too many fields", func(r *policyv1.VerifyResponse) {
			r.ProtoReflect().SetUnknown([]byte(strings.Repeat("\x98\x06\x00", 30_000)))
		}, policyclient.ErrFailed},
	} {
		response = verifyResponse()
		tc.change(response)
		got, err := c.Verify(t.Context(), verifyRequest())
		if got.Results != nil || !errors.Is(err, tc.want) || err != nil && len(err.Error()) > 512 {
			t.Errorf("%s: %v, %v; want none, %v", tc.name, got, err, tc.want)
		}
	}
}

func TestVerifyEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serveFake(t, path, &fakeServer{verify: func(ctx context.Context, _ *policyv1.VerifyRequest) (*policyv1.VerifyResponse,
		error,
	) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	if _, err := dial(t, path, policyclient.Options{Verify: 50 * time.Millisecond}).Verify(t.Context(),
		verifyRequest()); !errors.Is(err, policyclient.ErrTimedOut) {
		t.Errorf("after the limit: %v; want ErrTimedOut", err)
	}
}
