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

func verifyResponse() *verified {
	return &verified{PolicyHash: "hash", TrustedRoot: "root", Results: []*fact{
		{Requirement: "v1:a", Met: true, Signers: []string{"key sha256:3"}, Digest: "sha256:2"},
		{Requirement: "v1:b", Reason: "SIGNATURE_MISSING", Message: "no signature"},
	}}
}

type (
	verify   = policyv1.VerifyRequest
	verified = policyv1.VerifyResponse
	fact     = policyv1.VerifyResult
)

// verifier returns a client of a server that answers with *response, and keeps what it is asked.
func verifier(t *testing.T, response **verified, asked *verify) *policyclient.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	serveFake(t, path, &fakeServer{verify: func(_ context.Context, r *verify) (*verified, error) {
		proto.Reset(asked)
		proto.Merge(asked, r)
		return *response, nil
	}})
	return dial(t, path, policyclient.Options{Reconnect: time.Millisecond})
}

func TestVerify(t *testing.T) {
	response := verifyResponse()
	response.Signatures = []*policyv1.FoundSignature{{
		Repository: "registry.test/app", FoundBy: "referrers", Digest: "sha256:4", Subject: "sha256:2", Signer: "s",
		Counts: true, Reason: "r",
	}}
	response.Results[1].Conditions = []string{"denies: found 1"}
	asked := &verify{}
	r := verifyRequest()
	r.Credential = admission.Login{Username: "u", Password: "p", IdentityToken: "i", RegistryToken: "r"}
	r.ListSignatures = true
	got, err := verifier(t, &response, asked).Verify(t.Context(), r)
	want := requirement.Report{
		Results: []requirement.Result{
			{Requirement: "v1:a", Met: true, Signers: []string{"key sha256:3"}, Digest: "sha256:2"},
			{
				Requirement: "v1:b", Reason: requirement.SignatureMissing, Message: "no signature",
				Conditions: []string{"denies: found 1"},
			},
		},
		Signatures: []requirement.Signature{{
			Repository: "registry.test/app", FoundBy: "referrers", Digest: "sha256:4", Subject: "sha256:2", Signer: "s",
			Counts: true, Reason: "r",
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("Verify: %v, (-want +got):\n%s", err, diff)
	}
	wantAsked := &verify{
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
	asked, response := &verify{}, verifyResponse()
	r := verifyRequest()
	r.Digests = slices.Repeat([]string{"sha256:2"}, 100)
	if _, err := verifier(t, &response, asked).Verify(t.Context(), r); err != nil || asked.GetCredential() != nil ||
		len(asked.GetDigests()) != 64 {
		t.Errorf("asked with credential %v and %d digests, %v; want none and 64", asked.GetCredential() != nil,
			len(asked.GetDigests()), err)
	}
}

func TestVerifyChecksAnswers(t *testing.T) {
	var response *verified
	c := verifier(t, &response, &verify{})
	long := strings.Repeat("x", 3<<10)
	for name, change := range map[string]func(r *verified, first, second *fact){
		"no results":          func(r *verified, _, _ *fact) { r.Results = nil },
		"a result is missing": func(r *verified, _, _ *fact) { r.Results = r.GetResults()[:1] },
		"a result more":       func(r *verified, first, _ *fact) { r.Results = append(r.GetResults(), first) },
		"another requirement": func(_ *verified, first, _ *fact) { first.Requirement = "v1:b" },
		"another order":       func(r *verified, _, _ *fact) { slices.Reverse(r.GetResults()) },
		"met, with a reason":  func(_ *verified, first, _ *fact) { first.Reason = "SIGNATURE_MISSING" },
		"no reason":           func(_ *verified, _, second *fact) { second.Reason = "" },
		"an unknown reason":   func(_ *verified, _, second *fact) { second.Reason = "NEW" },
		"a long message":      func(_ *verified, _, second *fact) { second.Message = long },
		"a long signer":       func(_ *verified, first, _ *fact) { first.Signers = []string{long} },
		"many signers":        func(_ *verified, first, _ *fact) { first.Signers = make([]string, 65) },
		"a long digest":       func(_ *verified, first, _ *fact) { first.Digest = long[:257] },
		"signatures, not wanted": func(r *verified, _, _ *fact) {
			r.Signatures = []*policyv1.FoundSignature{{}}
		},
		"too large": func(_ *verified, _, second *fact) { second.Message = strings.Repeat(long, 50) },
		"too many fields": func(r *verified, _, _ *fact) {
			r.ProtoReflect().SetUnknown([]byte(strings.Repeat("\x98\x06\x00", 30_000)))
		},
		"other policies":       func(r *verified, _, _ *fact) { r.PolicyHash = "x" },
		"another trusted root": func(r *verified, _, _ *fact) { r.TrustedRoot = "" },
	} {
		response = verifyResponse()
		change(response, response.GetResults()[0], response.GetResults()[1])
		want := policyclient.ErrFailed
		if strings.HasPrefix(name, "other") || strings.HasSuffix(name, "root") {
			want = policyclient.ErrOtherPolicies
		}
		got, err := c.Verify(t.Context(), verifyRequest())
		if got.Results != nil || !errors.Is(err, want) || len(err.Error()) > 512 {
			t.Errorf("%s: %v, %v; want none, %v", name, got, err, want)
		}
	}
}

func TestVerifyEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serveFake(t, path, &fakeServer{verify: func(ctx context.Context, _ *verify) (*verified, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	if _, err := dial(t, path, policyclient.Options{Verify: 50 * time.Millisecond}).Verify(t.Context(),
		verifyRequest()); !errors.Is(err, policyclient.ErrTimedOut) {
		t.Errorf("after the limit: %v; want ErrTimedOut", err)
	}
}
