package cli

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pullgate/pullgate/internal/mechanics/program"
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

// CompleteFlags makes the shell complete the values of a command's flags with data from the daemon.
func (c *Console) CompleteFlags(cmd *cobra.Command) {
	for flag, from := range ofFlags() {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
				return c.complete(cmd, begun, from), cobra.ShellCompDirectiveNoFileComp
			})
		}
	}
}

// CompleteImages completes the only argument, which is an image.
func (c *Console) CompleteImages(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd, begun, ofImages((*adminv1.Image).GetNames)), cobra.ShellCompDirectiveNoFileComp
}

// patience is how long a completion waits for the daemon.
const patience = time.Second

// harmless matches text that a shell takes as one word without special meaning, however its completion scripts quote.
var harmless = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$`)

// complete returns the daemon's values with the prefix begun. Errors are not printed, so that they do not disturb the
// command line.
func (c *Console) complete(cmd *cobra.Command, begun string, from source) []string {
	quick := *c
	quick.timeout = patience
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	var all []string
	err := quick.Ask(ctx, func(ctx context.Context, api adminv1.PullRecordsClient) (err error) {
		all, err = from(ctx, api)
		return err
	})
	if err != nil {
		return nil
	}
	all = slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, begun) || !harmless.MatchString(s) })
	slices.Sort(all)
	return slices.Compact(all)
}

var (
	wholeImageID      = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	wholeCredentialID = regexp.MustCompile(`^[0-9a-f]{64}$`)
	wholeRequirement  = regexp.MustCompile(`^v[0-9]+:[0-9a-f]{64}$`)
	beginningOfID     = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
)

// IsID reports whether an argument is an image ID, or a beginning of one that is long enough, and not a name.
func IsID(image string) bool { return beginningOfID.MatchString(strings.TrimPrefix(image, "sha256:")) }

// ExpandImageID replaces the beginning of an image ID in --image-id, as tables show it, by the whole ID. "" and a whole
// ID are unchanged.
func ExpandImageID(ctx context.Context, api adminv1.PullRecordsClient, id *string) error {
	if *id == "" || wholeImageID.MatchString(*id) {
		return nil
	}
	if !IsID(*id) {
		return notAnID("image-id", *id)
	}
	answer, err := api.GetImage(ctx, &adminv1.GetImageRequest{Image: *id})
	if err != nil {
		return fmt.Errorf("--image-id %s: %w", *id, err)
	}
	*id = answer.GetImage().GetImageId()
	return nil
}

// ExpandCredentialID replaces the beginning of a credential ID in --credential by the whole ID, among those that have
// proved access. "" and a whole ID are unchanged.
func ExpandCredentialID(ctx context.Context, api adminv1.PullRecordsClient, id *string) error {
	if *id == "" || wholeCredentialID.MatchString(*id) {
		return nil
	}
	if !beginningOfID.MatchString(*id) {
		return notAnID("credential", *id)
	}
	return expand(ctx, api, "credential", id,
		"pullgatectl images get IMAGE has those of an image", "no credential that proved access has an ID with this prefix")
}

// ExpandRequirement replaces the beginning of the hash of a requirement in --requirement by the whole hash, among those
// that images were endorsed for. "" and a whole hash are unchanged.
func ExpandRequirement(ctx context.Context, api adminv1.PullRecordsClient, hash *string) error {
	if *hash == "" || wholeRequirement.MatchString(*hash) {
		return nil
	}
	return expand(ctx, api, "requirement", hash,
		"pullgatectl endorsement list shows the requirements", "no endorsement is for a requirement with this prefix")
}

func notAnID(flag, id string) error {
	return Misused("give 7 digits or more; pullgatectl images list and images get show 12", "--%s %q: not an ID, and not at least the first 7 digits of one", flag, id)
}

// expand replaces the prefix in a flag by the only known value of the flag with that prefix. none is the error if there
// is none, and advice its hint.
func expand(ctx context.Context, api adminv1.PullRecordsClient, flag string, prefix *string, advice, none string) error {
	all, err := ofFlags()[flag](ctx, api)
	if err != nil {
		return fmt.Errorf("--%s %w", flag, err)
	}
	slices.Sort(all)
	fitting := slices.DeleteFunc(slices.Compact(all), func(whole string) bool { return !strings.HasPrefix(whole, *prefix) })
	switch len(fitting) {
	case 0:
		return program.Hintf(advice, "--%s %s: %s", flag, *prefix, none)
	case 1:
		*prefix = fitting[0]
		return nil
	default:
		return program.Hintf("give more digits", "--%s %s: ambiguous ID prefix: %s", flag, *prefix, strings.Join(fitting, ", "))
	}
}
