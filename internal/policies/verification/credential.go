package verification

import (
	"fmt"
	"io"
)

const redacted = "[redacted]"

// A Credential is what a registry is asked with: the fields of a CRI AuthConfig. The zero value is anonymous. Of several values the registry
// token is used first, then the identity token, then user name and password. It prints as "[redacted]"; keep it out of unexported fields of
// values that are printed.
type Credential struct{ Username, Password, IdentityToken, RegistryToken string }

// Anonymous reports whether the credential has no value.
func (c Credential) Anonymous() bool { return c == Credential{} }

// Format prints "[redacted]" under every verb.
func (Credential) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalLog returns "[redacted]" to loggers.
func (Credential) MarshalLog() any { return redacted }

// MarshalText returns "[redacted]" to encoders.
func (Credential) MarshalText() ([]byte, error) { return []byte(redacted), nil }
