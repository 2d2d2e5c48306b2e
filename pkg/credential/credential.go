package credential

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

const redacted = "[redacted]"

// A Credential is what is sent to a registry with a pull, in canonical form. The zero value is
// anonymous: nothing is sent. It cannot be printed, logged or marshalled.
//
// The content is kept in a closure because the fmt package walks unexported fields, and follows
// pointers to them, under verbs that a type does not expect.
type Credential struct {
	reveal func() []byte
	named  bool // see HasUsername
}

// New returns the credential that the fields of a CRI AuthConfig make. If neither username nor
// password is given, they are taken from auth, base64 of "username:password", as runtimes do. Values
// that are all empty make an anonymous credential; any other value, even a password alone, does not,
// whatever a runtime would make of it.
func New(username, password, auth, serverAddress, identityToken, registryToken string) Credential {
	named := username != ""
	if user, pass, ok := decodeAuth(auth); ok {
		named = user != ""
		same := user == username && pass == password
		if username == "" && password == "" || same {
			username, password, auth = user, pass, ""
		}
	}
	fields := []string{username, password, identityToken, registryToken, serverAddress, auth}
	if strings.Join(fields[:4], "") == "" && auth == "" {
		return Credential{} // a server address alone is not a credential
	}
	// Each field is preceded by its length, so that no two credentials run into one form.
	var canonical []byte
	for _, f := range fields {
		canonical = binary.BigEndian.AppendUint64(canonical, uint64(len(f)))
		canonical = append(canonical, f...)
	}
	return Credential{reveal: func() []byte { return canonical }, named: named}
}

// decodeAuth reads the auth form. Old clients pad the password with NUL.
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

// Anonymous reports whether nothing, or nothing but empty values, would be sent.
func (c Credential) Anonymous() bool { return c.reveal == nil }

// HasUsername reports whether the credential has a user name, possibly in auth. A runtime that sends only user
// names with passwords, as CRI-O does, sends nothing of a credential without one.
func (c Credential) HasUsername() bool { return c.named }

// Format prints "[redacted]" under every verb.
func (Credential) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalLog returns "[redacted]" to loggers.
func (Credential) MarshalLog() any { return redacted }

// MarshalText returns "[redacted]" to encoders.
func (Credential) MarshalText() ([]byte, error) { return []byte(redacted), nil }
