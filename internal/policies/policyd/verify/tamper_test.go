package verify_test

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"

	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

// flip changes the last byte of data.
func flip(data []byte) []byte {
	out := bytes.Clone(data)
	out[len(out)-1] ^= 1
	return out
}

// A bundle with certificate, log entry and timestamp, of which one part is changed. Both log entry and timestamp are
// required.
func TestTamperedBundles(t *testing.T) {
	a, other := sigstoretest.NewAuthority(t), sigstoretest.NewAuthority(t)
	cert, key := a.Certificate(t, nil)
	otherCert, _ := a.Certificate(t, nil)
	foreignCert, _ := other.Certificate(t, nil)
	trusted := a.TrustedRoot(t, nil)
	m, i := withImage(t)
	evil := m.putImage(t, "evil", "2")
	payload := about(t, i.index)
	type parts = *protobundle.Bundle
	signed := parts.GetDsseEnvelope
	material := parts.GetVerificationMaterial
	leaf := func(b parts) *protocommon.X509Certificate { return material(b).GetCertificate() }
	signature := func(b parts) *protodsse.Signature { return signed(b).Signatures[0] }
	entry := func(b parts) *protorekor.TransparencyLogEntry { return material(b).TlogEntries[0] }
	proof := func(b parts) *protorekor.InclusionProof { return entry(b).InclusionProof }
	another := func(b parts) parts { return a.KeylessBundle(t, cert, key, about(t, evil.index), time.Now()) }
	met := []string{
		"nothing", "kind of the log entry",
		"no promise of the log",
	} // the body says it; the timestamp says when
	for name, change := range map[string]func(parts){
		"nothing":                         func(parts) {},
		"statement about another image":   func(b parts) { signed(b).Payload = about(t, evil.index) },
		"one more image in the statement": func(b parts) { signed(b).Payload = about(t, i.index, evil.index) },
		"statement in other words":        func(b parts) { signed(b).Payload = append([]byte(" "), payload...) },
		"predicate type":                  func(b parts) { signed(b).Payload = attestation(t, i.index) },
		"statement type": func(b parts) {
			signed(b).Payload = sigstoretest.Statement{Kind: "x", Digests: []string{i.index}}.JSON(t)
		},
		"payload type":               func(b parts) { signed(b).PayloadType = "application/json" },
		"no payload":                 func(b parts) { signed(b).Payload = nil },
		"signature":                  func(b parts) { signature(b).Sig = flip(signature(b).Sig) },
		"signature of another image": func(b parts) { signature(b).Sig = signature(another(b)).Sig },
		"no signature":               func(b parts) { signed(b).Signatures = nil },
		"a second signature": func(b parts) {
			signed(b).Signatures = append(signed(b).Signatures, signature(b))
		},
		"key ID of the signature":           func(b parts) { signature(b).Keyid = "x" },
		"another certificate of the signer": func(b parts) { leaf(b).RawBytes = otherCert.Raw },
		"certificate of another authority":  func(b parts) { leaf(b).RawBytes = foreignCert.Raw },
		"certificate":                       func(b parts) { leaf(b).RawBytes = flip(cert.Raw) },
		"certificate of the authority":      func(b parts) { leaf(b).RawBytes = a.Issuer.Raw },
		"no certificate":                    func(b parts) { material(b).Content = nil },
		"a key instead of the certificate": func(b parts) {
			material(b).Content = &protobundle.VerificationMaterial_PublicKey{PublicKey: &protocommon.PublicKeyIdentifier{}}
		},
		"no log entry":               func(b parts) { material(b).TlogEntries = nil },
		"log entry of another image": func(b parts) { material(b).TlogEntries = material(another(b)).TlogEntries },
		"log entry twice":            func(b parts) { material(b).TlogEntries = append(material(b).TlogEntries, entry(b)) },
		"log entry of another log": func(b parts) {
			material(b).TlogEntries[0] = other.EnvelopeEntry(t, b, sigstoretest.CertificatePEM(cert), time.Now())
		},
		"body of the log entry": func(b parts) {
			entry(b).CanonicalizedBody = bytes.Replace(entry(b).CanonicalizedBody, []byte("{"), []byte("{ "), 1)
		},
		"time of the log entry":  func(b parts) { entry(b).IntegratedTime-- },
		"index of the log entry": func(b parts) { entry(b).LogIndex++ },
		"ID of the log":          func(b parts) { entry(b).LogId.KeyId = flip(entry(b).LogId.KeyId) },
		"kind of the log entry":  func(b parts) { entry(b).KindVersion.Kind = "hashedrekord" },
		"promise of the log": func(b parts) {
			entry(b).InclusionPromise.SignedEntryTimestamp = flip(entry(b).InclusionPromise.SignedEntryTimestamp)
		},
		"no promise of the log":       func(b parts) { entry(b).InclusionPromise = nil },
		"no inclusion proof":          func(b parts) { entry(b).InclusionProof = nil },
		"root of the inclusion proof": func(b parts) { proof(b).RootHash = flip(proof(b).RootHash) },
		"hashes of the proof":         func(b parts) { proof(b).Hashes = append(proof(b).Hashes, proof(b).RootHash) },
		"size of the tree":            func(b parts) { proof(b).TreeSize++ },
		"index in the tree":           func(b parts) { proof(b).LogIndex++ },
		"checkpoint": func(b parts) {
			proof(b).Checkpoint.Envelope = strings.Replace(proof(b).Checkpoint.Envelope, "42", "43", 1)
		},
		"timestamp":                  func(b parts) { stamps(b)[0].SignedTimestamp = flip(stamps(b)[0].SignedTimestamp) },
		"timestamp of another image": func(b parts) { stamps(b)[0] = stamps(another(b))[0] },
		"timestamp by another authority": func(b parts) {
			stamps(b)[0].SignedTimestamp = testkit.Value(other.TimestampResponse(signature(b).Sig))(t)
		},
		"no timestamp":                       func(b parts) { material(b).TimestampVerificationData = nil },
		"version of the bundle":              func(b parts) { b.MediaType = strings.Replace(b.MediaType, "v0.3", "v0.4", 1) },
		"no version":                         func(b parts) { b.MediaType = "" },
		"a signature of the manifest's text": func(b parts) { b.Content = messageOf(t, key, m.manifests[i.index]) },
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withImage(t)
			b := a.KeylessBundle(t, cert, key, payload, time.Now())
			change(b)
			m.bundle(t, i.index, b)
			c := newCheck(m, i, keyless(func(s *requirement.Signer) { s.Timestamp = &requirement.Timestamp{} }))
			c.options.TrustedRoot = trusted
			if r := c.result(t); r.Met != slices.Contains(met, name) {
				t.Errorf("met: %v %s", r.Met, r.Message)
			}
		})
	}
}

func stamps(b *protobundle.Bundle) []*protocommon.RFC3161SignedTimestamp {
	return b.VerificationMaterial.TimestampVerificationData.Rfc3161Timestamps
}

// messageOf returns a signature of data itself, as of a file.
func messageOf(t *testing.T, key *ecdsa.PrivateKey, data []byte) *protobundle.Bundle_MessageSignature {
	t.Helper()
	return &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
		MessageDigest: &protocommon.HashOutput{
			Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: sigstoretest.SumOf(data),
		},
		Signature: sigstoretest.Sign(t, key, data),
	}}
}

// The older form with certificate and log entry, of which one part is changed.
func TestTamperedSimpleSignatures(t *testing.T) {
	a, evilAuthority := sigstoretest.NewAuthority(t), sigstoretest.NewAuthority(t)
	cert, key := a.Certificate(t, nil)
	otherCert, _ := a.Certificate(t, nil)
	evilRoot := string(sigstoretest.CertificatePEM(evilAuthority.Root))
	trusted := a.TrustedRoot(t, nil)
	i := newMemory().putImage(t, "app", "1")
	evil := digestOf([]byte("evil"))
	good := a.SimpleAnnotations(t, cert, key, payloadOf(i.index), time.Now())
	const made, prefix = "dev.cosignproject.cosign/signature", "dev.sigstore.cosign/"
	other := sigstoretest.Sign(t, sigstoretest.NewKey(t), payloadOf(i.index))
	set := func(key, value string) func([]byte, map[string]string) []byte {
		return func(payload []byte, annotations map[string]string) []byte { annotations[key] = value; return payload }
	}
	replace := func(key, from, to string) func([]byte, map[string]string) []byte {
		return func(payload []byte, annotations map[string]string) []byte {
			if !strings.Contains(annotations[key], from) {
				t.Fatalf("%s has no %q", key, from)
			}
			annotations[key] = strings.Replace(annotations[key], from, to, 1)
			return payload
		}
	}
	for name, tc := range map[string]struct {
		change func(payload []byte, annotations map[string]string) []byte
		met    bool
	}{
		"nothing":                {func(p []byte, _ map[string]string) []byte { return p }, true},
		"payload about evil":     {func([]byte, map[string]string) []byte { return payloadOf(evil) }, false},
		"payload in other words": {func(p []byte, _ map[string]string) []byte { return append(p, ' ') }, false},
		"type of the payload": {func(p []byte, _ map[string]string) []byte {
			return bytes.Replace(p, []byte("cosign container"), []byte("atomic container"), 1)
		}, false},
		"no payload":            {func([]byte, map[string]string) []byte { return []byte{} }, false},
		"signature":             {set(made, base64.StdEncoding.EncodeToString(other)), false},
		"signature not encoded": {set(made, "%"), false},
		"empty signature":       {set(made, ""), false},
		"another certificate":   {set(prefix+"certificate", string(sigstoretest.CertificatePEM(otherCert))), false},
		"certificate of evil": {
			set(prefix+"certificate", string(sigstoretest.CertificatePEM(evilAuthority.Issuer))),
			false,
		},
		"certificate not PEM":    {set(prefix+"certificate", "x"), false},
		"no certificate":         {set(prefix+"certificate", ""), false},
		"no chain":               {set(prefix+"chain", ""), true}, // the trusted root has it
		"chain of evil":          {set(prefix+"chain", evilRoot), true},
		"chain without end":      {set(prefix+"chain", strings.Repeat(evilRoot, 100)), false},
		"chain not PEM":          {set(prefix+"chain", "x"), false},
		"no log entry":           {set(prefix+"bundle", ""), false},
		"log entry not JSON":     {set(prefix+"bundle", "x"), false},
		"empty log entry":        {set(prefix+"bundle", "{}"), false},
		"promise of the log":     {replace(prefix+"bundle", `"SignedEntryTimestamp":"M`, `"SignedEntryTimestamp":"N`), false},
		"index of the log entry": {replace(prefix+"bundle", `"logIndex":0`, `"logIndex":1`), false},
		"time of the log entry":  {replace(prefix+"bundle", `"integratedTime":`, `"integratedTime":1`), false},
		"ID of the log":          {replace(prefix+"bundle", `"logID":"`, `"logID":"00`), false},
		"log entry of evil": {func(p []byte, annotations map[string]string) []byte {
			annotations[prefix+"bundle"] = a.SimpleAnnotations(t, cert, key, payloadOf(evil), time.Now())[prefix+"bundle"]
			return p
		}, false},
		"timestamp not JSON":                    {set(prefix+"rfc3161timestamp", "x"), false},
		"timestamp not valid, none is required": {set(prefix+"rfc3161timestamp", `{"SignedRFC3161Timestamp":"eA=="}`), true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			m.putImage(t, "app", "1")
			annotations := maps.Clone(good)
			m.attachSimple(t, i.index, tc.change(payloadOf(i.index), annotations), annotations)
			c := newCheck(m, i, keyless(nil))
			c.options.TrustedRoot = trusted
			if r := c.result(t); r.Met != tc.met {
				t.Errorf("met: %v %s; want %v", r.Met, r.Message, tc.met)
			}
		})
	}
}

// No input panics, and none that is not signed meets a requirement.
func FuzzSignatures(f *testing.F) {
	a, key := sigstoretest.NewAuthority(f), sigstoretest.NewKey(f)
	_, i := withImage(f)
	cert, leafKey := a.Certificate(f, nil)
	payload := about(f, i.index)
	f.Add(sigstoretest.BundleJSON(f, a.KeylessBundle(f, cert, leafKey, payload, time.Now())), "", "")
	f.Add(sigstoretest.BundleJSON(f, sigstoretest.KeyBundle(f, sigstoretest.NewKey(f), payload)), "", "")
	annotations := a.SimpleAnnotations(f, cert, leafKey, payloadOf(i.index), time.Now())
	f.Add(payloadOf(i.index), annotations["dev.sigstore.cosign/bundle"], annotations["dev.sigstore.cosign/certificate"])
	another := keyless(func(s *requirement.Signer) { s.Keyless.Subject = requirement.Exactly("https://other.test") })
	want := requirement.AtLeast(1, *keyLeaf(f, key), *another)
	trusted := a.TrustedRoot(f, nil)
	f.Fuzz(func(t *testing.T, data []byte, log, certificate string) {
		m, i := withImage(t)
		m.attach(t, i.index, data, nil)
		m.attachSimple(t, i.index, data, map[string]string{
			"dev.cosignproject.cosign/signature": "eA==", "dev.sigstore.cosign/bundle": log,
			"dev.sigstore.cosign/certificate": certificate, "dev.sigstore.cosign/chain": certificate,
			"dev.sigstore.cosign/rfc3161timestamp": log,
		})
		m.manifests["sha256-"+i.manifest[len("sha256:"):]+".sig"] = data
		index := digestOf(data)
		m.manifests[index] = data
		c := newCheck(m, i, &want)
		c.options.TrustedRoot = trusted
		c.image.Digests = append([]string{index}, c.image.Digests...)
		if r := c.result(t); r.Met || r.Reason == "REGISTRY_UNAVAILABLE" {
			t.Errorf("met or failed: %+v", r)
		}
	})
}

// A document of many levels and one of many entries do not end the process.
func TestHostileDocuments(t *testing.T) {
	key := sigstoretest.NewKey(t)
	const depth, version = 1 << 20, `{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json",`
	for name, data := range map[string][]byte{
		"levels":       []byte(strings.Repeat(`{"manifests":[`, depth)),
		"lists":        []byte(strings.Repeat("[", depth)),
		"null":         []byte("null"),
		"null entries": []byte(`{"manifests":[null,null],"layers":[null]}`),
		"null layers":  []byte(`{"config":{},"layers":[null,{"annotations":null}]}`),
		"bundle":       []byte(version + `"dsseEnvelope":` + strings.Repeat(`{"a":`, depth)),
		"log entries": fmt.Appendf(nil, version+`"verificationMaterial":{"tlogEntries":[{}%s]}}`,
			strings.Repeat(`,{}`, depth)),
		"many layers": fmt.Appendf(nil, `{"config":{},"layers":[{}%s]}`, strings.Repeat(`,{}`, depth)),
	} {
		m, i := withImage(t)
		m.attach(t, i.index, data, nil)
		m.attachSimple(t, i.index, data, nil)
		m.manifests["1"] = data
		if r := newCheck(m, i, keyLeaf(t, key)).result(t); r.Met || r.Reason == "REGISTRY_UNAVAILABLE" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
