package adminapi

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

var credentialForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// wholeID refuses a text that can only be the beginning of an image ID: a correction must not depend on a guess.
func wholeID(id string) error {
	if lower := strings.ToLower(id); idForm.MatchString(lower) && (len(id) != len("sha256:")+64 || lower != id) {
		return invalid("image_id: %q is not a whole image ID; allowed is one as in ListImages, sha256: and 64 digits, "+
			"lower case", id)
	}
	return nil
}

// Revoke revokes proofs.
func (s *Server) Revoke(ctx context.Context, req *adminv1.RevokeRequest) (*adminv1.RevokeResponse, error) {
	r := tracker.Revocation{DryRun: req.GetDryRun()}
	if id := req.GetCredentialId(); id != "" && !credentialForm.MatchString(id) {
		return nil, invalid("credential_id: %q is none; allowed are 64 hexadecimal digits, lower case", id)
	}
	repository, err := repositoryAlone(req.GetRepository())
	if err != nil {
		return nil, err
	}
	if err := wholeID(req.GetImageId()); err != nil {
		return nil, err
	}
	if s := req.GetSecret(); s.GetUid() == "" && (s.GetName() == "") != (s.GetNamespace() == "") {
		return nil, invalid("secret: give its UID, or both its namespace and its name")
	}
	secret, err := secretOf("", req.GetSecret(), req.GetNamespace())
	if err != nil {
		return nil, err
	}
	r.Revocation = records.Revocation{
		ImageID: req.GetImageId(), Repository: repository, Credential: credential.ID(req.GetCredentialId()), Secret: secret,
	}
	gone, err := s.c.Tracker.Revoke(ctx, r)
	if err != nil {
		return nil, err
	}
	rules := s.c.Tracker.Rules()
	return &adminv1.RevokeResponse{
		Proofs: all(gone.Proofs, func(p records.RevokedProof) *adminv1.RevokedProof {
			return &adminv1.RevokedProof{Pair: pairTo(p.Pair), Proof: proofTo(rules, p.Proof)}
		}),
		Closed: all(gone.Closed, pairTo),
		Grants: all(gone.Grants, s.names().grant),
		Marked: all(gone.Marked, markTo),
	}, nil
}

// repositoryAlone is repositoryOf without a tag and a digest, which would be ignored: records and marks are by
// repository.
func repositoryAlone(name string) (string, error) {
	repository, err := repositoryOf("repository", name)
	if err == nil && !imageref.NameOnly(name) {
		err = invalid("repository: %q has a tag or a digest, and all images of a repository are selected; give the "+
			"repository alone, or image_id", name)
	}
	return repository, err
}

func selection(repository, imageID, allName string, whole bool) (of records.Selection, err error) {
	of = records.Selection{ImageID: imageID, Repository: repository, All: whole}
	if of.All && (of.ImageID != "" || of.Repository != "") {
		return of, invalid("%s excludes repository and image_id; give one or the other", allName)
	}
	return of, wholeID(imageID)
}

// AcceptPreloaded marks pairs as preloaded.
func (s *Server) AcceptPreloaded(
	ctx context.Context, req *adminv1.AcceptPreloadedRequest,
) (*adminv1.AcceptPreloadedResponse, error) {
	repository, err := repositoryOf("repository", req.GetRepository())
	if err != nil {
		return nil, err
	}
	of, err := selection(repository, req.GetImageId(), "all_untracked", req.GetAllUntracked())
	if err != nil {
		return nil, err
	}
	a := tracker.Acceptance{
		Selection: of, DryRun: req.GetDryRun(), IncludingProved: req.GetIncludingProved(),
		Confirmation: req.GetConfirmation(),
	}
	if !imageref.NameOnly(req.GetRepository()) {
		a.Name, _ = imageref.Parse(req.GetRepository()) // repositoryOf has parsed it
	}
	accepted, err := s.c.Tracker.AcceptMarks(ctx, a)
	if err != nil {
		return nil, err
	}
	rules := s.c.Tracker.Rules()
	return &adminv1.AcceptPreloadedResponse{
		Accepted: all(accepted.Pairs, pairTo), Confirmation: accepted.Confirmation,
		Proved: all(accepted.Proved, func(r records.Record) *adminv1.Record { return recordTo(rules, r) }),
	}, nil
}

// ForgetPreloaded removes marks.
func (s *Server) ForgetPreloaded(
	ctx context.Context, req *adminv1.ForgetPreloadedRequest,
) (*adminv1.ForgetPreloadedResponse, error) {
	repository, err := repositoryAlone(req.GetRepository())
	if err != nil {
		return nil, err
	}
	of, err := selection(repository, req.GetImageId(), "all", req.GetAll())
	if err != nil {
		return nil, err
	}
	gone, err := s.c.Tracker.ForgetMarks(ctx, of, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	return &adminv1.ForgetPreloadedResponse{
		Forgotten: all(gone.Marks, markTo), Grants: all(gone.Grants, s.names().grant), StillOpen: all(gone.Open, pairTo),
	}, nil
}

// RevokeEndorsements deletes endorsements.
func (s *Server) RevokeEndorsements(
	ctx context.Context, req *adminv1.RevokeEndorsementsRequest,
) (*adminv1.RevokeEndorsementsResponse, error) {
	repository, err := repositoryAlone(req.GetRepository())
	if err != nil {
		return nil, err
	}
	pairs, err := selection(repository, req.GetImageId(), "all", req.GetAll())
	if err != nil {
		return nil, err
	}
	of := records.EndorsementSelection{
		ImageID: pairs.ImageID, Repository: pairs.Repository, All: pairs.All,
		Requirement: req.GetRequirement(), Digest: req.GetDigest(), Signer: req.GetSigner(),
	}
	switch {
	case of.Empty():
		return nil, tracker.ErrNothingSelected
	case of.All && of != records.EndorsementSelection{All: true}:
		return nil, invalid("all excludes requirement, signer and digest; give one or the other")
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	var found []records.Endorsement
	if req.GetDryRun() {
		found, err = s.c.Store.SelectedEndorsements(of)
	} else {
		s.c.RevokingEndorsements()
		found, err = s.c.Store.RevokeEndorsements(of)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", tracker.ErrStore, err)
	}
	if !req.GetDryRun() {
		s.c.Log.Info("Endorsements revoked", "imageID", of.ImageID, "repository", of.Repository, "requirement",
			of.Requirement, "signer", of.Signer, "digest", of.Digest, "all", of.All, "endorsements", len(found))
	}
	return &adminv1.RevokeEndorsementsResponse{Endorsements: all(found, s.endorsements())}, nil
}

// EndDistrust ends the distrust of the store.
func (s *Server) EndDistrust(
	ctx context.Context, req *adminv1.EndDistrustRequest,
) (*adminv1.EndDistrustResponse, error) {
	ended, due, err := s.c.Tracker.EndDistrust(ctx, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		s.c.Trusted()
	}
	return &adminv1.EndDistrustResponse{Ended: distrustTo(&ended), Accepted: all(due, pairTo)}, nil
}
