package cli

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

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

// ImageID returns the whole image ID with this beginning, as tables show it. It returns "" and a whole ID unchanged.
func ImageID(ctx context.Context, api adminv1.PullRecordsClient, id string) (string, error) {
	if id == "" || wholeImageID.MatchString(id) {
		return id, nil
	}
	if !beginningOfID.MatchString(strings.TrimPrefix(id, "sha256:")) {
		return "", fmt.Errorf("%q: %w", id, ErrNoID)
	}
	answer, err := api.GetImage(ctx, &adminv1.GetImageRequest{Image: id})
	if err != nil {
		return "", fmt.Errorf("%s: %w", id, err)
	}
	return answer.GetImage().GetImageId(), nil
}

// CredentialID returns the whole credential ID with this beginning, among those that have proved access. It returns "" and a
// whole ID unchanged.
func CredentialID(ctx context.Context, api adminv1.PullRecordsClient, id string) (string, error) {
	if id == "" || wholeCredentialID.MatchString(id) {
		return id, nil
	}
	if !beginningOfID.MatchString(id) {
		return "", fmt.Errorf("%q: %w", id, ErrNoID)
	}
	return oneOf(ctx, api, Credentials, id, ErrNone)
}

// Requirement returns the whole hash of a requirement with this beginning, among those that images were endorsed for. It returns
// "" and a whole hash unchanged.
func Requirement(ctx context.Context, api adminv1.PullRecordsClient, hash string) (string, error) {
	if hash == "" || wholeRequirement.MatchString(hash) {
		return hash, nil
	}
	return oneOf(ctx, api, Requirements, hash, ErrNoRequirement)
}

// oneOf returns the only value of a source with a prefix. none is the error if there is none.
func oneOf(ctx context.Context, api adminv1.PullRecordsClient, from Source, prefix string, none error) (string, error) {
	all, err := from(ctx, api)
	if err != nil {
		return "", err
	}
	slices.Sort(all)
	fitting := slices.DeleteFunc(slices.Compact(all), func(whole string) bool { return !strings.HasPrefix(whole, prefix) })
	switch len(fitting) {
	case 0:
		return "", fmt.Errorf("%s: %w", prefix, none)
	case 1:
		return fitting[0], nil
	default:
		return "", fmt.Errorf("%s: %w: %s", prefix, ErrSeveral, strings.Join(fitting, ", "))
	}
}
