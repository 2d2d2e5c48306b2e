package cli

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

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
