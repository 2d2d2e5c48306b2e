package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pullgate/pullgate/internal/cli"
	"github.com/pullgate/pullgate/internal/hint"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// coordinates parses NAMESPACE/NAME from a flag.
func coordinates(flag, value string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(value, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", cli.Misused("write it as in --"+flag+" team-a/app", "--%s %q is not NAMESPACE/NAME", flag, value)
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

// unfit returns the error for an ID from a flag.
func unfit(flag string, err error) error {
	err = fmt.Errorf("--%s %w", flag, err)
	switch {
	case errors.Is(err, cli.ErrNoID):
		return cli.Misused("give 7 digits or more; pullgatectl images list and images get show 12", "%w", err)
	case errors.Is(err, cli.ErrNone):
		return hint.Wrap(err, "pullgatectl images get IMAGE has those of an image")
	case errors.Is(err, cli.ErrNoRequirement):
		return hint.Wrap(err, "pullgatectl endorsement list shows the requirements")
	case errors.Is(err, cli.ErrSeveral):
		return hint.Wrap(err, "give more digits")
	default:
		return err
	}
}

// imageID returns the whole image ID for a beginning in --image-id.
func imageID(ctx context.Context, api adminv1.PullRecordsClient, id string) (string, error) {
	whole, err := cli.ImageID(ctx, api, id)
	if err != nil {
		return "", unfit("image-id", err)
	}
	return whole, nil
}

// credentialID returns the whole credential ID for a beginning in --credential.
func credentialID(ctx context.Context, api adminv1.PullRecordsClient, id string) (string, error) {
	whole, err := cli.CredentialID(ctx, api, id)
	if err != nil {
		return "", unfit("credential", err)
	}
	return whole, nil
}
