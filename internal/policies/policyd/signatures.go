package policyd

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// Limits of a request for a verification, and of its answer. pullgated uses no larger answer.
const (
	maxRequirements = 256
	maxDigests      = 64
	maxName         = 4 << 10
	// maxMessage, maxSigner and maxSigners bound the texts of a result.
	maxMessage, maxSigner, maxSigners = 1 << 10, 512, 32
	// maxSignatures is how many signatures an answer lists.
	maxSignatures = 200
)

// newSignatures returns the service that has signatures verified.
func newSignatures(o Options, m *metrics) (*verify.Service, error) {
	log := o.Log.WithName("signatures")
	return verify.NewService(verify.ServiceOptions{
		Config: o.Config, Log: log, Verify: o.Verify,
		Requested: func(outcome string) { m.requests.WithLabelValues(outcome).Inc() },
		Verified:  func(outcome string) { m.verified.WithLabelValues(outcome).Inc() },
		OnPanic: func(value any, stack []byte) {
			m.panics.Inc()
			log.Error(fmt.Errorf("panic: %v", value), "A verification panicked, the image still needs its signatures",
				"stack", string(stack))
		},
	})
}

// Verify implements policyv1.PolicyServer.
func (s *nodeServer) Verify(ctx context.Context, r *policyv1.VerifyRequest) (*policyv1.VerifyResponse, error) {
	name := imageref.New(r.GetName())
	if err := checkVerify(r, name); err != nil {
		return nil, err
	}
	set := s.policies.with(policyfiles.Version{Hash: r.GetPolicyHash(), TrustedRoot: r.GetTrustedRoot()}, true)
	if set == nil {
		s.metrics.mismatches.Inc()
		return nil, status.Errorf(codes.FailedPrecondition, "%s: pullgated has %.12s and the trusted root %.12q",
			s.inUse(), r.GetPolicyHash(), r.GetTrustedRoot())
	}
	c := r.GetCredential()
	report, err := s.policies.signatures.Verify(ctx, set.rules, verify.Request{
		Name: name, ImageID: r.GetImageId(), Digests: r.GetDigests(), Requirements: r.GetRequirements(),
		List: r.GetListSignatures(), Credential: admission.Login{
			Username: c.GetUsername(), Password: c.GetPassword(), IdentityToken: c.GetIdentityToken(), RegistryToken: c.GetRegistryToken(),
		},
	})
	if err != nil {
		return nil, s.notVerified(ctx, name, err)
	}
	return responseOf(set.version(), report), nil
}

func checkVerify(r *policyv1.VerifyRequest, name imageref.Ref) error {
	seen := map[string]bool{}
	for _, hash := range r.GetRequirements() {
		if seen[hash] {
			return status.Errorf(codes.InvalidArgument, "requirement %.80q is there twice", hash)
		}
		seen[hash] = true
	}
	switch {
	case r.GetPolicyHash() == "":
		return status.Error(codes.InvalidArgument, "policy_hash is empty")
	case len(r.GetName()) > maxName || !name.Parsed() || name.MayBeImageID():
		return status.Errorf(codes.InvalidArgument, "name %.80q is not a repository with a tag or digest", r.GetName())
	case len(seen) == 0 || len(seen) > maxRequirements:
		return status.Errorf(codes.InvalidArgument, "%d requirements; allowed are 1 to %d", len(seen), maxRequirements)
	case len(r.GetDigests()) > maxDigests:
		return status.Errorf(codes.InvalidArgument, "%d digests; allowed are %d", len(r.GetDigests()), maxDigests)
	}
	return nil
}

// notVerified returns the status for a verification without a result.
func (s *nodeServer) notVerified(ctx context.Context, name imageref.Ref, err error) error {
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, verify.ErrUnknownRequirement), errors.Is(err, verify.ErrName):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, verify.ErrBusy):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, context.Canceled): // the process stops
		return status.Error(codes.Unavailable, programName+" stops")
	case errors.Is(err, verify.ErrPanic): // it is logged
	default:
		s.log.Error(err, "Failed to verify an image: it still needs its signatures", "image", name.String())
	}
	return status.Error(codes.Internal, "internal error, see the log of "+programName)
}

// responseOf returns the answer for a report, whose texts can be those of a registry.
func responseOf(v policyfiles.Version, report requirement.Report) *policyv1.VerifyResponse {
	response := &policyv1.VerifyResponse{PolicyHash: v.Hash, TrustedRoot: v.TrustedRoot}
	left := budget(maxTexts)
	for _, r := range report.Results {
		result := &policyv1.VerifyResult{Requirement: r.Requirement, Met: r.Met, Digest: r.Digest}
		if !r.Met {
			result.Reason, result.Message = r.Reason, left.clean(r.Message, maxMessage)
		}
		response.Results = append(response.Results, result)
	}
	for i, r := range report.Results {
		for _, signer := range r.Signers[:min(len(r.Signers), maxSigners)] {
			if text := left.clean(signer, maxSigner); text != "" {
				response.Results[i].Signers = append(response.Results[i].Signers, text)
			}
		}
	}
	for _, f := range report.Signatures[:min(len(report.Signatures), maxSignatures)] {
		response.Signatures = append(response.Signatures, &policyv1.FoundSignature{
			Repository: f.Repository, FoundBy: f.FoundBy, Digest: f.Digest, Subject: f.Subject, Counts: f.Counts,
			Signer: left.clean(f.Signer, maxSigner), Reason: left.clean(f.Reason, maxSigner),
		})
	}
	return response
}

// clean returns the beginning of a text, and "" if it does not fit into what is left.
func (b *budget) clean(text string, limit int) string {
	text = safetext.Line(text, limit)
	if !b.fits(len(text)) {
		return ""
	}
	return text
}
