package cli

import (
	"context"
	"slices"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// A Source returns one kind of the daemon's data, such as [Names]. It returns all of it, possibly with repetitions.
type Source func(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error)

// ofImages collects from every image.
func ofImages(ctx context.Context, api adminv1.PullRecordsClient, collect func(*adminv1.Image) []string) ([]string, error) {
	images, err := Images(ctx, api, 0, nil)
	var all []string
	for _, i := range images.GetImages() {
		all = append(all, collect(i)...)
	}
	return all, err
}

// Names returns the names of images.
func Names(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	return ofImages(ctx, api, (*adminv1.Image).GetNames)
}

// ImageIDs returns the IDs of images.
func ImageIDs(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	return ofImages(ctx, api, func(i *adminv1.Image) []string { return []string{i.GetImageId()} })
}

// Repositories returns the repositories with records, marks or intents, and those without.
func Repositories(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	return ofImages(ctx, api, func(i *adminv1.Image) []string {
		all := slices.Clone(i.GetUntracked())
		for _, r := range i.GetRecords() {
			all = append(all, r.GetPair().GetRepository())
		}
		for _, m := range i.GetMarks() {
			all = append(all, m.GetPair().GetRepository())
		}
		return all
	})
}

// Requirements returns the requirements that images were endorsed for.
func Requirements(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	return ofEndorsements(ctx, api, func(e *adminv1.Endorsement) []string { return []string{e.GetRequirement()} })
}

// Signers returns the signers of endorsements.
func Signers(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	return ofEndorsements(ctx, api, (*adminv1.Endorsement).GetSigners)
}

// ofEndorsements collects from every endorsement.
func ofEndorsements(ctx context.Context, api adminv1.PullRecordsClient, collect func(*adminv1.Endorsement) []string) ([]string, error) {
	found, err := Endorsements(ctx, api, 0, &adminv1.ListEndorsementsRequest{})
	var all []string
	for _, e := range found.GetEndorsements() {
		all = append(all, collect(e)...)
	}
	return all, err
}

// Credentials returns the IDs of the credentials that have proved access.
func Credentials(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	return ofProofs(ctx, api, func(p *adminv1.Proof) []string { return []string{p.GetCredentialId()} })
}

// Secrets returns the Secrets that have proved access, as namespace/name.
func Secrets(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	return ofProofs(ctx, api, func(p *adminv1.Proof) []string {
		var all []string
		for _, s := range p.GetSecrets() {
			if s.GetName() != "" { // otherwise it means a namespace
				all = append(all, s.GetNamespace()+"/"+s.GetName())
			}
		}
		return all
	})
}

// ofProofs collects from every proof.
func ofProofs(ctx context.Context, api adminv1.PullRecordsClient, collect func(*adminv1.Proof) []string) ([]string, error) {
	return ofImages(ctx, api, func(i *adminv1.Image) []string {
		var all []string
		for _, r := range i.GetRecords() {
			for _, p := range r.GetProofs() {
				all = append(all, collect(p)...)
			}
		}
		return all
	})
}

// Pods returns the pods that have a grant, as namespace/name.
func Pods(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	return ofGrants(ctx, api, func(p *adminv1.PodRef) string {
		if p.GetName() == "" {
			return ""
		}
		return p.GetNamespace() + "/" + p.GetName()
	})
}

// PodUIDs returns the UIDs of the pods that have a grant.
func PodUIDs(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	return ofGrants(ctx, api, (*adminv1.PodRef).GetUid)
}

// Namespaces returns the namespaces of pods that have a grant, and of Secrets that proved access.
func Namespaces(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	pods, err := ofGrants(ctx, api, (*adminv1.PodRef).GetNamespace)
	if err != nil {
		return nil, err
	}
	secrets, err := ofProofs(ctx, api, func(p *adminv1.Proof) []string {
		var all []string
		for _, s := range p.GetSecrets() {
			all = append(all, s.GetNamespace())
		}
		return all
	})
	return append(pods, secrets...), err
}

// ofGrants collects from the pod of every grant.
func ofGrants(ctx context.Context, api adminv1.PullRecordsClient, collect func(*adminv1.PodRef) string) ([]string, error) {
	grants, err := Grants(ctx, api, 0, nil, "")
	var all []string
	for _, g := range grants.GetGrants() {
		all = append(all, collect(g.GetPod()))
	}
	return all, err
}
