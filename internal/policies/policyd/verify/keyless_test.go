package verify_test

import (
	"crypto/rand"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/root"

	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

// keyless requires a signature by the workflow, after a change.
func keyless(change func(*requirement.Signer)) *requirement.Requirement {
	s := &requirement.Signer{
		Keyless: &requirement.Keyless{
			Issuer: requirement.Exactly(issuer), Subject: requirement.Glob("https://github.com/team/app/*"),
			Extensions: map[string]string{
				githubWorkflow + "2": "push", githubWorkflow + "3": "0123abcd", githubWorkflow + "5": "team/app",
				githubWorkflow + "6": "refs/tags/v1",
			},
		},
		Log: &requirement.Log{},
	}
	if change != nil {
		change(s)
	}
	return &requirement.Requirement{SignedBy: s}
}

// A keylessCase is a signature by an identity, and what is required. Each function changes something of a case that
// is met.
type keylessCase struct {
	certificate func(*sigstoretest.LeafOptions)
	at          time.Duration // of the log entry, relative to now
	bundle      func(*protobundle.VerificationMaterial)
	trusted     func(*root.FulcioCertificateAuthority, *root.TransparencyLog)
	noTrusted   bool
	want        func(*requirement.Signer)
	expect      string
	simple      string // what is expected of the older form, if it differs
}

// Shows: 002-22
func TestKeyless(t *testing.T) {
	a, other := sigstoretest.NewAuthority(t), sigstoretest.NewAuthority(t)
	ownRoots := func(from *sigstoretest.Authority) func(*requirement.Signer) {
		return func(s *requirement.Signer) {
			s.Keyless.Roots = [][]byte{from.Root.Raw, from.Issuer.Raw}
			s.Keyless.CTLogKeys = [][]byte{sigstoretest.PublicDER(t, from.CTFE.Public())}
			s.Log.Keys = [][]byte{sigstoretest.PublicDER(t, from.Log(t).PublicKey)}
		}
	}
	noSCT := func(o *sigstoretest.LeafOptions) { o.NoSCT = true }
	const badSCT = "SIGNATURE_INVALID; failed to verify signed certificate timestamp"
	for name, tc := range map[string]keylessCase{
		"right identity":     {expect: "met"},
		"own roots and logs": {expect: "met", want: ownRoots(a), noTrusted: true},
		"own root, and the certificate brings those below it": {
			expect: "met",
			want:   func(s *requirement.Signer) { s.Keyless.Roots = [][]byte{a.Root.Raw} },
			bundle: func(m *protobundle.VerificationMaterial) {
				if leaf := m.GetCertificate(); leaf != nil {
					m.Content = chainOf(leaf.RawBytes, a.Issuer.Raw)
				}
			},
		},
		"roots of another authority": {expect: "SIGNATURE_INVALID; transparency log", want: ownRoots(other), noTrusted: true},
		"only the roots of another authority": {
			expect: "SIGNATURE_INVALID; not valid for this signer: failed to verify leaf certificate",
			want:   func(s *requirement.Signer) { s.Keyless.Roots = [][]byte{other.Root.Raw, other.Issuer.Raw} },
		},
		"no trusted root": {expect: "SIGNATURE_INVALID; relies on a trusted root, and none is configured", noTrusted: true},
		"wrong workflow": {
			expect:      "IDENTITY_MISMATCH; signed by identity https://github.com/other/app of issuer " + issuer,
			certificate: func(o *sigstoretest.LeafOptions) { o.Subject = "https://github.com/other/app" },
		},
		"wrong issuer": {
			expect:      "IDENTITY_MISMATCH; of issuer https://issuer.test",
			certificate: func(o *sigstoretest.LeafOptions) { o.Issuer = "https://issuer.test" },
		},
		"wrong extension": {
			expect:      `IDENTITY_MISMATCH; whose certificate has githubWorkflowRef "refs/heads/main"`,
			certificate: func(o *sigstoretest.LeafOptions) { o.Extensions["6"] = "refs/heads/main" },
		},
		"identity with control characters": {
			expect:      "IDENTITY_MISMATCH; of issuer https://i.test/ ?[31m",
			certificate: func(o *sigstoretest.LeafOptions) { o.Issuer = "https://i.test/\n\x1b[31m" },
		},
		"certificate expired before the log entry": {
			expect: "SIGNATURE_INVALID; integrated time outside certificate validity",
			at:     10 * time.Minute,
		},
		"certificate expired after the log entry": {
			expect: "met", at: -15 * time.Minute,
			certificate: func(o *sigstoretest.LeafOptions) { o.From, o.Until = -20*time.Minute, -10*time.Minute },
			bundle:      func(m *protobundle.VerificationMaterial) { m.TimestampVerificationData = nil }, // which is of now
			trusted: func(ca *root.FulcioCertificateAuthority, _ *root.TransparencyLog) {
				ca.Intermediates = []*x509.Certificate{reissued(t, a)}
			},
			want: func(s *requirement.Signer) { s.Keyless.IgnoreSCT = true },
		},
		"missing log entry": {
			expect: "SIGNATURE_INVALID; not enough verified log entries",
			bundle: func(m *protobundle.VerificationMaterial) { m.TlogEntries = nil },
		},
		"timestamp instead of a log entry": {
			expect: "met", simple: "SIGNATURE_INVALID; not valid for this signer: failed to verify timestamps",
			bundle: func(m *protobundle.VerificationMaterial) { m.TlogEntries = nil },
			want:   func(s *requirement.Signer) { s.Log, s.Timestamp = nil, &requirement.Timestamp{} },
		},
		"log entry and timestamp": {
			expect: "met", simple: "SIGNATURE_INVALID; not valid for this signer: failed to verify timestamps",
			want: func(s *requirement.Signer) { s.Timestamp = &requirement.Timestamp{} },
		},
		"missing timestamp": {
			expect: "SIGNATURE_INVALID; not valid for this signer: failed to verify timestamps",
			bundle: func(m *protobundle.VerificationMaterial) { m.TimestampVerificationData = nil },
			want:   func(s *requirement.Signer) { s.Timestamp = &requirement.Timestamp{} },
		},
		"no proof of the time": {
			expect: "SIGNATURE_INVALID; nothing proves when",
			want:   func(s *requirement.Signer) { s.Log = nil },
		},
		"no SCT":             {expect: badSCT, certificate: noSCT},
		"SCT by another log": {expect: badSCT, certificate: func(o *sigstoretest.LeafOptions) { o.CTFE = other.CTFE }},
		"no SCT is necessary": {
			expect: "met", certificate: noSCT,
			want: func(s *requirement.Signer) { s.Keyless.IgnoreSCT = true },
		},
		"log by URL": {expect: "met", want: func(s *requirement.Signer) { s.Log.URL = "https://REKOR.localhost/" }},
		"another log by URL": {
			expect: "SIGNATURE_INVALID; has no transparency log with the URL",
			want:   func(s *requirement.Signer) { s.Log.URL = "https://rekor.test" },
		},
		"log whose key is no longer valid": {
			expect: "SIGNATURE_INVALID; not enough verified log entries",
			trusted: func(_ *root.FulcioCertificateAuthority, l *root.TransparencyLog) {
				l.ValidityPeriodEnd = time.Now().Add(-time.Minute)
			},
		},
		"authority that was not valid yet": {
			expect: "SIGNATURE_INVALID; not valid for this signer: failed to verify leaf certificate",
			trusted: func(ca *root.FulcioCertificateAuthority, _ *root.TransparencyLog) {
				ca.ValidityPeriodStart = time.Now().Add(time.Minute)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cert, key := a.Certificate(t, tc.certificate)
			at := time.Now().Add(tc.at)
			var trusted []byte
			if !tc.noTrusted {
				trusted = a.TrustedRoot(t, tc.trusted)
			}
			judge := func(expected string, attach func(*memory, image)) {
				t.Helper()
				m, i := withImage(t)
				attach(m, i)
				c := newCheck(m, i, keyless(tc.want))
				c.options.TrustedRoot = trusted
				expect(t, c.result(t), expected)
			}
			judge(tc.expect, func(m *memory, i image) {
				b := a.KeylessBundle(t, cert, key, about(t, i.index), at)
				if tc.bundle != nil {
					tc.bundle(b.VerificationMaterial)
				}
				m.bundle(t, i.index, b)
			})
			simple := tc.simple
			if simple == "" {
				simple = tc.expect
			}
			judge(simple, func(m *memory, i image) {
				annotations := a.SimpleAnnotations(t, cert, key, payloadOf(i.index), at)
				var material protobundle.VerificationMaterial
				material.TlogEntries = append(material.TlogEntries, nil)
				if tc.bundle != nil {
					tc.bundle(&material)
				}
				if material.TlogEntries == nil {
					delete(annotations, "dev.sigstore.cosign/bundle")
				}
				m.attachSimple(t, i.index, payloadOf(i.index), annotations)
			})
		})
	}
}

func chainOf(certificates ...[]byte) *protobundle.VerificationMaterial_X509CertificateChain {
	var chain protocommon.X509CertificateChain
	for _, der := range certificates {
		chain.Certificates = append(chain.Certificates, &protocommon.X509Certificate{RawBytes: der})
	}
	return &protobundle.VerificationMaterial_X509CertificateChain{X509CertificateChain: &chain}
}

// reissued returns the certificate of the issuer, valid for longer.
func reissued(t *testing.T, a *sigstoretest.Authority) *x509.Certificate {
	t.Helper()
	template := *a.Issuer
	template.NotBefore = time.Now().Add(-time.Hour)
	der := testkit.Value(x509.CreateCertificate(rand.Reader, &template, a.Root, a.Issuer.PublicKey, a.RootKey))(t)
	return testkit.Value(x509.ParseCertificate(der))(t)
}

func TestKeyAndCertificateDoNotReplaceEachOther(t *testing.T) {
	a := sigstoretest.NewAuthority(t)
	cert, key := a.Certificate(t, nil)
	m, i := withImage(t)
	m.bundle(t, i.index, a.KeylessBundle(t, cert, key, about(t, i.index), time.Now()))
	c := newCheck(m, i, keyLeaf(t, sigstoretest.NewKey(t)))
	expect(t, c.result(t), "SIGNATURE_MISSING; signed by identity https://github.com/team/app/")

	m = newMemory()
	attachKey(t, m, i.index, key)
	m.putImage(t, "app", "1")
	c = newCheck(m, i, keyless(nil))
	c.options.TrustedRoot = a.TrustedRoot(t, nil)
	expect(t, c.result(t), "SIGNATURE_MISSING; signed with a key")
}

// A certificate beside a signature that is made with a key says nothing about the key.
func TestKeyBesideACertificate(t *testing.T) {
	a, key := sigstoretest.NewAuthority(t), sigstoretest.NewKey(t)
	m, i := withImage(t)
	payload := payloadOf(i.index)
	annotations := (*sigstoretest.Authority)(nil).SimpleAnnotations(t, nil, key, payload, time.Now())
	annotations["dev.sigstore.cosign/certificate"] = string(sigstoretest.CertificatePEM(a.Issuer))
	m.attachSimple(t, i.index, payload, annotations)
	expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), "met")
}

func TestKeyWithLog(t *testing.T) {
	a, key := sigstoretest.NewAuthority(t), sigstoretest.NewKey(t)
	want := keyLeaf(t, key)
	want.SignedBy.Log = &requirement.Log{Keys: [][]byte{sigstoretest.PublicDER(t, a.Log(t).PublicKey)}}
	for name, tc := range map[string]struct {
		logged bool
		expect string
	}{"with an entry": {true, "met"}, "without": {false, "SIGNATURE_INVALID; transparency log"}} {
		t.Run(name, func(t *testing.T) {
			m, i := withImage(t)
			b := sigstoretest.KeyBundle(t, key, about(t, i.index))
			if tc.logged {
				entry := a.EnvelopeEntry(t, b, sigstoretest.PublicPEM(t, key), time.Now())
				b.VerificationMaterial.TlogEntries = append(b.VerificationMaterial.TlogEntries, entry)
			}
			m.bundle(t, i.index, b)
			expect(t, newCheck(m, i, want).result(t), tc.expect)
		})
	}
}

func TestOlderBundles(t *testing.T) {
	a := sigstoretest.NewAuthority(t)
	cert, key := a.Certificate(t, nil)
	for _, version := range []string{"+json;version=0.1", "+json;version=0.2", "+json;version=0.3", ".v0.3+json"} {
		m, i := withImage(t)
		b := a.KeylessBundle(t, cert, key, about(t, i.index), time.Now())
		b.MediaType = "application/vnd.dev.sigstore.bundle" + version
		if version < "+json;version=0.3" {
			b.VerificationMaterial.Content = chainOf(cert.Raw, a.Issuer.Raw)
		}
		m.bundle(t, i.index, b)
		c := newCheck(m, i, keyless(nil))
		c.options.TrustedRoot = a.TrustedRoot(t, nil)
		if r := c.result(t); !r.Met {
			t.Errorf("bundle %s: %s", version, r.Message)
		}
	}
}

// An entry of a log of version 2 has no time. The timestamp says it.
func TestSecondVersionOfTheLog(t *testing.T) {
	a := sigstoretest.NewAuthority(t)
	const email, oidc = "dev@team.test", "https://accounts.team.test"
	authority, ok := a.FulcioCertificateAuthorities()[0].(*root.FulcioCertificateAuthority)
	if !ok {
		t.Fatal("unexpected type of authority")
	}
	own := [][]byte{authority.Root.Raw, authority.Intermediates[0].Raw}
	keys := [][]byte{sigstoretest.PublicDER(t, a.Log(t).PublicKey)}
	for name, tc := range map[string]struct {
		change func(*requirement.Signer)
		stamp  bool
		expect string
	}{
		"trusted root": {func(*requirement.Signer) {}, true, "met"},
		"own log": {func(s *requirement.Signer) {
			s.Log, s.Timestamp = &requirement.Log{URL: "https://rekor.localhost", Keys: keys}, &requirement.Timestamp{}
		}, true, "met"},
		"own log without its URL": {func(s *requirement.Signer) {
			s.Log, s.Timestamp = &requirement.Log{Keys: keys}, &requirement.Timestamp{}
		}, true, "SIGNATURE_INVALID; without baseUrl"},
		"no timestamp": {
			func(*requirement.Signer) {}, false,
			"SIGNATURE_INVALID; not valid for this signer: failed to verify timestamps",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withImage(t)
			entity := testkit.Value(a.AttestHashedRekordV2(email, oidc, about(t, i.index)))(t)
			content := testkit.Value(entity.SignatureContent())(t)
			material := testkit.Value(entity.VerificationContent())(t)
			entries := testkit.Value(entity.TlogEntries())(t)
			stamps := testkit.Value(entity.Timestamps())(t)
			raw := content.EnvelopeContent().RawEnvelope()
			payload := testkit.Value(raw.DecodeB64Payload())(t)
			b := &protobundle.Bundle{
				MediaType: "application/vnd.dev.sigstore.bundle.v0.3+json",
				Content: &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
					Payload: payload, PayloadType: raw.PayloadType,
					Signatures: []*protodsse.Signature{{Sig: content.Signature(), Keyid: raw.Signatures[0].KeyID}},
				}},
				VerificationMaterial: &protobundle.VerificationMaterial{
					Content: &protobundle.VerificationMaterial_Certificate{
						Certificate: &protocommon.X509Certificate{RawBytes: material.Certificate().Raw},
					},
					TlogEntries: []*protorekor.TransparencyLogEntry{entries[0].TransparencyLogEntry()},
				},
			}
			if tc.stamp {
				b.VerificationMaterial.TimestampVerificationData = &protobundle.TimestampVerificationData{
					Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: stamps[0]}},
				}
			}
			m.bundle(t, i.index, b)
			c := newCheck(m, i, keyless(func(s *requirement.Signer) {
				s.Keyless = &requirement.Keyless{Roots: own, IgnoreSCT: true}
				s.Keyless.Issuer, s.Keyless.Subject = requirement.Exactly(oidc), requirement.Exactly(email)
				tc.change(s)
			}))
			c.options.TrustedRoot = a.TrustedRoot(t, nil)
			expect(t, c.result(t), tc.expect)
		})
	}
}

func TestTrustedRootIsChecked(t *testing.T) {
	a := sigstoretest.NewAuthority(t)
	for name, tc := range map[string]struct {
		data []byte
		now  time.Time
		want string
	}{
		"valid":      {a.TrustedRoot(t, nil), time.Now(), ""},
		"expired":    {a.TrustedRoot(t, nil), time.Now().Add(10 * time.Hour), "has expired at "},
		"empty":      {[]byte{}, time.Now(), "failed to proto-json unmarshal"},
		"not JSON":   {[]byte("{"), time.Now(), "failed to proto-json unmarshal"},
		"other file": {[]byte(`{"mediaType":"application/json"}`), time.Now(), "unsupported"},
		"no part": {
			[]byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`), time.Now(),
			"has no certificate authority",
		},
	} {
		_, err := verify.ExpiredParts(tc.data, tc.now)
		if got := text(err); tc.want == "" && err != nil || tc.want != "" && !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %q; want %q", name, got, tc.want)
		}
	}
}
