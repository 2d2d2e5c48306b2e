package signatures_test

import (
	"bytes"
	"crypto/ecdsa"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"

	"github.com/pullgate/pullgate/e2e/signing"
)

// Reasons of pullgate-policyd.
const (
	missing  = "SIGNATURE_MISSING"
	invalid  = "SIGNATURE_INVALID"
	identity = "IDENTITY_MISMATCH"
)

// rows returns the table: keys, storage, object, tampering, keyless.
func (o *oracle) rows() []row {
	return slices.Concat(o.keyRows(), o.storageRows(), o.objectRows(), o.tamperedBundles(), o.tamperedPayloads(), o.keylessRows())
}

// signed is sign for the present form and cosign's key.
func signed(a *attempt) { a.must(a.cosign.Sign(a.Context(), a.repository, a.image.Digest)) }

// signedLegacy is sign for the older form and cosign's key.
func signedLegacy(a *attempt) {
	a.must(a.cosign.SignLegacy(a.Context(), a.repository, a.image.Digest))
}

// with returns a row for one key.
func with(public string, r row) row {
	r.attestors, r.authorities = kyvernoKeys(0, public), sigstoreKey(public)
	return r
}

func (o *oracle) keyRows() []row {
	// cosign has no count: it is asked about each key.
	twoOfThree := func(a *attempt) error {
		n := 0
		for i := range o.keys {
			if a.by(a.Context(), o.key(i)) {
				n++
			}
		}
		if n < 2 {
			return errors.New("less than two keys")
		}
		return nil
	}
	of := func(keys ...*ecdsa.PrivateKey) func(*attempt) {
		return func(a *attempt) {
			for _, k := range keys {
				a.repository.Sign(a, k, a.image.Digest)
			}
		}
	}
	three := kyvernoKeys(2, o.key(0), o.key(1), o.key(2))
	return []row{
		with(o.public, row{name: "right key", sign: signed}),
		with(o.public, row{name: "wrong key", sign: of(o.keys[0]), reason: invalid}),
		with(o.public, row{name: "unsigned", sign: func(*attempt) {}, reason: missing}),
		with(o.public, row{name: "wrong key and right key", sign: func(a *attempt) { of(o.keys[0])(a); signed(a) }}),
		{name: "2 of 3, two", attestors: three, sign: of(o.keys[2], o.keys[0]), accepted: twoOfThree},
		{name: "2 of 3, one", attestors: three, sign: of(o.keys[1]), accepted: twoOfThree, reason: missing},
		{name: "2 of 3, one twice", attestors: three, sign: of(o.keys[1], o.keys[1]), accepted: twoOfThree, reason: missing},
	}
}

func (o *oracle) storageRows() []row {
	return []row{
		with(o.public, row{name: "both forms", sign: func(a *attempt) { signed(a); signedLegacy(a) }}),
		with(o.public, row{name: "legacy only", sign: signedLegacy}),
		with(o.public, row{name: "legacy by a wrong key", sign: func(a *attempt) {
			a.repository.SignLegacy(a, o.keys[0], a.image.Digest)
		}, reason: invalid}),
		with(o.key(0), row{name: "bundle without cosign", sign: func(a *attempt) {
			a.repository.Sign(a, o.keys[0], a.image.Digest)
		}, accepted: byFirst}),
		with(o.key(0), row{name: "legacy without cosign", sign: func(a *attempt) {
			a.repository.SignLegacy(a, o.keys[0], a.image.Digest)
		}, accepted: byFirst}),
		with(o.key(0), row{name: "wrong artifact type", sign: func(a *attempt) {
			b := sigstoretest.KeyBundle(a, o.keys[0], a.statement())
			a.must(a.repository.Attach(a.Context(), a.image.Digest, sigstoretest.BundleJSON(a, b), "application/vnd.example.test"))
		}, accepted: byFirst}),
	}
}

// otherDigest is that of no image.
func otherDigest() string { return "sha256:" + strings.Repeat("a", 64) }

// byFirst is whether cosign verifies the image with the first key of the table.
func byFirst(a *attempt) error {
	return a.cosign.Verify(a.Context(), a.repository, a.key(0), a.image.Digest)
}

func (o *oracle) objectRows() []row {
	index := func(a *attempt) {
		var err error
		a.image, err = a.repository.Index(a.Context(), "multi", a.image.Digest, runtime.GOARCH, otherArchitecture())
		a.must(err)
	}
	attest := func(a *attempt) {
		predicate := filepath.Join(a.TempDir(), "sbom.json")
		a.must(os.WriteFile(predicate, []byte(`{"spdxVersion":"SPDX-2.3"}`), 0o600))
		a.must(a.cosign.Attest(a.Context(), a.repository, a.image.Digest, predicate))
	}
	return []row{
		with(o.public, row{name: "index signed", sign: func(a *attempt) { index(a); signed(a) }}),
		with(o.public, row{name: "index signed, legacy", sign: func(a *attempt) { index(a); signedLegacy(a) }}),
		with(o.public, row{
			name: "platform manifest signed", sign: func(a *attempt) { signed(a); index(a) },
			difference: "cosign looks for the signatures of the digest that it is asked about; every document that leads to the image counts here",
		}),
		with(o.public, row{
			name: "attestation only", sign: attest, reason: missing,
			difference: "cosign counts an attestation as a signature; an SBOM that the key has signed does not say that the image may run",
		}),
		with(o.public, row{name: "attestation and signature", sign: func(a *attempt) { attest(a); signed(a) }}),
		with(o.public, row{name: "signature of another image", sign: func(a *attempt) {
			first := a.image
			other, err := a.repository.Image(a.Context(), "other", runtime.GOARCH, "other")
			a.must(err)
			a.image = other
			signed(a)
			signedLegacy(a)
			a.image = first
		}, reason: missing}),
	}
}

// tamperedBundles has a row for each part of a bundle.
func (o *oracle) tamperedBundles() []row {
	key := o.keys[0]
	store := func(a *attempt, data []byte) {
		a.must(a.repository.Attach(a.Context(), a.image.Digest, data, signing.BundleMediaType))
	}
	changed := func(change func(a *attempt, b *protobundle.Bundle)) func(*attempt) {
		return func(a *attempt) {
			b := sigstoretest.KeyBundle(a, key, a.statement())
			change(a, b)
			store(a, sigstoretest.BundleJSON(a, b))
		}
	}
	statement := func(change func(a *attempt, text []byte) []byte) func(*attempt) {
		return func(a *attempt) {
			store(a, sigstoretest.BundleJSON(a, sigstoretest.KeyBundle(a, key, change(a, a.statement()))))
		}
	}
	ofAnother := func(a *attempt) []byte { return sigstoretest.Statement{Digests: []string{otherDigest()}}.JSON(a) }
	replace := func(old, with string) func(*attempt, []byte) []byte {
		return func(a *attempt, text []byte) []byte {
			if !bytes.Contains(text, []byte(old)) {
				a.Fatalf("no %s in %s", old, text)
			}
			return bytes.ReplaceAll(text, []byte(old), []byte(with))
		}
	}
	all := []row{
		{name: "unchanged", sign: changed(func(*attempt, *protobundle.Bundle) {})},
		{name: "payload", sign: changed(func(_ *attempt, b *protobundle.Bundle) {
			b.GetDsseEnvelope().Payload = append(b.GetDsseEnvelope().GetPayload(), ' ')
		}), reason: invalid},
		{name: "payload of another signature", sign: changed(func(a *attempt, b *protobundle.Bundle) {
			b.GetDsseEnvelope().Payload = ofAnother(a)
		}), reason: invalid},
		{name: "payload type", sign: changed(func(_ *attempt, b *protobundle.Bundle) { b.GetDsseEnvelope().PayloadType = "application/json" }), reason: missing},
		{name: "signature", sign: changed(func(a *attempt, b *protobundle.Bundle) {
			b.Content = sigstoretest.Envelope(a, o.keys[1], b.GetDsseEnvelope().GetPayload()).GetContent()
		}), reason: invalid},
		{name: "no signature", sign: changed(func(_ *attempt, b *protobundle.Bundle) { b.GetDsseEnvelope().Signatures = nil }), reason: invalid},
		{name: "two signatures", sign: changed(func(_ *attempt, b *protobundle.Bundle) {
			b.GetDsseEnvelope().Signatures = append(b.GetDsseEnvelope().GetSignatures(), b.GetDsseEnvelope().GetSignatures()[0])
		}), reason: invalid},
		{name: "media type", sign: changed(func(_ *attempt, b *protobundle.Bundle) { b.MediaType = "application/vnd.dev.sigstore.bundle.v9+json" }), reason: invalid},
		{name: "no key", sign: changed(func(_ *attempt, b *protobundle.Bundle) { b.GetVerificationMaterial().GetPublicKey().Hint = "" })},
		{name: "hint of another key", sign: changed(func(_ *attempt, b *protobundle.Bundle) { b.GetVerificationMaterial().GetPublicKey().Hint = "other" })},
		{name: "digest of another image", sign: statement(func(a *attempt, _ []byte) []byte { return ofAnother(a) }), reason: invalid},
		{
			name: "predicate type", sign: statement(replace(sigstoretest.SignType, sigstoretest.AttestType)), reason: missing,
			difference: "cosign counts an attestation as a signature",
		},
		{name: "statement type", sign: statement(replace("in-toto.io/Statement/v1", "example.test/Statement/v1")), reason: missing, difference: "cosign does not read the type of the statement"},
		{name: "not JSON", sign: func(a *attempt) { store(a, []byte("a bundle")) }, reason: invalid},
		{name: "empty", sign: func(a *attempt) { store(a, []byte("{}")) }, reason: invalid},
	}
	for i := range all {
		all[i] = with(o.key(0), all[i])
		all[i].name, all[i].accepted = "bundle: "+all[i].name, byFirst
	}
	return all
}

// tamperedPayloads has a row for each part of the older form.
func (o *oracle) tamperedPayloads() []row {
	key := o.keys[0]
	attach := func(change func(a *attempt, payload []byte) []byte, signer *ecdsa.PrivateKey, after func([]byte) []byte) func(*attempt) {
		return func(a *attempt) {
			payload := change(a, sigstoretest.SimplePayload(a.image.Digest))
			a.must(a.repository.AttachLegacy(a.Context(), a.image.Digest, after(payload), signing.Annotation(sigstoretest.Sign(a, signer, payload))))
		}
	}
	same := func(b []byte) []byte { return b }
	unchanged := func(_ *attempt, b []byte) []byte { return b }
	replace := func(old, with string) func(*attempt, []byte) []byte {
		return func(_ *attempt, b []byte) []byte { return bytes.ReplaceAll(b, []byte(old), []byte(with)) }
	}
	all := []row{
		{name: "unchanged", sign: attach(unchanged, key, same)},
		{name: "payload", sign: attach(unchanged, key, func(b []byte) []byte { return append(b, ' ') }), reason: invalid},
		{name: "signature", sign: attach(unchanged, o.keys[1], same), reason: invalid},
		{name: "digest of another image", sign: attach(func(*attempt, []byte) []byte { return sigstoretest.SimplePayload(otherDigest()) }, key, same), reason: invalid},
		{name: "type", sign: attach(replace("cosign container image signature", "something else"), key, same), reason: missing, difference: "cosign does not read the type of the payload"},
		{name: "not JSON", sign: attach(func(*attempt, []byte) []byte { return []byte("a payload") }, key, same), reason: invalid},
		{name: "no signature", sign: func(a *attempt) {
			a.must(a.repository.AttachLegacy(a.Context(), a.image.Digest, sigstoretest.SimplePayload(a.image.Digest), signing.Annotation(nil)))
		}, reason: invalid},
	}
	for i := range all {
		all[i] = with(o.key(0), all[i])
		all[i].name, all[i].accepted = "legacy: "+all[i].name, byFirst
	}
	return all
}
