package verify

import (
	"bytes"
	"cmp"
	"crypto/dsa" //nolint:staticcheck // timestamps can have such keys
	"crypto/rsa"
	_ "crypto/sha512" // for signatures that a log has with SHA-384 and SHA-512
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/digitorus/pkcs7"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	sigverify "github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"golang.org/x/crypto/cryptobyte"
	cryptobyteasn1 "golang.org/x/crypto/cryptobyte/asn1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
)

type signature struct {
	digests     []string          // what it is about. They are of the bytes that are signed
	certificate *x509.Certificate // nil if it is made with a key
	// bundle is what is verified, and keyed the same as a signature that is made with a key.
	bundle, keyed sigverify.SignedEntity
	payload       []byte // what is signed, if it is not in the bundle

	statement     *statement     // nil for a signature of the older form
	payloadDigest string         // of the statement
	predicate     map[string]any // of the statement, decoded when it is needed first
	unread        error          // why it is not
	end           func()         // ends the turn to decode it
}

var errNotSignature = errors.New("not a signature of an image")

// maxStatement is the size of the largest statement that is decoded. One that signs an image names it in some hundred
// bytes; this is enough for 1,000 subjects. Decoded, a statement takes many times its size.
const maxStatement = 256 << 10

// parseBundle reads a bundle of any version. Its predicate type alone says whether it is a signature, or one of the
// accepted attestations.
func parseBundle(data []byte, accepted []string) (*signature, error) {
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
	chained := message.GetVerificationMaterial().GetX509CertificateChain() != nil
	if chained && strings.HasSuffix(message.GetMediaType(), ".v0.3+json") {
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
	said, err := parseStatement(envelope.GetPayloadType(), envelope.GetPayload(), accepted)
	if err != nil {
		return nil, err
	}
	s := said.signature(envelope.GetPayload())
	s.bundle, s.keyed = b, b
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
	chain := m.GetX509CertificateChain().GetCertificates()
	certificates := append([]*protocommon.X509Certificate{m.GetCertificate()}, chain...)
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
	if slices.Max(sizes) > maxField || len(chain) > maxChain || len(timestamps) > maxTimestamps || len(sizes) > maxParts {
		return fmt.Errorf("%w: a certificate, signature, timestamp or log entry has more than %d bytes, "+
			"a chain more than %d certificates, or there are more than %d timestamps or %d parts",
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

// The older form of signatures: a layer is the payload of a simple signing, and its annotations are the rest.
const (
	signatureAnnotation   = "dev.cosignproject.cosign/signature"
	certificateAnnotation = "dev.sigstore.cosign/certificate"
	chainAnnotation       = "dev.sigstore.cosign/chain"
	logAnnotation         = "dev.sigstore.cosign/bundle"
	timestampAnnotation   = "dev.sigstore.cosign/rfc3161timestamp"

	simpleType = "cosign container image signature"
)

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
	var said simplePayload
	if err := json.Unmarshal(payload, &said); err != nil {
		return nil, fmt.Errorf("invalid payload: %w", err)
	}
	if said.Critical.Type != simpleType {
		return nil, fmt.Errorf("%w: a payload of type %s", errNotSignature, clean(said.Critical.Type))
	}
	made, err := base64.StdEncoding.DecodeString(annotations[signatureAnnotation])
	if err != nil {
		return nil, fmt.Errorf("invalid signature: %w", err)
	}
	s := &signature{digests: []string{said.Critical.Image.Digest}, payload: payload, end: func() {}}
	return s, s.annotate(annotations, func(b *protobundle.Bundle, algorithm string) {
		b.Content = &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
			Signature: made, MessageDigest: sum(algorithm, payload),
		}}
	})
}

// annotate makes the bundle of a signature of the older form from its annotations. content adds what is signed; the
// algorithm is that of the log entry.
func (s *signature) annotate(annotations map[string]string,
	content func(b *protobundle.Bundle, algorithm string),
) error {
	for _, key := range []string{signatureAnnotation, certificateAnnotation, timestampAnnotation} {
		if len(annotations[key]) > maxField {
			return fmt.Errorf("%w: the annotation %s has more than %d bytes", registry.ErrTooLarge, key, maxField)
		}
	}
	byKey := &protobundle.VerificationMaterial_PublicKey{PublicKey: &protocommon.PublicKeyIdentifier{}}
	material := &protobundle.VerificationMaterial{Content: byKey}
	var chain []*x509.Certificate
	if text := annotations[certificateAnnotation]; text != "" {
		list, err := parseCertificates(text)
		if err != nil {
			return fmt.Errorf("invalid certificate: %w", err)
		}
		s.certificate = list[0]
		if text := annotations[chainAnnotation]; text != "" {
			if chain, err = parseCertificates(text); err != nil {
				return fmt.Errorf("invalid certificate chain: %w", err)
			}
		}
	}
	algorithm := "sha256"
	if text := annotations[logAnnotation]; text != "" {
		entry, hash, err := parseEntry([]byte(text))
		if err != nil {
			return fmt.Errorf("invalid log entry: %w", err)
		}
		material.TlogEntries = append(material.TlogEntries, entry)
		algorithm = cmp.Or(hash, algorithm)
	}
	if text := annotations[timestampAnnotation]; text != "" {
		var t struct{ SignedRFC3161Timestamp []byte }
		if err := json.Unmarshal([]byte(text), &t); err != nil {
			return fmt.Errorf("invalid timestamp: %w", err)
		}
		material.TimestampVerificationData = &protobundle.TimestampVerificationData{
			Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: t.SignedRFC3161Timestamp}},
		}
	}
	message := &protobundle.Bundle{MediaType: bundleMediaType + "+json;version=0.1", VerificationMaterial: material}
	content(message, algorithm)
	if err := bound(message); err != nil {
		return err
	}
	b, err := bundle.NewBundle(message)
	if err != nil {
		return err
	}
	s.bundle, s.keyed = b, b // a certificate beside a signature that is made with a key says nothing about the key
	if s.certificate != nil {
		s.bundle = &simple{b, chained{bundle.NewCertificate(s.certificate), chain}}
	}
	return nil
}

// A simple signature is a bundle with a certificate, and with those between it and the root.
type simple struct {
	*bundle.Bundle

	certificate chained
}

// VerificationContent returns the certificate.
//
//nolint:ireturn // the interface of sigstore-go
func (s *simple) VerificationContent() (sigverify.VerificationContent, error) {
	return s.certificate, nil
}

// A chained certificate comes with those between it and the root, which are not trusted by themselves.
type chained struct {
	sigverify.VerificationContent

	chain []*x509.Certificate
}

// Intermediates returns the certificates that lead to a root.
func (c chained) Intermediates() []*x509.Certificate { return c.chain }

// sum returns a digest of data. That of another algorithm than these is empty, and is never verified.
func sum(algorithm string, data []byte) *protocommon.HashOutput {
	name := "SHA2_" + strings.TrimPrefix(algorithm, "sha")
	out := &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm(protocommon.HashAlgorithm_value[name])}
	if hash, ok := hashes[algorithm]; ok {
		h := hash.New()
		h.Write(data) // does not fail
		out.Digest = h.Sum(nil)
	}
	return out
}

const maxChain = 10

func parseCertificates(text string) ([]*x509.Certificate, error) {
	if len(text) > maxChain*maxField {
		return nil, fmt.Errorf("%w: %d bytes", registry.ErrTooLarge, len(text))
	}
	all, err := cryptoutils.UnmarshalCertificatesFromPEMLimited([]byte(text), maxChain)
	if err == nil && len(all) == 0 {
		err = errors.New("is empty")
	}
	for i := 0; i < len(all) && err == nil; i++ {
		err = checkKey(all[i].PublicKey)
	}
	return all, err
}

func parseEntry(text []byte) (entry *protorekor.TransparencyLogEntry, algorithm string, err error) {
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
		return nil, "", err
	}
	id, err := hex.DecodeString(b.Payload.LogID)
	if err != nil {
		return nil, "", err
	}
	var body struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
		Spec       struct {
			Data struct {
				Hash struct {
					Algorithm string `json:"algorithm"`
				} `json:"hash"`
			} `json:"data"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(b.Payload.Body, &body); err != nil {
		return nil, "", err
	}
	return &protorekor.TransparencyLogEntry{
		LogIndex: b.Payload.LogIndex, LogId: &protocommon.LogId{KeyId: id},
		KindVersion:       &protorekor.KindVersion{Kind: body.Kind, Version: body.APIVersion},
		IntegratedTime:    b.Payload.IntegratedTime,
		InclusionPromise:  &protorekor.InclusionPromise{SignedEntryTimestamp: b.SignedEntryTimestamp},
		CanonicalizedBody: b.Payload.Body,
	}, body.Spec.Data.Hash.Algorithm, nil
}

// maxKey is the size of the largest key that a signature may bring, in bits. Who pushes a signature chooses the keys
// in it, and one of 64 KiB takes half a minute for each check, which nothing can end.
const maxKey = 8192

func checkKey(public any) error {
	bits := 0
	switch key := public.(type) {
	case *rsa.PublicKey:
		bits = key.N.BitLen()
	case *dsa.PublicKey:
		bits = key.P.BitLen()
	}
	if bits > maxKey {
		return fmt.Errorf("%w: a key has %d bits, and at most %d are used", registry.ErrTooLarge, bits, maxKey)
	}
	return nil
}

// maxNested bounds how deep the elements of a timestamp are nested. The deepest of a real one are about 15.
const maxNested = 32

// isNested reports whether data is elements in DER of which each ends inside the one that contains it.
func isNested(data cryptobyte.String, depth int) bool {
	for !data.Empty() {
		var (
			content cryptobyte.String
			tag     cryptobyteasn1.Tag
		)
		if depth == 0 || !data.ReadAnyASN1(&content, &tag) {
			return false
		}
		const constructed = 0x20
		if tag&constructed != 0 && !isNested(content, depth-1) {
			return false
		}
	}
	return true
}

// isTimestamp reports whether a signed timestamp can be read, and has one signer (RFC 3161, section 2.4.2). Another one
// proves nothing, and must not be given to sigstore-go: its library verifies every signer, and overlapping elements
// take it time and memory that double with every few bytes. The error is about a key that takes too long.
func isTimestamp(data []byte) (bool, error) {
	var response struct {
		Status asn1.RawValue
		Token  asn1.RawValue `asn1:"optional"`
	}
	if _, err := asn1.Unmarshal(data, &response); err != nil || !isNested(data, maxNested) {
		return false, nil //nolint:nilerr // it proves nothing
	}
	token, err := guarded(func() (*pkcs7.PKCS7, error) { return pkcs7.Parse(response.Token.FullBytes) })
	if err != nil {
		return false, nil //nolint:nilerr // likewise
	}
	for _, c := range token.Certificates {
		if err := checkKey(c.PublicKey); err != nil {
			return false, err
		}
	}
	return len(token.Signers) == 1 && len(token.Certificates) <= maxChain, nil
}

// checkEntry checks the body of a log entry and the keys in it, of which some are used when it is decoded. It reads
// the texts one by one, because a field can be there twice.
func checkEntry(body []byte) error {
	if len(body) > maxField {
		return fmt.Errorf("%w: a log entry has more than %d bytes", registry.ErrTooLarge, maxField)
	}
	if err := registry.Bounded(body); err != nil {
		return err
	}
	for d := json.NewDecoder(bytes.NewReader(body)); ; {
		token, err := d.Token()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("invalid log entry: %w", err)
		}
		text, _ := token.(string)
		if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
			if err := checkPEM(decoded); err != nil {
				return err
			}
		}
	}
}

func checkPEM(text []byte) error {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		public, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			public, err = x509.ParsePKCS1PublicKey(block.Bytes)
		}
		if err == nil {
			err = checkKey(public)
		} else {
			err = checkCertificate(block.Bytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkCertificate(der []byte) error {
	if cert, err := x509.ParseCertificate(der); err == nil {
		return checkKey(cert.PublicKey)
	}
	return nil
}
