package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// coordinates reads NAMESPACE/NAME of a flag.
func coordinates(flag, value string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(value, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", misused("write it as in --"+flag+" team-a/app", "--%s %q is not NAMESPACE/NAME", flag, value)
	}
	return namespace, name, nil
}

// secret reads a Secret from the values of --secret and --secret-uid; nil if both are empty.
func secret(name, uid string) (*adminv1.SecretRef, error) {
	s := &adminv1.SecretRef{Uid: uid}
	if name != "" {
		var err error
		if s.Namespace, s.Name, err = coordinates("secret", name); err != nil {
			return nil, err
		}
	} else if uid == "" {
		return nil, nil
	}
	return s, nil
}

var (
	wholeImageID      = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	wholeCredentialID = regexp.MustCompile(`^[0-9a-f]{64}$`)
	beginningOfID     = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
)

// imageID is the whole image ID that begins as tables show it. What changes something takes no less, so that
// nobody changes more than was meant.
func imageID(ctx context.Context, api adminv1.PullRecordsClient, id string) (string, error) {
	if id == "" || wholeImageID.MatchString(id) {
		return id, nil
	}
	if !beginningOfID.MatchString(strings.TrimPrefix(id, "sha256:")) {
		return "", misused("pullgatectl images list has them in its first column", "--image-id %q: neither an image ID nor 7 digits of its beginning", id)
	}
	answer, err := api.GetImage(ctx, &adminv1.GetImageRequest{Image: id})
	if err != nil {
		return "", fmt.Errorf("--image-id %s: %w", id, err)
	}
	return answer.GetImage().GetImageId(), nil
}

// credentialID is the whole credential ID that begins as tables show it.
func (c *console) credentialID(ctx context.Context, api adminv1.PullRecordsClient, id string) (string, error) {
	if id == "" || wholeCredentialID.MatchString(id) {
		return id, nil
	}
	if !beginningOfID.MatchString(id) {
		return "", misused("pullgatectl images get IMAGE has them in its first column", "--credential %q: neither a credential ID nor 7 digits of its beginning", id)
	}
	all, err := knownCredentials(ctx, c, api)
	if err != nil {
		return "", err
	}
	slices.Sort(all)
	fitting := slices.DeleteFunc(slices.Compact(all), func(whole string) bool { return !strings.HasPrefix(whole, id) })
	switch len(fitting) {
	case 0:
		return "", &failure{code: exitFailed, err: fmt.Errorf("--credential %s: no credential that proved access begins so", id), hint: "pullgatectl images get IMAGE has those of an image"}
	case 1:
		return fitting[0], nil
	default:
		return "", &failure{code: exitFailed, err: fmt.Errorf("--credential %s: %d credentials begin so", id, len(fitting)), hint: "give more digits: " + strings.Join(fitting, ", ")}
	}
}
