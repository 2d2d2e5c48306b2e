package admission

import (
	"context"
	"fmt"
	"io"
)

// A Puller is a Validator that can also judge the image of one pull.
type Puller interface {
	Validator
	// PullVerifier returns the validator for a pull. It judges no mounted images.
	PullVerifier(p Pull) Validator
}

// A Pull is a pull after which signatures are verified.
type Pull struct {
	Login Login // with which the image was pulled, and signatures are looked up
	// Digests returns the digests that the runtime has for the image, as hints, if the image has to be verified.
	Digests func(ctx context.Context) []string
}

const redacted = "[redacted]"

// A Login is what a registry is asked with: the registry token, or else the identity token, or user name and password.
// The zero value is anonymous. It prints as "[redacted]", except in unexported fields of values that are printed.
type Login struct{ Username, Password, IdentityToken, RegistryToken string }

// Anonymous reports whether the credential has no value.
func (c Login) Anonymous() bool { return c == Login{} }

// Format prints "[redacted]" under every verb.
func (Login) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalLog returns "[redacted]" to loggers.
func (Login) MarshalLog() any { return redacted }

// MarshalText returns "[redacted]" to encoders.
func (Login) MarshalText() ([]byte, error) { return []byte(redacted), nil }
