package credential

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// scratch, superseded
type ID string

type Credential struct{ reveal func() []byte }

func (Credential) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[redacted]") }

func New(username, password, auth, serverAddress, identityToken, registryToken string) Credential {
	if username == "" && password == "" && auth != "" {
		if d, err := base64.StdEncoding.DecodeString(auth); err == nil {
			if u, p, ok := strings.Cut(string(d), ":"); ok {
				username, password, auth = u, strings.TrimRight(p, "\x00"), ""
			}
		}
	}
	var b bytes.Buffer
	some := false
	for _, f := range []string{username, password, identityToken, registryToken, serverAddress, auth} {
		some = some || f != ""
		_ = binary.Write(&b, binary.BigEndian, uint64(len(f)))
		b.WriteString(f)
	}
	if !some {
		return Credential{}
	}
	return Credential{reveal: b.Bytes}
}
func (c Credential) Anonymous() bool { return c.reveal == nil }

type Key struct{ reveal func() []byte }

func NewKey() Key {
	k := make([]byte, 32)
	_, _ = rand.Read(k)
	return Key{reveal: func() []byte { return k }}
}
func LoadKey(path string) (Key, error)   { return Key{}, nil }
func CreateKey(path string) (Key, error) { return NewKey(), nil }
func (k Key) ID(c Credential) ID {
	if c.Anonymous() {
		return ""
	}
	m := hmac.New(sha256.New, k.reveal())
	m.Write(c.reveal())
	return ID(hex.EncodeToString(m.Sum(nil)))
}
func (k Key) Fingerprint() string { return "" }
