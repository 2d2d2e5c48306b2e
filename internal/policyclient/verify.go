package policyclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// Reasons of a VerifyResult. RegistryUnavailable is a failure, which says nothing about the image; the others are denials.
const (
	SignatureMissing = "SIGNATURE_MISSING"
	SignatureInvalid = "SIGNATURE_INVALID"
	IdentityMismatch = "IDENTITY_MISMATCH"
	ContentMismatch  = "CONTENT_MISMATCH"
	// RegistryDenied is for an image whose registry does not give its signatures to the credential.
	RegistryDenied = "REGISTRY_DENIED"
	// RegistryUnavailable is for an image whose registry was not reached.
	RegistryUnavailable = "REGISTRY_UNAVAILABLE"
	// LimitExceeded is for an image whose signatures are too many, or too large, or were not received in time.
	LimitExceeded = "LIMIT_EXCEEDED"
)

func verifyReasons() []string {
	return []string{SignatureMissing, SignatureInvalid, IdentityMismatch, ContentMismatch, RegistryDenied, RegistryUnavailable, LimitExceeded}
}

// A RegistryCredential is a credential for a registry, with the fields of AuthConfig of the CRI. The zero one is anonymous. It is not
// printed by fmt, by loggers or as JSON.
type RegistryCredential struct {
	Username, Password, IdentityToken, RegistryToken string
}

const redacted = "[redacted]"

// Format implements fmt.Formatter.
func (RegistryCredential) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalLog implements logr.Marshaler.
func (RegistryCredential) MarshalLog() any { return redacted }

// MarshalText implements encoding.TextMarshaler.
func (RegistryCredential) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// A VerifyRequest asks which requirements an image meets.
type VerifyRequest struct {
	// PolicyHash is the hash of the caller's policy files, and TrustedRoot identifies its trusted root; "" if it has none.
	PolicyHash, TrustedRoot string
	// Name is the image as the pod has it, and ImageID the ID that the image has on the node. "" means the image that the registry has under the
	// name; nothing may be stored by such an answer.
	Name, ImageID string
	// Digests are digests of manifests or indexes that can lead to the image. They are hints: the first 64 are used.
	Digests []string
	// Requirements are the hashes of the requirements. None may be there twice.
	Requirements []string
	// Credential is that of the pull.
	Credential RegistryCredential
	// ListSignatures asks for the signatures that are found.
	ListSignatures bool
}

// A Verification says which requirements an image meets.
type Verification struct {
	// Results has one result for each requirement of the request, in its order.
	Results []VerifyResult
	// Signatures are those that were found, if the request asks for them.
	Signatures []FoundSignature
}

// A VerifyResult is about one requirement.
type VerifyResult struct {
	// Requirement is the hash of the requirement.
	Requirement string
	// Met reports whether the image meets it. Reason and Message are why not; both are "" if it does.
	Met             bool
	Reason, Message string
	// Signers are those that the requirement names and that have signed, also if they are too few.
	Signers []string
	// Digest is the digest of the manifest or index that is signed and leads to the image; "" if there is none.
	Digest string
}

// Unavailable reports whether the result is a failure, which says nothing about the image.
func (r VerifyResult) Unavailable() bool { return !r.Met && r.Reason == RegistryUnavailable }

// A FoundSignature is a signature, valid or not.
type FoundSignature struct {
	// Repository is where it was found, and FoundBy how: referrers, fallback-tag, sig-tag or bundles.
	Repository, FoundBy string
	// Digest is that of the manifest or file that holds it, and Subject that of what it is attached to.
	Digest, Subject string
	// Signer has signed: the fingerprint of a key, or subject and issuer of a certificate; "" if it is not known.
	Signer string
	// Counts reports whether it counts for one of the requirements, and Reason why or why not.
	Counts bool
	Reason string
}

// Verify asks which requirements an image meets. The registry that the name says is asked, and it can take more than a minute. An error wraps
// one of the causes of this package, or is that of ctx if the caller canceled it; nothing is then known about the image.
func (c *Client) Verify(ctx context.Context, r VerifyRequest) (Verification, error) {
	message := &policyv1.VerifyRequest{
		PolicyHash: r.PolicyHash, TrustedRoot: r.TrustedRoot, Name: r.Name, ImageId: r.ImageID, Digests: r.Digests[:min(len(r.Digests), maxDigests)],
		Requirements: r.Requirements, ListSignatures: r.ListSignatures,
	}
	if r.Credential != (RegistryCredential{}) {
		message.Credential = &policyv1.RegistryCredential{
			Username: r.Credential.Username, Password: r.Credential.Password,
			IdentityToken: r.Credential.IdentityToken, RegistryToken: r.Credential.RegistryToken,
		}
	}
	response, err := ask(ctx, c, c.options.Verify, func(ctx context.Context) (*policyv1.VerifyResponse, error) {
		return c.policy.Verify(ctx, message, r.limits()...)
	})
	if err != nil {
		return Verification{}, err
	}
	return verificationOf(r, response)
}

// verificationOf returns what an answer says, an error unless it is one for the request.
func verificationOf(r VerifyRequest, response *policyv1.VerifyResponse) (Verification, error) {
	switch {
	case response.GetPolicyHash() != r.PolicyHash:
		return Verification{}, fmt.Errorf("%w: the answer is by %.12s, the request by %.12s", ErrOtherPolicies, response.GetPolicyHash(), r.PolicyHash)
	case response.GetTrustedRoot() != r.TrustedRoot:
		return Verification{}, fmt.Errorf("%w: the answer is by the trusted root %.12q, the request by %.12q", ErrOtherPolicies, response.GetTrustedRoot(), r.TrustedRoot)
	case len(response.GetResults()) != len(r.Requirements):
		return Verification{}, fmt.Errorf("%w: %d results for %d requirements", ErrFailed, len(response.GetResults()), len(r.Requirements))
	case len(response.GetSignatures()) > r.maxSignatures():
		return Verification{}, fmt.Errorf("%w: %d signatures; allowed are %d", ErrFailed, len(response.GetSignatures()), r.maxSignatures())
	}
	var v Verification
	for i, got := range response.GetResults() {
		result := VerifyResult{
			Requirement: got.GetRequirement(), Met: got.GetMet(), Reason: got.GetReason(), Message: got.GetMessage(),
			Signers: got.GetSigners(), Digest: got.GetDigest(),
		}
		if err := result.check(r.Requirements[i]); err != nil {
			return Verification{}, fmt.Errorf("%w: result %d: %w", ErrFailed, i, err)
		}
		v.Results = append(v.Results, result)
	}
	for _, got := range response.GetSignatures() {
		v.Signatures = append(v.Signatures, FoundSignature{
			Repository: got.GetRepository(), FoundBy: got.GetFoundBy(), Digest: got.GetDigest(), Subject: got.GetSubject(), Signer: got.GetSigner(),
			Counts: got.GetCounts(), Reason: got.GetReason(),
		})
	}
	return v, nil
}

// check returns why a result is not one about a requirement. A reason that is not known is not a denial, because a later version may mean a failure.
func (r VerifyResult) check(requirement string) error {
	switch {
	case r.Requirement != requirement:
		return fmt.Errorf("is about requirement %.64q, not %q", r.Requirement, requirement)
	case r.Met && (r.Reason != "" || r.Message != ""):
		return fmt.Errorf("is met, and has the reason %.64q", r.Reason)
	case !r.Met && !slices.Contains(verifyReasons(), r.Reason):
		return fmt.Errorf("has the reason %.64q, which is not known", r.Reason)
	case len(r.Digest) > maxDigest, len(r.Message) > maxText, len(r.Signers) > maxSigners,
		slices.ContainsFunc(r.Signers, func(s string) bool { return len(s) > maxText }):
		return errors.New("is larger than allowed")
	}
	return nil
}
