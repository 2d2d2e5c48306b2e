package adminapi

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Signatures asks about the signatures of images by the policies in use. Its methods may be called concurrently.
type Signatures interface {
	// Rules returns the rules in use; a set without rules if no policy requires signatures.
	Rules() *requirement.Set
	// Verify has requirements verified, and stores nothing. It sets the hashes of the request.
	Verify(ctx context.Context, r policyclient.VerifyRequest) (requirement.Report, error)
}

// VerifyImage has the signatures of an image verified now.
func (s *Server) VerifyImage(
	ctx context.Context, req *adminv1.VerifyImageRequest,
) (*adminv1.VerifyImageResponse, error) {
	name := imageref.New(req.GetImage())
	if !name.Parsed() || name.MayBeImageID() {
		return nil, status.Errorf(codes.InvalidArgument,
			"image %q: must be the name of an image, as in registry.example/team/app:1.4", text(req.GetImage()))
	}
	if len(s.c.Signatures.Rules().Rules()) == 0 {
		return nil, status.Error(codes.FailedPrecondition,
			"no policy in use requires signatures; pullgatectl policy list shows the policies")
	}
	present, err := s.c.Runtime.Image(ctx, req.GetImage())
	if err != nil {
		present = tracker.Image{} // the one of the registry is verified
	}
	applied := s.c.Signatures.Rules().For(req.GetNamespace(), name)
	answer := &adminv1.VerifyImageResponse{Image: &adminv1.Pair{ImageId: text(present.ID), Repository: name.Repository()}}
	if applied.Default != requirement.NoDefault {
		answer.DefaultRule = verifiedRule(applied.DefaultRule)
		answer.DefaultRule.Met = applied.Default == requirement.AllowUnmatched
		answer.DefaultRule.Requires = applied.Default.String()
	}
	ask := policyclient.VerifyRequest{
		Name: req.GetImage(), ImageID: present.ID, ListSignatures: true,
		Credential: admission.Login{Username: req.GetCredential().GetUsername(), Password: req.GetCredential().GetPassword()},
	}
	for _, n := range present.Names {
		if d := n.Name().Digest(); d != "" && n.Repository() == name.Repository() {
			ask.Digests = append(ask.Digests, d)
		}
	}
	for _, r := range applied.Rules {
		if r.NeedsSignature() && !slices.Contains(ask.Requirements, r.Hash) {
			ask.Requirements = append(ask.Requirements, r.Hash)
		}
	}
	var v requirement.Report
	if len(ask.Requirements) > 0 {
		if v, err = s.c.Signatures.Verify(ctx, ask); err != nil {
			if errors.Is(err, context.Canceled) {
				return nil, status.FromContextError(err).Err()
			}
			return nil, status.Errorf(codes.Unavailable, "the signatures could not be verified: %s", text(err.Error()))
		}
	}
	for _, r := range applied.Rules {
		answer.Rules = append(answer.Rules, resultOf(r, name, v))
	}
	for _, f := range v.Signatures {
		answer.Signatures = append(answer.Signatures, &adminv1.ImageSignature{
			Repository: text(f.Repository), FoundBy: text(f.FoundBy), Digest: text(f.Digest), Subject: text(f.Subject),
			Signer: text(f.Signer), Counts: f.Counts, Reason: text(f.Reason),
			PredicateType: text(f.PredicateType), Conditions: all(f.Conditions, text),
		})
	}
	return answer, nil
}

func resultOf(r *requirement.Rule, name imageref.Ref, v requirement.Report) *adminv1.VerifiedRule {
	result := verifiedRule(r)
	judged := requirement.ImageRules{Rules: []*requirement.Rule{r}}.Judge(name)
	for _, f := range judged.Findings {
		if f.Answer == admission.Deny {
			result.Reason, result.Message = string(f.Reason), text(f.Message)
			return result
		}
	}
	if len(judged.Signed) == 0 {
		result.Met = true
		return result
	}
	for _, got := range v.Results {
		if got.Requirement == r.Hash {
			result.Met, result.Reason, result.Message, result.Digest = got.Met, got.Reason, text(got.Message), text(got.Digest)
			result.Signers, result.Conditions = all(got.Signers, text), all(got.Conditions, text)
		}
	}
	return result
}

func verifiedRule(r *requirement.Rule) *adminv1.VerifiedRule {
	return &adminv1.VerifiedRule{
		Kind: r.Kind, Policy: r.Policy, Rule: r.Name, Audit: r.Mode == requirement.Audit, Requires: r.Requires(),
	}
}
