package policyclient

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// A VerifyRequest asks which requirements an image meets.
type VerifyRequest struct {
	PolicyHash, TrustedRoot string // of the caller; the trusted root is "" if it has none
	// Name is the image as the pod has it, and ImageID the ID that the image has on the node. "" means the image that
	// the registry has under the name; nothing may be stored by such an answer.
	Name, ImageID string
	// Digests are digests of manifests or indexes that can lead to the image. They are hints: the first 64 are used.
	Digests []string
	// Requirements are the hashes of the requirements. None may be there twice.
	Requirements []string
	Credential   admission.Login // of the pull
	// ListSignatures asks for the signatures that are found.
	ListSignatures bool
	// Background says that no pull waits for the answer, so that there is no credential. See the API.
	Background bool
}

// Verify asks which requirements an image meets, and can take more than a minute, because pullgate-policyd asks the
// registry. Errors are as those of Review; nothing is then known about the image.
func (c *Client) Verify(ctx context.Context, r VerifyRequest) (requirement.Report, error) {
	message := &policyv1.VerifyRequest{
		PolicyHash: r.PolicyHash, TrustedRoot: r.TrustedRoot, Name: r.Name, ImageId: r.ImageID,
		Digests:      r.Digests[:min(len(r.Digests), maxDigests)],
		Requirements: r.Requirements, ListSignatures: r.ListSignatures,
	}
	if r.Background {
		message.Requirements, message.BackgroundRequirements = nil, r.Requirements
	}
	if !r.Credential.Anonymous() {
		message.Credential = &policyv1.RegistryCredential{
			Username: r.Credential.Username, Password: r.Credential.Password,
			IdentityToken: r.Credential.IdentityToken, RegistryToken: r.Credential.RegistryToken,
		}
	}
	response, err := ask(ctx, c, c.options.Verify, c.policy.Verify, message, r.limits())
	if err != nil {
		return requirement.Report{}, err
	}
	return verificationOf(r, response)
}

func verificationOf(r VerifyRequest, response *policyv1.VerifyResponse) (requirement.Report, error) {
	var v requirement.Report
	switch results, signatures := len(response.GetResults()), len(response.GetSignatures()); {
	case response.GetPolicyHash() != r.PolicyHash:
		return v, fmt.Errorf("%w: the answer is by %.12s, the request by %.12s", ErrOtherPolicies,
			response.GetPolicyHash(), r.PolicyHash)
	case response.GetTrustedRoot() != r.TrustedRoot:
		return v, fmt.Errorf("%w: the answer is by the trusted root %.12q, the request by %.12q", ErrOtherPolicies,
			response.GetTrustedRoot(), r.TrustedRoot)
	case results != len(r.Requirements):
		return v, fmt.Errorf("%w: %d results for %d requirements", ErrFailed, results, len(r.Requirements))
	case signatures > r.maxSignatures():
		return v, fmt.Errorf("%w: %d signatures; allowed are %d", ErrFailed, signatures, r.maxSignatures())
	}
	for i, got := range response.GetResults() {
		result := requirement.Result{
			Requirement: got.GetRequirement(), Met: got.GetMet(), Reason: got.GetReason(), Message: got.GetMessage(),
			Signers: got.GetSigners(), Digest: got.GetDigest(), ReadsClock: got.GetReadsClock(),
			Conditions: got.GetConditions(),
		}
		if until := got.GetUntil(); until != nil {
			result.Until = until.AsTime()
		}
		for _, a := range got.GetAttestations() {
			result.Attestations = append(result.Attestations,
				requirement.Attestation{PredicateType: a.GetPredicateType(), Digest: a.GetDigest()})
		}
		if err := check(result, r.Requirements[i]); err != nil {
			return requirement.Report{}, fmt.Errorf("%w: result %d: %w", ErrFailed, i, err)
		}
		v.Results = append(v.Results, result)
	}
	for _, got := range response.GetSignatures() {
		v.Signatures = append(v.Signatures, requirement.Signature{
			Repository: got.GetRepository(), FoundBy: got.GetFoundBy(), Digest: got.GetDigest(), Subject: got.GetSubject(),
			Signer: got.GetSigner(), Counts: got.GetCounts(), Reason: got.GetReason(),
			PredicateType: got.GetPredicateType(), Conditions: got.GetConditions(),
		})
	}
	return v, nil
}

// check refuses results of other requirements and unknown reasons, by which a later version may mean a failure.
func check(r requirement.Result, hash string) error {
	switch {
	case r.Requirement != hash:
		return fmt.Errorf("is about requirement %.64q, not %q", r.Requirement, hash)
	case r.Met && (r.Reason != "" || r.Message != ""):
		return fmt.Errorf("is met, and has the reason %.64q", r.Reason)
	case !r.Met && !slices.Contains(requirement.Reasons(), r.Reason):
		return fmt.Errorf("has the reason %.64q, which is not known", r.Reason)
	case slices.ContainsFunc(r.Attestations, func(a requirement.Attestation) bool {
		return len(a.PredicateType) > maxText || len(a.Digest) > maxDigest
	}), len(r.Attestations) > maxSigners, len(r.Digest) > maxDigest, len(r.Message) > maxText, len(r.Signers) > maxSigners,
		slices.ContainsFunc(r.Signers, func(s string) bool { return len(s) > maxText }):
		return errors.New("is larger than allowed")
	}
	return nil
}
