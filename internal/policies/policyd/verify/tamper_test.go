package verify_test

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/base64"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"

	"github.com/pullgate/pullgate/internal/policies/requirement"
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
	payload := sigstoretest.Statement{Digests: []string{i.index}}.JSON(t)
	type parts = *protobundle.Bundle
	signature := func(b parts) *protodsse.Signature { return b.GetDsseEnvelope().Signatures[0] }
	entry := func(b parts) *protorekor.TransparencyLogEntry { return b.VerificationMaterial.TlogEntries[0] }
	proof := func(b parts) *protorekor.InclusionProof { return entry(b).InclusionProof }
	another := func(b parts) parts {
		return a.KeylessBundle(t, cert, key, sigstoretest.Statement{Digests: []string{evil.index}}.JSON(t), time.Now())
	}
	for name, tc := range map[string]struct {
		change func(parts)
		met    bool
	}{
		"nothing": {func(parts) {}, true},
		"statement about another image": {func(b parts) {
			b.GetDsseEnvelope().Payload = sigstoretest.Statement{Digests: []string{evil.index}}.JSON(t)
		}, false},
		"one more image in the statement": {func(b parts) {
			b.GetDsseEnvelope().Payload = sigstoretest.Statement{Digests: []string{i.index, evil.index}}.JSON(t)
		}, false},
		"statement in other words": {func(b parts) {
			b.GetDsseEnvelope().Payload = append([]byte(" "), payload...)
		}, false},
		"predicate type": {func(b parts) {
			b.GetDsseEnvelope().Payload = sigstoretest.Statement{Predicate: attestType, Digests: []string{i.index}}.JSON(t)
		}, false},
		"statement type": {func(b parts) {
			b.GetDsseEnvelope().Payload = sigstoretest.Statement{Kind: "x", Digests: []string{i.index}}.JSON(t)
		}, false},
		"payload type":                      {func(b parts) { b.GetDsseEnvelope().PayloadType = "application/json" }, false},
		"no payload":                        {func(b parts) { b.GetDsseEnvelope().Payload = nil }, false},
		"signature":                         {func(b parts) { signature(b).Sig = flip(signature(b).Sig) }, false},
		"signature of another image":        {func(b parts) { signature(b).Sig = signature(another(b)).Sig }, false},
		"no signature":                      {func(b parts) { b.GetDsseEnvelope().Signatures = nil }, false},
		"a second signature":                {func(b parts) { b.GetDsseEnvelope().Signatures = append(b.GetDsseEnvelope().Signatures, signature(b)) }, false},
		"key ID of the signature":           {func(b parts) { signature(b).Keyid = "x" }, false},
		"another certificate of the signer": {func(b parts) { b.VerificationMaterial.GetCertificate().RawBytes = otherCert.Raw }, false},
		"certificate of another authority":  {func(b parts) { b.VerificationMaterial.GetCertificate().RawBytes = foreignCert.Raw }, false},
		"certificate":                       {func(b parts) { b.VerificationMaterial.GetCertificate().RawBytes = flip(cert.Raw) }, false},
		"certificate of the authority":      {func(b parts) { b.VerificationMaterial.GetCertificate().RawBytes = a.Issuer.Raw }, false},
		"no certificate":                    {func(b parts) { b.VerificationMaterial.Content = nil }, false},
		"a key instead of the certificate": {func(b parts) {
			b.VerificationMaterial.Content = &protobundle.VerificationMaterial_PublicKey{PublicKey: &protocommon.PublicKeyIdentifier{}}
		}, false},
		"no log entry":               {func(b parts) { b.VerificationMaterial.TlogEntries = nil }, false},
		"log entry of another image": {func(b parts) { b.VerificationMaterial.TlogEntries = another(b).VerificationMaterial.TlogEntries }, false},
		"log entry twice": {func(b parts) {
			b.VerificationMaterial.TlogEntries = append(b.VerificationMaterial.TlogEntries, entry(b))
		}, false},
		"log entry of another log": {func(b parts) {
			b.VerificationMaterial.TlogEntries[0] = other.EnvelopeEntry(t, b, sigstoretest.CertificatePEM(cert), time.Now())
		}, false},
		"body of the log entry": {func(b parts) {
			entry(b).CanonicalizedBody = bytes.Replace(entry(b).CanonicalizedBody, []byte("{"), []byte("{ "), 1)
		}, false},
		"time of the log entry":  {func(b parts) { entry(b).IntegratedTime-- }, false},
		"index of the log entry": {func(b parts) { entry(b).LogIndex++ }, false},
		"ID of the log":          {func(b parts) { entry(b).LogId.KeyId = flip(entry(b).LogId.KeyId) }, false},
		"kind of the log entry":  {func(b parts) { entry(b).KindVersion.Kind = "hashedrekord" }, true}, // the body says it
		"promise of the log": {func(b parts) {
			entry(b).InclusionPromise.SignedEntryTimestamp = flip(entry(b).InclusionPromise.SignedEntryTimestamp)
		}, false},
		"no promise of the log":         {func(b parts) { entry(b).InclusionPromise = nil }, true}, // the timestamp says when
		"no inclusion proof":            {func(b parts) { entry(b).InclusionProof = nil }, false},
		"root of the inclusion proof":   {func(b parts) { proof(b).RootHash = flip(proof(b).RootHash) }, false},
		"hashes of the inclusion proof": {func(b parts) { proof(b).Hashes = append(proof(b).Hashes, proof(b).RootHash) }, false},
		"size of the tree":              {func(b parts) { proof(b).TreeSize++ }, false},
		"index in the tree":             {func(b parts) { proof(b).LogIndex++ }, false},
		"checkpoint": {func(b parts) {
			proof(b).Checkpoint.Envelope = strings.Replace(proof(b).Checkpoint.Envelope, "42", "43", 1)
		}, false},
		"timestamp":                  {func(b parts) { stamps(b)[0].SignedTimestamp = flip(stamps(b)[0].SignedTimestamp) }, false},
		"timestamp of another image": {func(b parts) { stamps(b)[0] = stamps(another(b))[0] }, false},
		"timestamp by another authority": {func(b parts) {
			stamps(b)[0].SignedTimestamp = must(other.TimestampResponse(signature(b).Sig))(t)
		}, false},
		"no timestamp":                       {func(b parts) { b.VerificationMaterial.TimestampVerificationData = nil }, false},
		"version of the bundle":              {func(b parts) { b.MediaType = "application/vnd.dev.sigstore.bundle.v0.4+json" }, false},
		"no version":                         {func(b parts) { b.MediaType = "" }, false},
		"a signature of the manifest's text": {func(b parts) { b.Content = messageOf(t, key, m.manifests[i.index]) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withImage(t)
			b := a.KeylessBundle(t, cert, key, payload, time.Now())
			tc.change(b)
			m.attach(t, i.index, sigstoretest.BundleJSON(t, b), nil)
			c := newCheck(m, i, keyless(func(s *requirement.Signer) { s.Timestamp = &requirement.Timestamp{} }))
			c.options.TrustedRoot = trusted
			if r := c.result(t); r.Met != tc.met {
				t.Errorf("met: %v %s; want %v", r.Met, r.Message, tc.met)
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
		MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: sigstoretest.SumOf(data)},
		Signature:     sigstoretest.Sign(t, key, data),
	}}
}

// The older form with certificate and log entry, of which one part is changed.
func TestTamperedSimpleSignatures(t *testing.T) {
	a, other := sigstoretest.NewAuthority(t), sigstoretest.NewAuthority(t)
	cert, key := a.Certificate(t, nil)
	otherCert, _ := a.Certificate(t, nil)
	trusted := a.TrustedRoot(t, nil)
	i := newMemory().putImage(t, "app", "1")
	evil := digestOf([]byte("evil"))
	good := a.SimpleAnnotations(t, cert, key, sigstoretest.SimplePayload(i.index), time.Now())
	const prefix = "dev.sigstore.cosign/"
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
		"payload about evil":     {func([]byte, map[string]string) []byte { return sigstoretest.SimplePayload(evil) }, false},
		"payload in other words": {func(p []byte, _ map[string]string) []byte { return append(p, ' ') }, false},
		"type of the payload": {func(p []byte, _ map[string]string) []byte {
			return bytes.Replace(p, []byte("cosign container"), []byte("atomic container"), 1)
		}, false},
		"no payload":             {func([]byte, map[string]string) []byte { return []byte{} }, false},
		"signature":              {set("dev.cosignproject.cosign/signature", base64.StdEncoding.EncodeToString(sigstoretest.Sign(t, sigstoretest.NewKey(t), sigstoretest.SimplePayload(i.index)))), false},
		"signature not encoded":  {set("dev.cosignproject.cosign/signature", "%"), false},
		"empty signature":        {set("dev.cosignproject.cosign/signature", ""), false},
		"another certificate":    {set(prefix+"certificate", string(sigstoretest.CertificatePEM(otherCert))), false},
		"certificate of evil":    {set(prefix+"certificate", string(sigstoretest.CertificatePEM(other.Issuer))), false},
		"certificate not PEM":    {set(prefix+"certificate", "x"), false},
		"no certificate":         {set(prefix+"certificate", ""), false},
		"no chain":               {set(prefix+"chain", ""), true}, // the trusted root has it
		"chain of evil":          {set(prefix+"chain", string(sigstoretest.CertificatePEM(other.Root))), true},
		"chain without end":      {set(prefix+"chain", strings.Repeat(string(sigstoretest.CertificatePEM(other.Root)), 100)), false},
		"chain not PEM":          {set(prefix+"chain", "x"), false},
		"no log entry":           {set(prefix+"bundle", ""), false},
		"log entry not JSON":     {set(prefix+"bundle", "x"), false},
		"empty log entry":        {set(prefix+"bundle", "{}"), false},
		"promise of the log":     {replace(prefix+"bundle", `"SignedEntryTimestamp":"M`, `"SignedEntryTimestamp":"N`), false},
		"index of the log entry": {replace(prefix+"bundle", `"logIndex":0`, `"logIndex":1`), false},
		"time of the log entry":  {replace(prefix+"bundle", `"integratedTime":`, `"integratedTime":1`), false},
		"ID of the log":          {replace(prefix+"bundle", `"logID":"`, `"logID":"00`), false},
		"log entry of evil": {func(p []byte, annotations map[string]string) []byte {
			annotations[prefix+"bundle"] = a.SimpleAnnotations(t, cert, key, sigstoretest.SimplePayload(evil), time.Now())[prefix+"bundle"]
			return p
		}, false},
		"timestamp not JSON":                          {set(prefix+"rfc3161timestamp", "x"), false},
		"timestamp not valid, where none is required": {set(prefix+"rfc3161timestamp", `{"SignedRFC3161Timestamp":"eA=="}`), true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			m.putImage(t, "app", "1")
			annotations := maps.Clone(good)
			m.attachSimple(t, i.index, tc.change(sigstoretest.SimplePayload(i.index), annotations), annotations)
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
	payload := sigstoretest.Statement{Digests: []string{i.index}}.JSON(f)
	f.Add(sigstoretest.BundleJSON(f, a.KeylessBundle(f, cert, leafKey, payload, time.Now())), "", "")
	f.Add(sigstoretest.BundleJSON(f, sigstoretest.KeyBundle(f, sigstoretest.NewKey(f), payload)), "", "")
	annotations := a.SimpleAnnotations(f, cert, leafKey, sigstoretest.SimplePayload(i.index), time.Now())
	f.Add(sigstoretest.SimplePayload(i.index), annotations["dev.sigstore.cosign/bundle"], annotations["dev.sigstore.cosign/certificate"])
	want := requirement.AtLeast(1, *keyLeaf(f, key), *keyless(func(s *requirement.Signer) { s.Keyless.Subject = requirement.Exactly("https://other.test") }))
	trusted := a.TrustedRoot(f, nil)
	f.Fuzz(func(t *testing.T, data []byte, log, certificate string) {
		m, i := withImage(t)
		m.attach(t, i.index, data, nil)
		m.attachSimple(t, i.index, data, map[string]string{
			"dev.cosignproject.cosign/signature": "eA==", "dev.sigstore.cosign/bundle": log, "dev.sigstore.cosign/certificate": certificate,
			"dev.sigstore.cosign/chain": certificate, "dev.sigstore.cosign/rfc3161timestamp": log,
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
	const depth = 1 << 20
	for name, data := range map[string][]byte{
		"levels":       []byte(strings.Repeat(`{"manifests":[`, depth)),
		"lists":        []byte(strings.Repeat("[", depth)),
		"null":         []byte("null"),
		"null entries": []byte(`{"manifests":[null,null],"layers":[null]}`),
		"null layers":  []byte(`{"config":{},"layers":[null,{"annotations":null}]}`),
		"bundle":       fmt.Appendf(nil, `{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","dsseEnvelope":%s`, strings.Repeat(`{"a":`, depth)),
		"log entries": fmt.Appendf(nil, `{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"tlogEntries":[{}%s]}}`,
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
