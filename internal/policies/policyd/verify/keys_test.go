package verify_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/digitorus/pkcs7"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"

	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

// A check with a key of this size takes many seconds.
func hugeKey() *rsa.PublicKey {
	n := new(big.Int).Lsh(big.NewInt(1), 150_000)
	return &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 1<<31 - 1}
}

// timestampOf returns the answer of a timestamp authority with a token.
func timestampOf(t *testing.T, signed *pkcs7.SignedData) []byte {
	t.Helper()
	return testkit.Value(asn1.Marshal(struct {
		Status struct{ Status int }
		Token  asn1.RawValue
	}{Token: asn1.RawValue{FullBytes: testkit.Value(signed.Finish())(t)}}))(t)
}

func TestHugeKeysAreNotUsed(t *testing.T) {
	a, key := sigstoretest.NewAuthority(t), sigstoretest.NewKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
	}
	der := testkit.Value(x509.CreateCertificate(rand.Reader, template, template, hugeKey(), key))(t)
	huge := testkit.Value(x509.ParseCertificate(der))(t)
	signed := testkit.Value(pkcs7.NewSignedData([]byte("token")))(t)
	signed.AddCertificate(huge)
	stamp := timestampOf(t, signed)
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: sigstoretest.PublicDER(t, hugeKey())})
	logOf := func(signature any) map[string]any {
		return map[string]any{"data": map[string]any{"hash": sigstoretest.SHA256Of(payloadOf("x"))}, "signature": signature}
	}
	entryOf := func(text []byte) *protorekor.TransparencyLogEntry {
		signature := map[string]any{"content": make([]byte, 18_000), "publicKey": map[string]any{"content": text}}
		return a.Entry(t, "hashedrekord", logOf(signature), time.Now())
	}
	inLog := entryOf(public)

	for name, attach := range map[string]func(m *memory, i image){
		"certificate": func(m *memory, i image) {
			cert, leafKey := a.Certificate(t, nil)
			b := a.KeylessBundle(t, cert, leafKey, about(t, i.index), time.Now())
			b.VerificationMaterial.GetCertificate().RawBytes = der
			m.bundle(t, i.index, b)
		},
		"timestamp": func(m *memory, i image) {
			cert, leafKey := a.Certificate(t, nil)
			b := a.KeylessBundle(t, cert, leafKey, about(t, i.index), time.Now())
			stamps(b)[0] = &protocommon.RFC3161SignedTimestamp{SignedTimestamp: stamp}
			m.bundle(t, i.index, b)
		},
		"log entry": func(m *memory, i image) {
			b := sigstoretest.KeyBundle(t, key, about(t, i.index))
			b.VerificationMaterial.TlogEntries = append(b.VerificationMaterial.TlogEntries, inLog)
			m.bundle(t, i.index, b)
		},
		"certificate in a log entry": func(m *memory, i image) {
			b := sigstoretest.KeyBundle(t, key, about(t, i.index))
			entry := entryOf(sigstoretest.CertificatePEM(huge))
			b.VerificationMaterial.TlogEntries = append(b.VerificationMaterial.TlogEntries, entry)
			m.bundle(t, i.index, b)
		},
		"log entry with a field that is there twice": func(m *memory, i image) {
			text := `{"SignedEntryTimestamp":"eA==","Payload":{"logID":"aa","body":"` + base64.StdEncoding.EncodeToString(
				append(inLog.CanonicalizedBody[:len(inLog.CanonicalizedBody)-1:len(inLog.CanonicalizedBody)-1], `,"spec":{}}`...)) +
				`"}}`
			m.attachSimple(t, i.index, payloadOf(i.index), map[string]string{
				"dev.cosignproject.cosign/signature": "eA==", "dev.sigstore.cosign/bundle": text,
			})
		},
		"certificate of the older form": func(m *memory, i image) {
			cert, leafKey := a.Certificate(t, nil)
			annotations := a.SimpleAnnotations(t, cert, leafKey, payloadOf(i.index), time.Now())
			annotations["dev.sigstore.cosign/chain"] = string(sigstoretest.CertificatePEM(huge))
			m.attachSimple(t, i.index, payloadOf(i.index), annotations)
		},
		"timestamp of the older form": func(m *memory, i image) {
			m.attachSimple(t, i.index, payloadOf(i.index), map[string]string{
				"dev.cosignproject.cosign/signature": "eA==", "dev.sigstore.cosign/rfc3161timestamp": string(encode(t,
					object{"SignedRFC3161Timestamp": stamp})),
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withImage(t)
			attach(m, i)
			c := newCheck(m, i, keyless(nil))
			c.options.TrustedRoot = a.TrustedRoot(t, nil)
			began := time.Now()
			expect(t, c.result(t), "LIMIT_EXCEEDED; a key has")
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("took %v; want it denied at once", took)
			}
		})
	}
}

// Each element of these says that it ends where the next but one ends, so that a reader which does not compare an
// element with the one around it reads the last ones 2^30 times and more.
func TestOverlappingTimestampsAreNotRead(t *testing.T) {
	const pairs = 60
	token := slices.Concat([]byte{0x30, 0x81, 4*pairs + 4}, bytes.Repeat([]byte{0x30, 6, 0x30, 2}, pairs),
		[]byte{5, 0, 5, 0})
	stamp := slices.Concat([]byte{0x30, 0x81, byte(len(token) + 2), 0x30, 0}, token)
	key := sigstoretest.NewKey(t)
	for want, attach := range map[string]func(m *memory, i image){
		"met": func(m *memory, i image) {
			b := sigstoretest.KeyBundle(t, key, about(t, i.index))
			b.VerificationMaterial.TimestampVerificationData = &protobundle.TimestampVerificationData{
				Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: stamp}},
			}
			m.bundle(t, i.index, b)
		},
		"SIGNATURE_INVALID": func(m *memory, i image) {
			m.attachSimple(t, i.index, payloadOf(i.index), map[string]string{
				"dev.cosignproject.cosign/signature": "eA==", "dev.sigstore.cosign/rfc3161timestamp": string(encode(t,
					object{"SignedRFC3161Timestamp": stamp})),
			})
		},
	} {
		m, i := withImage(t)
		attach(m, i)
		expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), want)
	}
}

func TestManyTimestampsAreNotRead(t *testing.T) {
	key := sigstoretest.NewKey(t)
	m, i := withImage(t)
	b := sigstoretest.KeyBundle(t, key, about(t, i.index))
	b.VerificationMaterial.TimestampVerificationData = &protobundle.TimestampVerificationData{
		Rfc3161Timestamps: slices.Repeat([]*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: []byte{5, 0}}}, 5),
	}
	m.bundle(t, i.index, b)
	expect(t, newCheck(m, i, keyLeaf(t, key)).result(t), "LIMIT_EXCEEDED; more than 4 timestamps")
}

// A timestamp has one signature of its authority. Some hundreds fit into one, and each takes time that no limit
// interrupts.
func TestTimestampsHaveOneSigner(t *testing.T) {
	key := sigstoretest.NewKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
	}
	der := testkit.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	cert := testkit.Value(x509.ParseCertificate(der))(t)
	for signers, want := range []bool{false, true, false} {
		signed := testkit.Value(pkcs7.NewSignedData([]byte("token")))(t)
		for range signers {
			if err := signed.SignWithoutAttr(cert, key, pkcs7.SignerInfoConfig{}); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := verify.IsTimestamp(timestampOf(t, signed)); got != want || err != nil {
			t.Errorf("isTimestamp of one with %d signers = %v, %v; want %v", signers, got, err, want)
		}
	}
}
