package verify

import (
	"bytes"
	"crypto"
	_ "crypto/sha512" // for signatures that a log has with SHA-384 and SHA-512
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	sigverify "github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
)

// The older form of signatures: a layer is the payload of a simple signing, and its annotations are the rest.
const (
	signatureAnnotation   = "dev.cosignproject.cosign/signature"
	certificateAnnotation = "dev.sigstore.cosign/certificate"
	chainAnnotation       = "dev.sigstore.cosign/chain"
	logAnnotation         = "dev.sigstore.cosign/bundle"
	timestampAnnotation   = "dev.sigstore.cosign/rfc3161timestamp"

	simpleType = "cosign container image signature"
)

// A simplePayload is what is signed.
type simplePayload struct {
	Critical struct {
		Type  string `json:"type"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
	} `json:"critical"`
}

// parseSimple reads a signature of the older form. The reference in the payload is not read: names prove nothing.
func parseSimple(payload []byte, annotations map[string]string) (*signature, error) {
	if err := registry.Bounded(payload); err != nil {
		return nil, err
	}
	for _, key := range []string{signatureAnnotation, certificateAnnotation, timestampAnnotation} {
		if len(annotations[key]) > maxField {
			return nil, fmt.Errorf("%w: the annotation %s has more than %d bytes", registry.ErrTooLarge, key, maxField)
		}
	}
	var said simplePayload
	if err := json.Unmarshal(payload, &said); err != nil {
		return nil, fmt.Errorf("invalid payload: %w", err)
	}
	if said.Critical.Type != simpleType {
		return nil, fmt.Errorf("%w: a payload of type %s", errNotSignature, clean(said.Critical.Type))
	}
	e := simpleEntity{algorithm: protocommon.HashAlgorithm_SHA2_256.String()}
	var err error
	if e.signature, err = base64.StdEncoding.DecodeString(annotations[signatureAnnotation]); err != nil {
		return nil, fmt.Errorf("invalid signature: %w", err)
	}
	if text := annotations[certificateAnnotation]; text != "" {
		list, err := parseCertificates(text)
		if err != nil {
			return nil, fmt.Errorf("invalid certificate: %w", err)
		}
		e.certificate = list[0]
		if text := annotations[chainAnnotation]; text != "" {
			if e.chain, err = parseCertificates(text); err != nil {
				return nil, fmt.Errorf("invalid certificate chain: %w", err)
			}
		}
	}
	if text := annotations[logAnnotation]; text != "" {
		entry, err := parseEntry([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("invalid log entry: %w", err)
		}
		e.entries = append(e.entries, entry)
		if _, algorithm, ok := entry.GetHashedRekordDigest(); ok {
			e.algorithm = algorithm
		}
	}
	if text := annotations[timestampAnnotation]; text != "" {
		var t struct{ SignedRFC3161Timestamp []byte }
		if err := json.Unmarshal([]byte(text), &t); err != nil {
			return nil, fmt.Errorf("invalid timestamp: %w", err)
		}
		readable, err := isTimestamp(t.SignedRFC3161Timestamp)
		if err != nil {
			return nil, err
		}
		if readable {
			e.timestamps = append(e.timestamps, t.SignedRFC3161Timestamp)
		}
	}
	e.digest = sum(e.algorithm, payload)
	return &signature{
		digests: []string{said.Critical.Image.Digest}, certificate: e.certificate, payload: payload,
		entity: func(withKey bool) sigverify.SignedEntity {
			e := e
			if withKey { // a certificate beside a signature that is made with a key says nothing about the key
				e.certificate = nil
			}
			return &e
		},
	}, nil
}

// sum returns the digest of data by the name of an algorithm, nil if it is not known.
func sum(algorithm string, data []byte) []byte {
	var hash crypto.Hash
	switch algorithm {
	case protocommon.HashAlgorithm_SHA2_256.String(), "sha256":
		hash = crypto.SHA256
	case protocommon.HashAlgorithm_SHA2_384.String(), "sha384":
		hash = crypto.SHA384
	case protocommon.HashAlgorithm_SHA2_512.String(), "sha512":
		hash = crypto.SHA512
	default:
		return nil
	}
	h := hash.New()
	h.Write(data) // does not fail
	return h.Sum(nil)
}

// maxChain bounds how many certificates a signature has.
const maxChain = 10

func parseCertificates(text string) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	if len(text) > maxChain*maxField {
		return nil, fmt.Errorf("%w: %d bytes", registry.ErrTooLarge, len(text))
	}
	for rest := []byte(text); len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("not in PEM form")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if err := checkKey(cert.PublicKey); err != nil {
			return nil, err
		}
		if all = append(all, cert); len(all) > maxChain {
			return nil, fmt.Errorf("more than %d certificates", maxChain)
		}
	}
	if all == nil {
		return nil, errors.New("is empty")
	}
	return all, nil
}

// parseEntry reads the entry of a transparency log with its promise to include it.
func parseEntry(text []byte) (*tlog.Entry, error) {
	var b struct {
		SignedEntryTimestamp []byte
		Payload              struct {
			Body           []byte `json:"body"`
			IntegratedTime int64  `json:"integratedTime"`
			LogIndex       int64  `json:"logIndex"`
			LogID          string `json:"logID"`
		}
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, err
	}
	if err := checkEntry(b.Payload.Body); err != nil {
		return nil, err
	}
	id, err := hex.DecodeString(b.Payload.LogID)
	if err != nil {
		return nil, err
	}
	var kind struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
	}
	if err := json.Unmarshal(b.Payload.Body, &kind); err != nil {
		return nil, err
	}
	return tlog.ParseTransparencyLogEntry(&protorekor.TransparencyLogEntry{
		LogIndex: b.Payload.LogIndex, LogId: &protocommon.LogId{KeyId: id},
		KindVersion:       &protorekor.KindVersion{Kind: kind.Kind, Version: kind.APIVersion},
		IntegratedTime:    b.Payload.IntegratedTime,
		InclusionPromise:  &protorekor.InclusionPromise{SignedEntryTimestamp: b.SignedEntryTimestamp},
		CanonicalizedBody: b.Payload.Body,
	})
}

// A simpleEntity is a signature of the older form as sigstore-go verifies it.
type simpleEntity struct {
	sigverify.BaseSignedEntity

	signature, digest []byte
	algorithm         string // of digest
	certificate       *x509.Certificate
	chain             []*x509.Certificate
	entries           []*tlog.Entry
	timestamps        [][]byte
}

// HasInclusionPromise reports whether there is a log entry; in this form it has a promise.
func (e *simpleEntity) HasInclusionPromise() bool { return len(e.entries) > 0 }

// Version returns the version of bundles with the same content.
func (e *simpleEntity) Version() (string, error) { return "v0.1", nil }

// SignatureContent returns the signature.
//
//nolint:ireturn // the interface of sigstore-go
func (e *simpleEntity) SignatureContent() (sigverify.SignatureContent, error) {
	return bundle.NewMessageSignature(e.digest, e.algorithm, e.signature), nil
}

// VerificationContent returns the certificate, or that the signature is made with a key.
//
//nolint:ireturn // the interface of sigstore-go
func (e *simpleEntity) VerificationContent() (sigverify.VerificationContent, error) {
	if e.certificate == nil {
		return &bundle.PublicKey{}, nil
	}
	return &chained{VerificationContent: bundle.NewCertificate(e.certificate), chain: e.chain}, nil
}

// TlogEntries returns the entries of the transparency log.
func (e *simpleEntity) TlogEntries() ([]*tlog.Entry, error) { return slices.Clone(e.entries), nil }

// Timestamps returns the signed timestamps.
func (e *simpleEntity) Timestamps() ([][]byte, error) { return slices.Clone(e.timestamps), nil }

// A chained certificate comes with those between it and the root, which are not trusted by themselves.
type chained struct {
	sigverify.VerificationContent

	chain []*x509.Certificate
}

// Intermediates returns the certificates that lead to a root.
func (c *chained) Intermediates() []*x509.Certificate { return c.chain }
