package credential

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// redacted is embedded in every type that must not be printed, logged or marshalled.
type redacted struct{}

const redaction = "[redacted]"

// Format prints "[redacted]" under every verb.
func (redacted) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redaction) }

// MarshalLog returns "[redacted]" to loggers.
func (redacted) MarshalLog() any { return redaction }

// MarshalText returns "[redacted]" to encoders.
func (redacted) MarshalText() ([]byte, error) { return []byte(redaction), nil }

// A Credential is what a pull sends to a registry, in canonical form. The zero value is anonymous: it sends nothing. It
// cannot be printed, logged or marshalled.
//
// A closure contains the content, because the fmt package walks unexported fields.
type Credential struct {
	redacted

	reveal func() []byte
	named  bool // see HasUsername
}

// A Login is what a CRI AuthConfig holds.
type Login struct {
	redacted

	Username, Password           string
	Auth                         string // base64 of "username:password"
	ServerAddress                string
	IdentityToken, RegistryToken string

	decoded, named bool
}

// Decoded returns the login without Auth, if that is valid and does not contradict the user name and the password. If
// neither is given, they are taken from Auth, as runtimes do.
func (l Login) Decoded() Login {
	if l.decoded {
		return l
	}
	l.decoded, l.named = true, l.Username != ""
	if user, pass, ok := decodeAuth(l.Auth); ok {
		l.named = user != ""
		if l.Username == "" && l.Password == "" || l.Username == user && l.Password == pass {
			l.Username, l.Password, l.Auth = user, pass, ""
		}
	}
	return l
}

// New returns the credential of a login, which need not be decoded. If all values are empty, the credential is
// anonymous; with any other value, even only a password, it is not, whatever a runtime would make of it.
func New(l Login) Credential {
	l = l.Decoded()
	fields := []string{l.Username, l.Password, l.IdentityToken, l.RegistryToken, l.ServerAddress, l.Auth}
	if strings.Join(fields[:4], "") == "" && l.Auth == "" {
		return Credential{} // a server address without other values is not a credential
	}
	// The length of each field precedes it, so that different credentials have different canonical forms.
	var canonical []byte
	for _, f := range fields {
		canonical = binary.BigEndian.AppendUint64(canonical, uint64(len(f)))
		canonical = append(canonical, f...)
	}
	return Credential{reveal: func() []byte { return canonical }, named: l.named}
}

// decodeAuth returns username and password of the field auth of an AuthConfig; ok is false if it has none. Old clients
// pad the password with NUL.
func decodeAuth(auth string) (username, password string, ok bool) {
	if auth == "" {
		return "", "", false
	}
	decoded, err := base64.StdEncoding.DecodeString(auth)
	if err != nil {
		return "", "", false
	}
	username, password, ok = strings.Cut(string(decoded), ":")
	return username, strings.Trim(password, "\x00"), ok
}

// Anonymous reports whether the credential would send nothing, or only empty values.
func (c Credential) Anonymous() bool { return c.reveal == nil }

// HasUsername reports whether the credential has a user name, possibly in auth. A runtime that sends only user names
// with passwords, as CRI-O does, sends nothing for a credential without one.
func (c Credential) HasUsername() bool { return c.named }
