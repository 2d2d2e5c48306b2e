// Package signing makes signatures in the format of sigstore with a key, and without a network: what
// cosign sign-blob --key --bundle writes. The same key and content result in the same bytes.
package signing

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

const (
	// BundleMediaType is that of a bundle.
	BundleMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	// TestHint is how the hint of a bundle begins that was made with a key for tests.
	TestHint = "TEST"

	statementMediaType = "application/vnd.in-toto+json"
	mark               = "Pullgate-Key" // the header in the file of a key for tests
)

// A Key is an ECDSA key on P-256.
type Key struct {
	private *ecdsa.PrivateKey
	// Test is set for a key of NewTestKey: who has made a release with it is unknown.
	Test bool
}

// NewTestKey writes a new key into a file, which says that it is for tests.
func NewTestKey(file string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "PRIVATE KEY", Headers: map[string]string{mark: TestHint}, Bytes: der}
	return os.WriteFile(file, pem.EncodeToMemory(block), 0o600)
}

// Load reads a key from a file in PEM form: one of cosign generate-key-pair, which COSIGN_PASSWORD decrypts, or a plain
// one in PKCS #8 or SEC 1.
func Load(file string) (*Key, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s: not a key in PEM form; make one with: cosign generate-key-pair", file)
	}
	key, err := decode(block)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%s: an ECDSA key on %s; want P-256", file, key.Curve.Params().Name)
	}
	return &Key{key, block.Headers[mark] == TestHint}, nil
}

func decode(block *pem.Block) (*ecdsa.PrivateKey, error) {
	der := block.Bytes
	switch block.Type {
	case "EC PRIVATE KEY":
		return x509.ParseECPrivateKey(der)
	case "ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY":
		password, ok := os.LookupEnv("COSIGN_PASSWORD")
		if !ok {
			return nil, errors.New("the key is encrypted; set COSIGN_PASSWORD, also if the password is empty")
		}
		var err error
		if der, err = encrypted.Decrypt(der, []byte(password)); err != nil {
			return nil, fmt.Errorf("COSIGN_PASSWORD does not decrypt the key: %w", err)
		}
	case "PRIVATE KEY":
	default:
		return nil, fmt.Errorf("a %s; want a private key", block.Type)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T; want ECDSA on P-256", parsed)
	}
	return key, nil
}

// Public returns the public key in PKIX form.
func (k *Key) Public() ([]byte, error) { return x509.MarshalPKIXPublicKey(k.private.Public()) }

// File returns the bundle of a file with a content.
func (k *Key) File(content []byte) ([]byte, error) {
	sum := sha256.Sum256(content)
	signature, err := k.sign(content)
	if err != nil {
		return nil, err
	}
	digest := messageDigest{"SHA2_256", sum[:]}
	return k.bundle(bundle{MessageSignature: &messageSignature{digest, signature}})
}

// Statement returns the bundle of an in-toto statement, in one line.
func (k *Key) Statement(statement []byte) ([]byte, error) {
	made, err := k.sign(dsse.PAE(statementMediaType, statement))
	if err != nil {
		return nil, err
	}
	return k.bundle(bundle{Envelope: &envelope{statement, statementMediaType, []signature{{made}}}})
}

// sign signs as of RFC 6979, which takes nothing from chance.
func (k *Key) sign(data []byte) ([]byte, error) {
	sum := sha256.Sum256(data)
	return k.private.Sign(nil, sum[:], crypto.SHA256)
}

// The fields of a bundle in the order of the format; protojson would write them with spaces by chance.
type (
	bundle struct {
		MediaType        string            `json:"mediaType"`
		Material         material          `json:"verificationMaterial"`
		MessageSignature *messageSignature `json:"messageSignature,omitempty"`
		Envelope         *envelope         `json:"dsseEnvelope,omitempty"`
	}
	material struct {
		PublicKey publicKey `json:"publicKey"`
	}
	publicKey struct {
		Hint string `json:"hint"`
	}
	messageSignature struct {
		Digest    messageDigest `json:"messageDigest"`
		Signature []byte        `json:"signature"`
	}
	messageDigest struct {
		Algorithm string `json:"algorithm"`
		Digest    []byte `json:"digest"`
	}
	envelope struct {
		Payload     []byte      `json:"payload"`
		PayloadType string      `json:"payloadType"`
		Signatures  []signature `json:"signatures"`
	}
	signature struct {
		Sig []byte `json:"sig"`
	}
)

func (k *Key) bundle(b bundle) ([]byte, error) {
	public, err := k.Public()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(public)
	b.MediaType, b.Material.PublicKey.Hint = BundleMediaType, base64.StdEncoding.EncodeToString(sum[:])
	if k.Test {
		b.Material.PublicKey.Hint = TestHint + " " + b.Material.PublicKey.Hint
	}
	data, err := json.Marshal(b)
	return append(data, '\n'), err
}
