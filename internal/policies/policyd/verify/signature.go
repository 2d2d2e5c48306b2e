package verify

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	sigverify "github.com/sigstore/sigstore-go/pkg/verify"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
)

// predicateType is that of a statement which says that an image is signed, and nothing else about it.
const predicateType = "https://sigstore.dev/cosign/sign/v1"

// A signature is what a bundle or an image with a .sig tag says, before it is verified.
type signature struct {
	// digests are what it is about. They are of the bytes that are signed.
	digests []string
	// certificate is nil if it is made with a key.
	certificate *x509.Certificate
	// entity returns what is verified, withKey as a signature that is made with a key.
	entity func(withKey bool) sigverify.SignedEntity
	// payload is what is signed, if it is not in the entity.
	payload []byte
}

// errNotSignature is returned for a document that is not a signature of an image.
var errNotSignature = errors.New("not a signature of an image")

// maxStatement is the size of the largest statement that is decoded. One that signs an image names it in some hundred
// bytes; this is enough for 1,000 subjects. Decoded, a statement takes many times its size.
const maxStatement = 256 << 10

// A statement is the part of an in-toto statement that decides.
type statement struct {
	Type          string `json:"_type"`
	PredicateType string `json:"predicateType"`
	Subject       []struct {
		Digest map[string]string `json:"digest"`
	} `json:"subject"`
}

// parseBundle reads a bundle of any version. Its predicate type alone says whether it is a signature.
func parseBundle(data []byte) (*signature, error) {
	if err := registry.Bounded(data); err != nil {
		return nil, err
	}
	var message protobundle.Bundle
	if err := protojson.Unmarshal(data, &message); err != nil {
		return nil, fmt.Errorf("invalid bundle: %w", err)
	}
	if err := bound(&message); err != nil {
		return nil, err
	}
	var options []bundle.Option
	if message.GetVerificationMaterial().GetX509CertificateChain() != nil && strings.HasSuffix(message.GetMediaType(), ".v0.3+json") {
		options = append(options, bundle.AllowCertificateChain())
	}
	b, err := bundle.NewBundle(&message, options...)
	if err != nil {
		return nil, fmt.Errorf("invalid bundle: %w", err)
	}
	envelope := message.GetDsseEnvelope()
	if envelope == nil {
		return nil, fmt.Errorf("%w: a bundle of a file", errNotSignature)
	}
	var said statement
	if size := len(envelope.GetPayload()); size > maxStatement {
		return nil, fmt.Errorf("%w: a statement of %d bytes, such as an attestation; one that signs an image has at most %d", errNotSignature, size, maxStatement)
	}
	if err := registry.Bounded(envelope.GetPayload()); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotSignature, err) // a large attestation
	}
	if err := json.Unmarshal(envelope.GetPayload(), &said); err != nil || envelope.GetPayloadType() != bundle.IntotoMediaType {
		return nil, fmt.Errorf("%w: its payload is not a statement", errNotSignature)
	}
	if said.PredicateType != predicateType {
		return nil, fmt.Errorf("%w: an attestation of type %s", errNotSignature, clean(said.PredicateType))
	}
	if !slices.Contains([]string{"https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1"}, said.Type) {
		return nil, fmt.Errorf("%w: a statement of type %s", errNotSignature, clean(said.Type))
	}
	s := &signature{entity: func(bool) sigverify.SignedEntity { return b }}
	for _, subject := range said.Subject {
		s.digests = append(s.digests, digestPrefix+subject.Digest["sha256"])
	}
	content, err := b.VerificationContent()
	if err != nil {
		return nil, fmt.Errorf("invalid bundle: %w", err)
	}
	s.certificate = content.Certificate()
	return s, nil
}

// bound removes timestamps that cannot be read from a bundle. It returns an error if parts are larger than they can be.
func bound(b *protobundle.Bundle) error {
	m := b.GetVerificationMaterial()
	certificates := append([]*protocommon.X509Certificate{m.GetCertificate()}, m.GetX509CertificateChain().GetCertificates()...)
	sizes := make([]int, 0, len(certificates))
	for _, c := range certificates {
		sizes = append(sizes, len(c.GetRawBytes()))
	}
	timestamps := m.GetTimestampVerificationData().GetRfc3161Timestamps()
	for _, t := range timestamps {
		sizes = append(sizes, len(t.GetSignedTimestamp()))
	}
	for _, s := range b.GetDsseEnvelope().GetSignatures() {
		sizes = append(sizes, len(s.GetSig()))
	}
	for _, e := range m.GetTlogEntries() {
		sizes = append(sizes, len(e.GetCanonicalizedBody()))
	}
	if slices.Max(sizes) > maxField || len(m.GetX509CertificateChain().GetCertificates()) > maxChain || len(timestamps) > maxTimestamps || len(sizes) > maxParts {
		return fmt.Errorf("%w: a certificate, signature, timestamp or log entry has more than %d bytes, a chain more than %d certificates, or there are more than %d timestamps or %d parts",
			registry.ErrTooLarge, maxField, maxChain, maxTimestamps, maxParts)
	}
	for _, c := range certificates {
		if err := checkCertificate(c.GetRawBytes()); err != nil {
			return err
		}
	}
	if stamps := m.GetTimestampVerificationData(); stamps != nil {
		var readable []*protocommon.RFC3161SignedTimestamp
		for _, t := range timestamps {
			switch ok, err := isTimestamp(t.GetSignedTimestamp()); {
			case err != nil:
				return err
			case ok:
				readable = append(readable, t)
			}
		}
		stamps.Rfc3161Timestamps = readable
	}
	for _, e := range m.GetTlogEntries() {
		if err := checkEntry(e.GetCanonicalizedBody()); err != nil {
			return err
		}
	}
	return nil
}

// artifact returns what an entity must be a signature of.
func (s *signature) artifact(digest []byte) sigverify.ArtifactPolicyOption {
	if s.payload != nil {
		return sigverify.WithArtifact(bytes.NewReader(s.payload))
	}
	return sigverify.WithArtifactDigest("sha256", digest)
}
