package sigstoretest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/url"
	"strconv"
	"testing"
	"time"

	ct "github.com/google/certificate-transparency-go"
	"github.com/google/certificate-transparency-go/tls"
	ctx509 "github.com/google/certificate-transparency-go/x509"
	"github.com/google/certificate-transparency-go/x509util"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pullgate/pullgate/internal/testkit"
)

// Types of statements, and the identity of the certificates.
const (
	SignType       = "https://sigstore.dev/cosign/sign/v1"
	AttestType     = "https://cyclonedx.org/bom"
	Issuer         = "https://token.actions.githubusercontent.com"
	Workflow       = "https://github.com/team/app/.github/workflows/release.yaml@refs/tags/v1"
	GitHubWorkflow = "1.3.6.1.4.1.57264.1."
)

// NewKey returns a new key.
func NewKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	return testkit.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(tb)
}

// PublicDER returns a public key as PKIX.
func PublicDER(tb testing.TB, key crypto.PublicKey) []byte {
	tb.Helper()
	return testkit.Value(x509.MarshalPKIXPublicKey(key))(tb)
}

// A Statement is what an image is signed with. The zero value of each field is the right one.
type Statement struct {
	Predicate, Kind string
	Digests         []string
}

// JSON returns the statement.
func (s Statement) JSON(tb testing.TB) []byte {
	tb.Helper()
	if s.Predicate == "" {
		s.Predicate = SignType
	}
	if s.Kind == "" {
		s.Kind = "https://in-toto.io/Statement/v1"
	}
	subjects := []any{}
	for _, d := range s.Digests {
		subjects = append(subjects, map[string]any{"digest": map[string]string{"sha256": d[len("sha256:"):]}})
	}
	return testkit.Value(json.Marshal(map[string]any{
		"_type": s.Kind, "subject": subjects, "predicateType": s.Predicate,
		"predicate": map[string]any{},
	}))(tb)
}

// Sign returns the signature of data.
func Sign(tb testing.TB, key *ecdsa.PrivateKey, data []byte) []byte {
	tb.Helper()
	return testkit.Value(ecdsa.SignASN1(rand.Reader, key, SumOf(data)))(tb)
}

// Envelope returns a bundle without the key, and its signature.
func Envelope(tb testing.TB, key *ecdsa.PrivateKey, payload []byte) *protobundle.Bundle {
	tb.Helper()
	const kind = "application/vnd.in-toto+json"
	return &protobundle.Bundle{
		MediaType: "application/vnd.dev.sigstore.bundle.v0.3+json",
		Content: &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
			Payload: payload, PayloadType: kind,
			Signatures: []*protodsse.Signature{{Sig: Sign(tb, key, dsse.PAE(kind, payload))}},
		}},
		VerificationMaterial: &protobundle.VerificationMaterial{},
	}
}

// BundleJSON returns a bundle as it is stored.
func BundleJSON(tb testing.TB, b *protobundle.Bundle) []byte {
	tb.Helper()
	return testkit.Value(protojson.Marshal(b))(tb)
}

// KeyBundle returns a bundle that is signed with a key.
func KeyBundle(tb testing.TB, key *ecdsa.PrivateKey, payload []byte) *protobundle.Bundle {
	tb.Helper()
	b := Envelope(tb, key, payload)
	hint := &protocommon.PublicKeyIdentifier{Hint: "hint"}
	b.VerificationMaterial.Content = &protobundle.VerificationMaterial_PublicKey{PublicKey: hint}
	return b
}

// SimplePayload is what is signed in the older form.
func SimplePayload(digest string) []byte {
	return []byte(`{"critical":{"identity":{"docker-reference":"other.test/name"},"image":{"docker-manifest-digest":"` +
		digest +
		`"},"type":"cosign container image signature"},"optional":null}`)
}

// An Authority is a certificate authority, a transparency log, a certificate log and a timestamp authority of a test.
type Authority struct {
	*ca.VirtualSigstore

	Root, Issuer       *x509.Certificate
	RootKey, Key, CTFE *ecdsa.PrivateKey
}

// NewAuthority returns a new authority.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	virtual := testkit.Value(ca.NewVirtualSigstore())(tb)
	rootCert, rootKey, err := ca.GenerateRootCa()
	testkit.Must(tb, err)
	issuer, key, err := ca.GenerateFulcioIntermediate(rootCert, rootKey)
	testkit.Must(tb, err)
	return &Authority{
		VirtualSigstore: virtual, Root: rootCert, RootKey: rootKey, Issuer: issuer, Key: key,
		CTFE: NewKey(tb),
	}
}

// TrustedRoot returns the trusted_root.json of the authority, after a change of its parts.
func (a *Authority) TrustedRoot(tb testing.TB, change func(*root.FulcioCertificateAuthority,
	*root.TransparencyLog),
) []byte {
	tb.Helper()
	authority := &root.FulcioCertificateAuthority{
		Root: a.Root, Intermediates: []*x509.Certificate{a.Issuer}, URI: "https://ca.test",
		ValidityPeriodStart: time.Now().Add(-time.Hour), ValidityPeriodEnd: time.Now().Add(time.Hour),
	}
	log := a.Log(tb)
	if change != nil {
		change(authority, log)
	}
	certLog := &root.TransparencyLog{
		BaseURL: "https://ctfe.test", ID: logID(tb, a.CTFE), ValidityPeriodStart: time.Now().Add(-time.Hour),
		HashFunc: crypto.SHA256, SignatureHashFunc: crypto.SHA256, PublicKey: a.CTFE.Public(),
	}
	trusted := testkit.Value(root.NewTrustedRoot(root.TrustedRootMediaType01, []root.CertificateAuthority{authority},
		map[string]*root.TransparencyLog{hex.EncodeToString(certLog.ID): certLog}, a.TimestampingAuthorities(),
		map[string]*root.TransparencyLog{hex.EncodeToString(log.ID): log}))(tb)
	return testkit.Value(trusted.MarshalJSON())(tb)
}

func logID(tb testing.TB, key *ecdsa.PrivateKey) []byte {
	tb.Helper()
	return SumOf(PublicDER(tb, key.Public()))
}

// Log returns the transparency log, with the ID that a trusted root needs.
func (a *Authority) Log(tb testing.TB) *root.TransparencyLog {
	tb.Helper()
	for id, log := range a.RekorLogs() {
		log.ID = testkit.Value(hex.DecodeString(id))(tb)
		return log
	}
	tb.Fatal("no log")
	return nil
}

// LeafOptions say what a certificate has.
type LeafOptions struct {
	Subject, Issuer string
	From, Until     time.Duration // relative to now
	NoSCT           bool
	CTFE            *ecdsa.PrivateKey
	Extensions      map[string]string
}

// Certificate returns a certificate of a Workflow.
func (a *Authority) Certificate(tb testing.TB, change func(*LeafOptions)) (*x509.Certificate, *ecdsa.PrivateKey) {
	tb.Helper()
	o := LeafOptions{
		Subject: Workflow, Issuer: Issuer, From: -time.Minute, Until: 9 * time.Minute, CTFE: a.CTFE,
		Extensions: map[string]string{"2": "push", "3": "0123abcd", "5": "team/app", "6": "refs/tags/v1"},
	}
	if change != nil {
		change(&o)
	}
	key := NewKey(tb)
	subject := testkit.Value(url.Parse(o.Subject))(tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(o.From), NotAfter: time.Now().Add(o.Until),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		URIs: []*url.URL{subject},
	}
	encoded := testkit.Value(asn1.MarshalWithParams(o.Issuer, "utf8"))(tb)
	add := func(last int, value []byte) {
		template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{
			Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, last}, Value: value,
		})
	}
	add(1, []byte(o.Issuer)) // what cosign reads for the older form
	add(8, encoded)
	for id, value := range o.Extensions {
		add(testkit.Value(strconv.Atoi(id))(tb), []byte(value))
	}
	issue := func() *x509.Certificate {
		der := testkit.Value(x509.CreateCertificate(rand.Reader, template, a.Issuer, key.Public(), a.Key))(tb)
		return testkit.Value(x509.ParseCertificate(der))(tb)
	}
	cert := issue()
	if o.NoSCT {
		return cert, key
	}
	template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{
		Id: asn1.ObjectIdentifier(ctx509.OIDExtensionCTSCT), Value: a.timestampOf(tb, o.CTFE, cert),
	})
	return issue(), key
}

func (a *Authority) timestampOf(tb testing.TB, key *ecdsa.PrivateKey, cert *x509.Certificate) []byte {
	tb.Helper()
	sct := ct.SignedCertificateTimestamp{
		SCTVersion: ct.V1, LogID: ct.LogID{KeyID: [32]byte(logID(tb, key))},
		Timestamp: uint64(time.Now().UnixMilli()),
	}
	input := testkit.Value(ct.SerializeSCTSignatureInput(sct, ct.LogEntry{Leaf: ct.MerkleTreeLeaf{
		Version: ct.V1, LeafType: ct.TimestampedEntryLeafType, TimestampedEntry: &ct.TimestampedEntry{
			Timestamp: sct.Timestamp, EntryType: ct.PrecertLogEntryType,
			PrecertEntry: &ct.PreCert{
				IssuerKeyHash:  sha256.Sum256(a.Issuer.RawSubjectPublicKeyInfo),
				TBSCertificate: cert.RawTBSCertificate,
			},
		},
	}}))(tb)
	sct.Signature = ct.DigitallySigned{
		Algorithm: tls.SignatureAndHashAlgorithm{Hash: tls.SHA256, Signature: tls.ECDSA},
		Signature: Sign(tb, key, input),
	}
	list := testkit.Value(x509util.MarshalSCTsIntoSCTList([]*ct.SignedCertificateTimestamp{&sct}))(tb)
	bytes := testkit.Value(tls.Marshal(*list))(tb)
	return testkit.Value(asn1.Marshal(bytes))(tb)
}

// CertificatePEM returns a certificate as PEM.
func CertificatePEM(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

// Entry returns the log entry of a body, with inclusion proof and promise.
func (a *Authority) Entry(tb testing.TB, kind string, body any, at time.Time) *protorekor.TransparencyLogEntry {
	tb.Helper()
	data := testkit.Value(json.Marshal(map[string]any{"apiVersion": "0.0.1", "kind": kind, "spec": body}))(tb)
	id := a.Log(tb).ID
	set := testkit.Value(a.RekorSignPayload(tlog.RekorPayload{
		Body: base64.StdEncoding.EncodeToString(data), IntegratedTime: at.Unix(), LogIndex: 0, LogID: hex.EncodeToString(id),
	}))(tb)
	proof := testkit.Value(a.GetInclusionProof(data))(tb)
	rootHash := testkit.Value(hex.DecodeString(*proof.RootHash))(tb)
	return &protorekor.TransparencyLogEntry{
		LogId: &protocommon.LogId{KeyId: id}, KindVersion: &protorekor.KindVersion{Kind: kind, Version: "0.0.1"},
		IntegratedTime:   at.Unix(),
		InclusionPromise: &protorekor.InclusionPromise{SignedEntryTimestamp: set},
		InclusionProof: &protorekor.InclusionProof{
			TreeSize: *proof.TreeSize, RootHash: rootHash, Checkpoint: &protorekor.Checkpoint{Envelope: *proof.Checkpoint},
		},
		CanonicalizedBody: data,
	}
}

// SHA256Of returns the hash of data as log entries have it.
func SHA256Of(data []byte) map[string]string {
	return map[string]string{"algorithm": "sha256", "value": hex.EncodeToString(SumOf(data))}
}

// EnvelopeEntry returns the log entry of a bundle whose key or certificate is verifier, in PEM form.
func (a *Authority) EnvelopeEntry(tb testing.TB, b *protobundle.Bundle, verifier []byte,
	at time.Time,
) *protorekor.TransparencyLogEntry {
	tb.Helper()
	e := b.GetDsseEnvelope()
	whole := testkit.Value(json.Marshal(map[string]any{
		"payload": e.Payload, "payloadType": e.PayloadType,
		"signatures": []any{map[string]any{"sig": e.Signatures[0].Sig}},
	}))(tb)
	return a.Entry(tb, "dsse", map[string]any{
		"envelopeHash": SHA256Of(whole), "payloadHash": SHA256Of(e.Payload),
		"signatures": []any{map[string]any{"signature": e.Signatures[0].Sig, "verifier": verifier}},
	}, at)
}

// KeylessBundle returns a bundle that is signed by the identity of a certificate, with log entry and timestamp.
func (a *Authority) KeylessBundle(tb testing.TB, cert *x509.Certificate, key *ecdsa.PrivateKey, payload []byte,
	at time.Time,
) *protobundle.Bundle {
	tb.Helper()
	b := Envelope(tb, key, payload)
	stamp := testkit.Value(a.TimestampResponse(b.GetDsseEnvelope().Signatures[0].Sig))(tb)
	b.VerificationMaterial = &protobundle.VerificationMaterial{
		Content: &protobundle.VerificationMaterial_Certificate{
			Certificate: &protocommon.X509Certificate{RawBytes: cert.Raw},
		},
		TlogEntries: []*protorekor.TransparencyLogEntry{a.EnvelopeEntry(tb, b, CertificatePEM(cert), at)},
		TimestampVerificationData: &protobundle.TimestampVerificationData{
			Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: stamp}},
		},
	}
	return b
}

// SimpleAnnotations makes a signature of the older form, with certificate and log entry if cert is given.
func (a *Authority) SimpleAnnotations(tb testing.TB, cert *x509.Certificate, key *ecdsa.PrivateKey, payload []byte,
	at time.Time,
) map[string]string {
	tb.Helper()
	sig := Sign(tb, key, payload)
	annotations := map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig)}
	if cert == nil {
		return annotations
	}
	entry := a.Entry(tb, "hashedrekord", map[string]any{
		"data":      map[string]any{"hash": SHA256Of(payload)},
		"signature": map[string]any{"content": sig, "publicKey": map[string]any{"content": CertificatePEM(cert)}},
	}, at)
	log := testkit.Value(json.Marshal(map[string]any{
		"SignedEntryTimestamp": entry.InclusionPromise.SignedEntryTimestamp,
		"Payload": map[string]any{
			"body": entry.CanonicalizedBody, "integratedTime": entry.IntegratedTime, "logIndex": 0,
			"logID": hex.EncodeToString(entry.LogId.KeyId),
		},
	}))(tb)
	annotations["dev.sigstore.cosign/certificate"] = string(CertificatePEM(cert))
	annotations["dev.sigstore.cosign/chain"] = string(bytes.Join([][]byte{
		CertificatePEM(a.Issuer),
		CertificatePEM(a.Root),
	}, nil))
	annotations["dev.sigstore.cosign/bundle"] = string(log)
	return annotations
}

// PublicPEM returns the public key of a key as PEM.
func PublicPEM(tb testing.TB, key *ecdsa.PrivateKey) []byte {
	tb.Helper()
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: PublicDER(tb, key.Public())})
}

// SumOf returns the SHA-256 of data.
func SumOf(data []byte) []byte {
	sum := sha256.Sum256(data)
	return sum[:]
}
