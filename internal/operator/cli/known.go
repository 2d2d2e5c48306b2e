package cli

import (
	"context"
	"slices"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// A source returns one kind of the daemon's data. It returns all of it, possibly with repetitions and empty strings.
type source func(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error)

// ofFlags returns the source of the values of each flag.
func ofFlags() map[string]source {
	return map[string]source{
		"repository":  ofImages(repositoryNames),
		"image-id":    ofImages(func(i *adminv1.Image) []string { return []string{i.GetImageId()} }),
		"credential":  ofProofs(func(p *adminv1.Proof) []string { return []string{p.GetCredentialId()} }),
		"requirement": ofEndorsements(func(e *adminv1.Endorsement) []string { return []string{e.GetRequirement()} }),
		"signer":      ofEndorsements((*adminv1.Endorsement).GetSigners),
		"secret":      fromSecrets(func(s *adminv1.SecretRef) string { return coordinates(s.GetNamespace(), s.GetName()) }),
		"pod":         ofPods(func(p *adminv1.PodRef) string { return coordinates(p.GetNamespace(), p.GetName()) }),
		"pod-uid":     ofPods((*adminv1.PodRef).GetUid),
		"namespace":   namespaces,
	}
}

// coordinates returns namespace/name; "" without a name.
func coordinates(namespace, name string) string {
	if name == "" {
		return ""
	}
	return namespace + "/" + name
}

// repositoryNames returns the repositories with records or marks, and those without.
func repositoryNames(i *adminv1.Image) []string {
	all := slices.Clone(i.GetUntracked())
	for _, r := range i.GetRecords() {
		all = append(all, r.GetPair().GetRepository())
	}
	for _, m := range i.GetMarks() {
		all = append(all, m.GetPair().GetRepository())
	}
	return all
}

// namespaces returns the namespaces of pods that have a grant, and of Secrets that proved access.
func namespaces(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
	pods, err := ofPods((*adminv1.PodRef).GetNamespace)(ctx, api)
	if err != nil {
		return nil, err
	}
	secrets, err := fromSecrets((*adminv1.SecretRef).GetNamespace)(ctx, api)
	return append(pods, secrets...), err
}

// ofImages returns the source that collects from every image.
func ofImages(collect func(*adminv1.Image) []string) source {
	return func(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
		found, _, err := List(ctx, api, 0, &adminv1.ListImagesRequest{}, adminv1.PullRecordsClient.ListImages)
		return collected(found.GetImages(), collect), err
	}
}

// ofEndorsements returns the source that collects from every endorsement.
func ofEndorsements(collect func(*adminv1.Endorsement) []string) source {
	return func(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
		found, _, err := List(ctx, api, 0, &adminv1.ListEndorsementsRequest{}, adminv1.PullRecordsClient.ListEndorsements)
		return collected(found.GetEndorsements(), collect), err
	}
}

// ofPods returns the source that collects from every pod that has a grant.
func ofPods(collect func(*adminv1.PodRef) string) source {
	return func(ctx context.Context, api adminv1.PullRecordsClient) ([]string, error) {
		found, _, err := List(ctx, api, 0, &adminv1.ListGrantsRequest{}, adminv1.PullRecordsClient.ListGrants)
		return collected(found.GetGrants(), func(g *adminv1.Grant) []string { return []string{collect(g.GetPod())} }), err
	}
}

// ofProofs returns the source that collects from every proof.
func ofProofs(collect func(*adminv1.Proof) []string) source {
	return ofImages(func(i *adminv1.Image) []string {
		return collected(i.GetRecords(), func(r *adminv1.Record) []string { return collected(r.GetProofs(), collect) })
	})
}

// ofSecrets returns the source that collects from every Secret that proved access.
func fromSecrets(collect func(*adminv1.SecretRef) string) source {
	return ofProofs(func(p *adminv1.Proof) []string {
		return collected(p.GetSecrets(), func(s *adminv1.SecretRef) []string { return []string{collect(s)} })
	})
}

func collected[E any](entries []E, collect func(E) []string) []string {
	var all []string
	for _, e := range entries {
		all = append(all, collect(e)...)
	}
	return all
}
