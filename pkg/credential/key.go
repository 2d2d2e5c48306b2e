package credential

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

// ErrDamagedKey is the error of LoadKey for a file that does not contain a key.
var ErrDamagedKey = errors.New("credential: key file damaged")

// ErrExposedKey is the error of LoadKey for a file that users other than its owner may read or write.
var ErrExposedKey = errors.New("credential: key file exposed")

const keySize = sha256.Size

// An ID identifies a credential on one node: 64 hexadecimal digits. The zero value is the ID of an anonymous
// credential. It may be stored and shown.
type ID string

// A Key is the random key of a node. It cannot be printed, logged or marshalled. The zero value must not be used.
type Key struct {
	redacted

	reveal func() []byte
}

// NewKey returns a new key that exists only in memory.
func NewKey() Key {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails, according to crypto/rand
	return Key{reveal: func() []byte { return key }}
}

// LoadKey reads the key that CreateKey wrote. The error is fs.ErrNotExist if there is no file, ErrDamagedKey if it
// contains something else, and ErrExposedKey if users other than its owner have access to it.
func LoadKey(path string) (Key, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for a writer without a limit.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Key{}, fmt.Errorf("load the node's key: %w", err)
	}
	text, err := readKey(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return Key{}, fmt.Errorf("load the node's key: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSuffix(string(text), "\n"))
	if err != nil || len(key) != keySize {
		return Key{}, fmt.Errorf("%w: %s: want %d hexadecimal digits", ErrDamagedKey, path, 2*keySize)
	}
	return Key{reveal: func() []byte { return key }}, nil
}

// readKey returns the text of a key file. For a directory the error is EISDIR.
func readKey(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case !mode.IsRegular() && !mode.IsDir():
		return nil, fmt.Errorf("%w: %s: not a regular file", ErrDamagedKey, f.Name())
	case mode.IsRegular() && mode.Perm()&0o077 != 0:
		return nil, fmt.Errorf("%w: %s: mode %#o, want 0600: chmod it only if no other user had access to it, "+
			"otherwise remove it, and every image needs proof again", ErrExposedKey, f.Name(), mode.Perm())
	}
	return io.ReadAll(io.LimitReader(f, 4*keySize))
}

// CreateKey makes a new key and writes it, mode 0600, completely or not at all. The error is fs.ErrExist if the file
// already exists; of two concurrent calls one succeeds.
func CreateKey(path string) (Key, error) {
	key := NewKey()
	err := disk.Write(path, disk.Options{}, func(w io.Writer) error {
		_, err := io.WriteString(w, hex.EncodeToString(key.reveal())+"\n")
		return err
	})
	if err != nil {
		return Key{}, fmt.Errorf("create the node's key: %w", err)
	}
	return key, nil
}

// ID returns the ID of a credential under the key, "" for an anonymous one.
func (k Key) ID(c Credential) ID {
	if c.Anonymous() {
		return ""
	}
	return ID(k.sum(c.reveal()))
}

// NamespaceID returns the ID for the credentials that the runtime itself holds for the pods of a namespace, "" for no
// namespace. It is never the ID of a [Credential], whose canonical form begins with the length of a user name.
func (k Key) NamespaceID(namespace string) ID {
	if namespace == "" {
		return ""
	}
	return ID(k.sum([]byte("credentials of the runtime for namespace " + namespace)))
}

// AccountID returns the ID for whatever credential providers give out for a service account, "" if a part is missing.
// Like that of a namespace, it is never the ID of a [Credential].
func (k Key) AccountID(namespace, name, uid string) ID {
	if namespace == "" || name == "" || uid == "" {
		return ""
	}
	return ID(k.sum([]byte("service account " + namespace + "/" + name + " " + uid)))
}

// Fingerprint returns a text that is equal only for equal keys; it may be stored and shown.
func (k Key) Fingerprint() string { return k.sum([]byte("fingerprint of the node's key")) }

func (k Key) sum(data []byte) string {
	h := hmac.New(sha256.New, k.reveal())
	_, _ = h.Write(data) // a hash never fails
	return hex.EncodeToString(h.Sum(nil))
}
