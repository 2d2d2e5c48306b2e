package testkit

import (
	"fmt"
	"strings"
)

// A Secret is one pull secret, written uid/namespace/name#content.
type Secret struct{ UID, Namespace, Name, Content string }

// UnmarshalText reads the written form.
func (s *Secret) UnmarshalText(text []byte) error {
	coordinates, content, ok := strings.Cut(string(text), "#")
	parts := strings.Split(coordinates, "/")
	if !ok || len(parts) != 3 {
		return fmt.Errorf("secret %q: want uid/namespace/name#content", text)
	}
	*s = Secret{UID: parts[0], Namespace: parts[1], Name: parts[2], Content: content}
	return nil
}
