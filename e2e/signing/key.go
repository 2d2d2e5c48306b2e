package signing

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
)

// Predicate types of statements.
const (
	// Signature is the type of a statement that signs an image.
	Signature = "https://sigstore.dev/cosign/sign/v1"
	// SBOM is the type of a statement that has a bill of materials.
	SBOM = "https://spdx.dev/Document"
)

const payloadType = "application/vnd.in-toto+json"

// A Key signs images.
type Key struct{ private *ecdsa.PrivateKey }

// NewKey returns a new key.
func NewKey() (*Key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return &Key{private}, err
}

// Public returns the public key as PEM.
func (k *Key) Public() string {
	der, err := x509.MarshalPKIXPublicKey(&k.private.PublicKey)
	if err != nil {
		panic(fmt.Sprintf("encode a public key: %v", err)) // P-256 has an encoding
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// Private returns the private key as PEM.
func (k *Key) Private() string {
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	if err != nil {
		panic(fmt.Sprintf("encode a private key: %v", err)) // P-256 has an encoding
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// SignPayload returns the signature of data in base64, as the older form has it for a payload.
func (k *Key) SignPayload(data []byte) (string, error) {
	sum := sha256.Sum256(data)
	signature, err := ecdsa.SignASN1(rand.Reader, k.private, sum[:])
	return base64.StdEncoding.EncodeToString(signature), err
}

// A Bundle is a signature bundle of version 0.3 with a static key. Its fields can be changed before it is stored.
type Bundle struct {
	MediaType            string `json:"mediaType"`
	VerificationMaterial struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	Envelope struct {
		Payload     []byte       `json:"payload"`
		PayloadType string       `json:"payloadType"`
		Signatures  []signatures `json:"signatures"`
	} `json:"dsseEnvelope"`
}

type signatures struct {
	Sig string `json:"sig"`
}

// BundleMediaType is that of bundles, and the artifact type of the manifests that hold them.
const BundleMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// Statement returns a statement of some type about the manifest or index with a digest.
func Statement(predicateType, digest string) []byte {
	algorithm, hex, _ := strings.Cut(digest, ":")
	data, err := json.Marshal(map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       []any{map[string]any{"digest": map[string]string{algorithm: hex}}},
		"predicateType": predicateType,
		"predicate":     map[string]any{},
	})
	if err != nil {
		panic(fmt.Sprintf("encode a statement: %v", err)) // strings always marshal
	}
	return data
}

// Bundle signs a statement.
func (k *Key) Bundle(statement []byte) (*Bundle, error) {
	b := &Bundle{MediaType: BundleMediaType}
	der, err := x509.MarshalPKIXPublicKey(&k.private.PublicKey)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	b.VerificationMaterial.PublicKey.Hint = base64.StdEncoding.EncodeToString(sum[:])
	b.Envelope.Payload, b.Envelope.PayloadType = statement, payloadType
	signature, err := k.SignPayload(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(statement), statement))
	b.Envelope.Signatures = []signatures{{signature}}
	return b, err
}

// Encode returns the bundle as it is stored.
func (b *Bundle) Encode() []byte {
	data, err := json.Marshal(b)
	if err != nil {
		panic(fmt.Sprintf("encode a bundle: %v", err)) // strings always marshal
	}
	return data
}

// Payload returns what the older form signs about the manifest or index with a digest.
func Payload(repository, digest string) []byte {
	data, err := json.Marshal(map[string]any{
		"critical": map[string]any{
			"identity": map[string]string{"docker-reference": repository},
			"image":    map[string]string{"docker-manifest-digest": digest},
			"type":     "cosign container image signature",
		},
		"optional": nil,
	})
	if err != nil {
		panic(fmt.Sprintf("encode a payload: %v", err)) // strings always marshal
	}
	return data
}
