package main

import (
	"strings"

	"github.com/pullgate/pullgate/internal/operator/cli"
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

// selected refuses a request that selects nothing.
func selected(anything bool, advice string) error {
	if anything {
		return nil
	}
	return cli.Misused(advice, "nothing is selected")
}
