package credential

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// The bounds of a payload: bytes, as of a Secret, and entries.
const (
	MaxPayload = 1 << 20
	MaxEntries = 4096
)

// ParseDockerConfigJSON reads the ".dockerconfigjson" of a Secret of the type kubernetes.io/dockerconfigjson, or a
// config.json of docker, and returns the IDs of its credentials under a key. It reads the fields as kubelets do: auth
// if it is set, otherwise username and password. It ignores everything else (email, identitytoken, credential helpers),
// because kubelets never send it, and an entry whose key is not a URL. For a malformed auth it returns ErrMalformed.
func ParseDockerConfigJSON(payload []byte, k Key) (Sealed, error) {
	var file struct {
		Auths auths `json:"auths"`
	}
	return parse(payload, k, &file, &file.Auths)
}

// ParseDockercfg reads the ".dockercfg" of a Secret of the type kubernetes.io/dockercfg, which has the content that
// ParseDockerConfigJSON reads under "auths".
func ParseDockercfg(payload []byte, k Key) (Sealed, error) {
	var file auths
	return parse(payload, k, &file, &file)
}

// ParsePullSecret reads the data of a Secret as kubelets do: ".dockerconfigjson" of the type
// kubernetes.io/dockerconfigjson, or ".dockercfg" of the type kubernetes.io/dockercfg. For a Secret of another type, or
// without content, it returns ErrNoPullSecret: kubelets ignore it.
func ParsePullSecret(kind string, data map[string][]byte, k Key) (Sealed, error) {
	switch {
	case kind == "kubernetes.io/dockerconfigjson" && len(data[".dockerconfigjson"]) > 0:
		return ParseDockerConfigJSON(data[".dockerconfigjson"], k)
	case kind == "kubernetes.io/dockercfg" && len(data[".dockercfg"]) > 0:
		return ParseDockercfg(data[".dockercfg"], k)
	}
	return Sealed{}, ErrNoPullSecret
}

// parse reads a payload into file, which contains found.
func parse(payload []byte, k Key, file any, found *auths) (Sealed, error) {
	if err := unmarshal(payload, file, found); err != nil {
		return Sealed{}, err
	}
	var entries []entry
	for key, a := range found.byKey {
		if p, ok := parseKey(key); ok {
			entries = append(entries, entry{p.clone(), k.ID(a.credential)})
		}
	}
	return newSealed(entries), nil
}

func unmarshal(payload []byte, file any, found *auths) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("%w: %d bytes, at most %d are read", ErrTooLarge, len(payload), MaxPayload)
	}
	// The error of encoding/json quotes the content, so it is not wrapped.
	if err := json.Unmarshal(payload, file); err != nil {
		if found.many {
			return fmt.Errorf("%w: more than %d entries", ErrTooLarge, MaxEntries)
		}
		return ErrMalformed
	}
	return nil
}

// Logins are the entries of a config.json that have both a user name and a password. They are in clear text: callers
// do not keep them.
type Logins struct {
	entries Sealed // with the key of the file in place of an ID
	byKey   map[string]account
}

// ParseLogins parses the content of a config.json. The errors are those of ParseDockerConfigJSON.
func ParseLogins(payload []byte) (Logins, error) {
	var file struct {
		Auths auths `json:"auths"`
	}
	if err := unmarshal(payload, &file, &file.Auths); err != nil {
		return Logins{}, err
	}
	var entries []entry
	for key, a := range file.Auths.byKey {
		if p, ok := parseKey(key); ok && a.login.Username != "" && a.login.Password != "" {
			entries = append(entries, entry{p, ID(key)})
		}
	}
	return Logins{newSealed(entries), file.Auths.byKey}, nil
}

// For returns the login that a kubelet would send first for an image of a repository: that of the most specific entry.
// ok is false if there is none, also if the patterns are too many to compare.
func (l Logins) For(repository string) (login Login, ok bool) {
	offers, _ := SealedKeyring{l.entries}.First(repository, 1)
	if len(offers) == 0 {
		return Login{}, false
	}
	return l.byKey[string(offers[0].ID)].login, true
}

// auths is a JSON object of entries. It stops at MaxEntries, so that the memory for a payload stays near its size.
type auths struct {
	byKey map[string]account
	many  bool
}

// UnmarshalJSON adds the entries of an object to the existing ones: the field may occur more than once.
func (a *auths) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	switch t, err := d.Token(); {
	case err != nil:
		return err
	case t == nil: // null
		return nil
	case t != json.Delim('{'):
		return ErrMalformed
	}
	if a.byKey == nil {
		a.byKey = map[string]account{}
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var entry account
		if err := d.Decode(&entry); err != nil {
			return err
		}
		name, ok := key.(string)
		if !ok {
			return ErrMalformed
		}
		if a.byKey[name] = entry; len(a.byKey) > MaxEntries {
			a.many = true
			return ErrTooLarge
		}
	}
	return nil
}

type account struct {
	login      Login
	credential Credential
}

// UnmarshalJSON reads the fields that kubelets read and send.
func (a *account) UnmarshalJSON(data []byte) error {
	var fields struct {
		Username string `json:"username"`
		Password string `json:"password"`
		Email    string `json:"email"` // read because a kubelet refuses an email that is not a string
		Auth     string `json:"auth"`
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	if fields.Auth != "" {
		var err error
		if fields.Username, fields.Password, err = splitAuth(fields.Auth); err != nil {
			return err
		}
	}
	// As in the kubelet's call to the runtime: only these two fields are set.
	a.login = Login{Username: fields.Username, Password: fields.Password}
	a.credential = New(a.login)
	return nil
}

// splitAuth decodes an auth as kubelets do. This differs from runtimes: the padding of the base64 may be missing, and a
// NUL at the end is part of the password.
func splitAuth(auth string) (username, password string, err error) {
	encoding := base64.RawStdEncoding
	if strings.HasSuffix(strings.TrimSpace(auth), "=") {
		encoding = base64.StdEncoding
	}
	decoded, err := encoding.DecodeString(auth)
	if err != nil {
		return "", "", ErrMalformed
	}
	username, password, ok := strings.Cut(string(decoded), ":")
	if !ok {
		return "", "", ErrMalformed
	}
	return username, password, nil
}
