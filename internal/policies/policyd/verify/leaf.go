package verify

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"time"

	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/sigstore/rekor-tiles/v2/pkg/note"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore-go/pkg/root"
	sigverify "github.com/sigstore/sigstore-go/pkg/verify"
	sigstore "github.com/sigstore/sigstore/pkg/signature"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

type leaf struct {
	signed     *requirement.Signer
	verifier   *sigverify.Verifier
	err        error // why no signature can be verified; nil if it can be
	conditions *condition.Compiled

	// signer is who has signed, "" as long as no signature counts, and digest what.
	signer, digest string
	miss           miss // the signature that comes closest to one that counts
	// attested is the digest of the statement that counts, and evaluated the result of its conditions.
	attested  string
	evaluated condition.Result
	seen      []string  // of each condition on the image; only with run.list
	counting  []counted // all that count, if a condition reads them
	evidence  bool      // the leaf alone decides nothing; see requirement.Program
}

type miss struct{ reason, text string }

// compiled returns conditions on images, which are compiled once.
func (v *Verifier) compiled(of *requirement.Validation) (*condition.Compiled, error) {
	if known, ok := v.conditions.Load(of); ok {
		if c, ok := known.(*condition.Compiled); ok {
			return c, nil
		}
	}
	c, invalid := condition.CompileValidation(of)
	if invalid != nil {
		return nil, invalid.ToAggregate()
	}
	v.conditions.Store(of, c)
	return c, nil
}

func (v *Verifier) newLeaf(s *requirement.Signer) *leaf {
	l := &leaf{signed: s}
	if s.Image != nil {
		l.conditions, l.err = v.compiled(s.Image)
		return l
	}
	var m *material
	if m, l.err = newMaterial(s, v.trusted); l.err != nil {
		return l
	}
	if s.Statement != nil {
		var invalid field.ErrorList
		if l.conditions, invalid = condition.Compile(s.Statement); invalid != nil {
			l.err = invalid.ToAggregate()
			return l
		}
	}
	var options []sigverify.VerifierOption
	if s.Log != nil {
		options = append(options, sigverify.WithTransparencyLog(1))
	}
	switch {
	case s.Timestamp != nil:
		options = append(options, sigverify.WithSignedTimestamps(1))
	case s.Key != nil:
		options = append(options, sigverify.WithNoObserverTimestamps())
	case s.Log != nil:
		options = append(options, sigverify.WithObserverTimestamps(1))
	default:
		l.err = errors.New("nothing proves when the certificate was used")
		return l
	}
	if s.Keyless != nil && !s.Keyless.IgnoreSCT {
		options = append(options, sigverify.WithSignedCertificateTimestamps(1))
	}
	l.verifier, l.err = sigverify.NewVerifier(m, options...)
	return l
}

type material struct {
	*root.TrustedRoot

	key root.TimeConstrainedVerifier
}

// PublicKeyVerifier returns the key. The hint of a signature is not read, because it is not signed.
//
//nolint:ireturn // the interface of sigstore-go
func (m *material) PublicKeyVerifier(string) (root.TimeConstrainedVerifier, error) {
	if m.key == nil {
		return nil, errors.New("the signature is made with a key")
	}
	return m.key, nil
}

var errNoTrustedRoot = errors.New("the policy relies on a trusted root, and none is configured")

func newMaterial(s *requirement.Signer, trusted *root.TrustedRoot) (m *material, err error) {
	of := requirement.Requirement{SignedBy: s}
	if trusted == nil {
		if of.UsesTrustedRoot() {
			return nil, errNoTrustedRoot
		}
		trusted = &root.TrustedRoot{}
	}
	m = &material{}
	var (
		certificates []root.CertificateAuthority
		timestamps   []root.TimestampingAuthority
		certLogs     map[string]*root.TransparencyLog
		entryLogs    map[string]*root.TransparencyLog
	)
	if s.Key != nil {
		if m.key, err = keyVerifier(s.Key); err != nil {
			return nil, err
		}
	}
	if k := s.Keyless; k != nil {
		certificates, certLogs = trusted.FulcioCertificateAuthorities(), trusted.CTLogs()
		if k.Roots != nil {
			if certificates, err = authorities(k.Roots); err != nil {
				return nil, err
			}
		}
		if k.CTLogKeys != nil {
			if certLogs, err = logs(k.CTLogKeys, ""); err != nil {
				return nil, err
			}
		}
	}
	if l := s.Log; l != nil {
		if entryLogs = selectLogs(trusted.RekorLogs(), l.URL); l.Keys != nil {
			if entryLogs, err = logs(l.Keys, l.URL); err != nil {
				return nil, err
			}
		}
		if len(entryLogs) == 0 {
			return nil, fmt.Errorf("the trusted root has no transparency log with the URL of the policy, %s", l.URL)
		}
	}
	switch t := s.Timestamp; {
	case t != nil && t.Chain != nil:
		if timestamps, err = timestampAuthority(t.Chain); err != nil {
			return nil, err
		}
	// An entry of a log of version 2 has no time, and a timestamp says it instead. The trusted root decides about it
	// only where it decides about the log, because the hash of the requirement must cover it.
	case t != nil, s.Log != nil && s.Log.Keys == nil:
		timestamps = trusted.TimestampingAuthorities()
	}
	m.TrustedRoot, err = root.NewTrustedRoot(root.TrustedRootMediaType01, certificates, certLogs, timestamps, entryLogs)
	return m, err
}

//nolint:gochecknoglobals // a constant table
var hashes = map[string]crypto.Hash{"sha256": crypto.SHA256, "sha384": crypto.SHA384, "sha512": crypto.SHA512}

//nolint:ireturn // the interface of sigstore-go
func keyVerifier(k *requirement.Key) (root.TimeConstrainedVerifier, error) {
	public, err := x509.ParsePKIXPublicKey(k.Public)
	if err != nil {
		return nil, fmt.Errorf("invalid key: %w", err)
	}
	hash, ok := hashes[k.Hash]
	if !ok {
		return nil, fmt.Errorf("hash algorithm %q is not supported", k.Hash)
	}
	v, err := sigstore.LoadVerifier(public, hash)
	if err != nil {
		return nil, fmt.Errorf("invalid key: %w", err)
	}
	return root.NewExpiringKey(v, time.Time{}, time.Time{}), nil
}

func authorities(list [][]byte) (all []root.CertificateAuthority, err error) {
	roots, between, err := sortCertificates(list)
	for _, r := range roots {
		all = append(all, &root.FulcioCertificateAuthority{Root: r, Intermediates: between})
	}
	return all, err
}

// sortCertificates separates roots from others. If none is signed by itself, all authorities are roots.
func sortCertificates(list [][]byte) (roots, others []*x509.Certificate, err error) {
	for _, der := range list {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, nil, fmt.Errorf("invalid certificate: %w", err)
		}
		if bytes.Equal(cert.RawIssuer, cert.RawSubject) {
			roots = append(roots, cert)
		} else {
			others = append(others, cert)
		}
	}
	if roots == nil {
		for _, cert := range others {
			if cert.IsCA {
				roots = append(roots, cert)
			}
		}
	}
	return roots, others, nil
}

func timestampAuthority(chain [][]byte) (all []root.TimestampingAuthority, err error) {
	roots, others, err := sortCertificates(chain)
	var service *x509.Certificate
	var between []*x509.Certificate
	for _, cert := range others {
		if cert.IsCA {
			between = append(between, cert)
		} else {
			service = cert
		}
	}
	for _, r := range roots {
		all = append(all, &root.SigstoreTimestampingAuthority{Root: r, Intermediates: between, Leaf: service})
	}
	return all, err
}

func selectLogs(all map[string]*root.TransparencyLog, address string) map[string]*root.TransparencyLog {
	selected := maps.Clone(all)
	maps.DeleteFunc(selected, func(_ string, l *root.TransparencyLog) bool {
		return address != "" && !strings.EqualFold(strings.TrimRight(l.BaseURL, "/"), strings.TrimRight(address, "/"))
	})
	return selected
}

// logs returns the logs of a list of keys. address is that of the log, "" if it is not known; entries of version 2
// are verified only with it.
func logs(keys [][]byte, address string) (map[string]*root.TransparencyLog, error) {
	all := map[string]*root.TransparencyLog{}
	for _, der := range keys {
		public, err := x509.ParsePKIXPublicKey(der)
		if err != nil {
			return nil, fmt.Errorf("invalid key of a log: %w", err)
		}
		id := sha256.Sum256(der)
		l := &root.TransparencyLog{
			BaseURL: address, ID: id[:], HashFunc: crypto.SHA256, SignatureHashFunc: crypto.SHA256, PublicKey: public,
			ValidityPeriodStart: time.Unix(0, 0), // sigstore-go requires one
		}
		all[hex.EncodeToString(id[:])] = l
		if u, err := url.Parse(address); err == nil && u.Hostname() != "" {
			if _, id, err := note.KeyHash(u.Hostname(), public); err == nil { // how logs of version 2 are identified
				all[hex.EncodeToString(id)] = l
			}
		}
	}
	return all, nil
}

var errIdentity = errors.New("signed by")

var errKind = errors.New("signed")

// verify returns who has made a signature of what s.digests name.
func (l *leaf) verify(s *signature) (signer string, err error) {
	if l.err != nil {
		return "", l.err
	}
	if err := l.is(s); err != nil {
		return "", err
	}
	switch {
	case l.signed.Keyless != nil && s.certificate == nil:
		return "", fmt.Errorf("%w with a key, and not by the identity of a certificate", errKind)
	case l.signed.Keyless == nil && s.certificate != nil && s.payload == nil:
		return "", fmt.Errorf("%w by %s, and not with a key", errKind, identity(s.certificate))
	}
	entity, option := s.keyed, sigverify.WithKey()
	if l.signed.Keyless != nil {
		entity, option = s.bundle, sigverify.WithoutIdentitiesUnsafe() // hasIdentity follows
	}
	artifact := sigverify.WithArtifact(bytes.NewReader(s.payload))
	if s.statement != nil { // whose subjects are s.digests
		entity, artifact = stated{entity}, sigverify.WithoutArtifactUnsafe()
	}
	policy := sigverify.NewPolicy(artifact, option)
	if _, err := l.verifier.Verify(entity, policy); err != nil {
		return "", fmt.Errorf("the signature is not valid for this signer: %w", err)
	}
	if l.signed.Keyless == nil {
		return l.signed.String(), nil
	}
	return hasIdentity(l.signed.Keyless, s.certificate)
}

// A stated entity signs a statement that has been read. sigstore-go would decode it twice more for each signer.
type stated struct{ sigverify.SignedEntity }

// SignatureContent returns the content of the entity without the statement.
//
//nolint:ireturn // the interface of sigstore-go
func (s stated) SignatureContent() (sigverify.SignatureContent, error) {
	content, err := s.SignedEntity.SignatureContent()
	return statedContent{content}, err
}

type statedContent struct{ sigverify.SignatureContent }

// EnvelopeContent returns the signed envelope.
//
//nolint:ireturn // the interface of sigstore-go
func (c statedContent) EnvelopeContent() sigverify.EnvelopeContent {
	return statedEnvelope{c.SignatureContent.EnvelopeContent()}
}

type statedEnvelope struct{ sigverify.EnvelopeContent }

// Statement returns one without content, which only the result of a verification has.
func (statedEnvelope) Statement() (*intoto.Statement, error) { return &intoto.Statement{}, nil }

func hasIdentity(want *requirement.Keyless, cert *x509.Certificate) (string, error) {
	got, err := certificate.SummarizeCertificate(cert)
	if err != nil {
		return "", err
	}
	if !want.Issuer.Matches(got.Issuer) || !want.Subject.Matches(got.SubjectAlternativeName) {
		return "", fmt.Errorf("%w %s", errIdentity, identity(cert))
	}
	has := map[string]string{} // plain texts, as the extensions of requirement.ExtensionID are
	for _, e := range cert.Extensions {
		has[e.Id.String()] = string(e.Value)
	}
	for id, value := range want.Extensions {
		if value == "" || has[id] != value {
			return "", fmt.Errorf("%w %s, whose certificate has %s %q",
				errIdentity, identity(cert), requirement.ExtensionName(id), clean(has[id]))
		}
	}
	return identity(cert), nil
}

// identity names subject and issuer of a certificate, for messages. They are not verified by this.
func identity(cert *x509.Certificate) string {
	got, err := certificate.SummarizeCertificate(cert)
	if err != nil {
		return "a certificate without an identity"
	}
	return fmt.Sprintf("identity %s of issuer %s", clean(got.SubjectAlternativeName), clean(got.Issuer))
}
