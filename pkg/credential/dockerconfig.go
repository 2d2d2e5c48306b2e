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

// parse reads a payload into file, which contains found.
func parse(payload []byte, k Key, file any, found *auths) (Sealed, error) {
	if len(payload) > MaxPayload {
		return Sealed{}, fmt.Errorf("%w: %d bytes, at most %d are read", ErrTooLarge, len(payload), MaxPayload)
	}
	// The error of encoding/json quotes the content, so it is not wrapped.
	if err := json.Unmarshal(payload, file); err != nil {
		if found.many {
			return Sealed{}, fmt.Errorf("%w: more than %d entries", ErrTooLarge, MaxEntries)
		}
		return Sealed{}, ErrMalformed
	}
	var entries []entry
	for key, a := range found.byKey {
		if p, ok := parseKey(key); ok {
			entries = append(entries, entry{p.clone(), k.ID(a.credential)})
		}
	}
	return newSealed(entries), nil
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

type account struct{ credential Credential }

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
	a.credential = New(Login{Username: fields.Username, Password: fields.Password})
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
