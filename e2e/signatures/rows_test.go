package signatures_test

import (
	"bytes"
	"crypto/ecdsa"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"

	"github.com/pullgate/pullgate/e2e/signing"
)

const (
	missing  = "SIGNATURE_MISSING"
	invalid  = "SIGNATURE_INVALID"
	identity = "IDENTITY_MISMATCH"
)

// rows returns the table: keys, storage, object, tampering, keyless.
func (o *oracle) rows() []row {
	return slices.Concat(o.keyRows(), o.storageRows(), o.objectRows(), o.tamperedBundles(), o.tamperedPayloads(),
		o.keylessRows(), o.attestationRows(), o.denyRows())
}

func signed(a *attempt) { a.must(a.cosign.Sign(a.Context(), a.repository, a.image.Digest)) }

// signedLegacy is sign for the older form and cosign's key.
func signedLegacy(a *attempt) {
	a.must(a.cosign.SignLegacy(a.Context(), a.repository, a.image.Digest))
}

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
			data := sigstoretest.BundleJSON(a, b)
			a.must(a.repository.Attach(a.Context(), a.image.Digest, data, "application/vnd.example.test"))
		}, accepted: byFirst}),
	}
}

func otherDigest() string { return "sha256:" + strings.Repeat("a", 64) }

// byFirst is whether cosign verifies the image with the first key of the table.
func byFirst(a *attempt) error {
	return a.cosign.Verify(a.Context(), a.repository, a.key(0), a.image.Digest)
}

func (o *oracle) objectRows() []row {
	index := func(a *attempt) {
		var err error
		a.image, err = a.repository.Index(a.Context(), "multi", a.image.Digest)
		a.must(err)
	}
	attest := func(a *attempt) {
		predicate := filepath.Join(a.TempDir(), "sbom.json")
		a.must(os.WriteFile(predicate, []byte(`{"spdxVersion":"SPDX-2.3"}`), 0o600))
		a.must(a.cosign.Attest(a.Context(), a.repository, a.image.Digest, "spdxjson", predicate, false))
	}
	return []row{
		with(o.public, row{name: "index signed", sign: func(a *attempt) { index(a); signed(a) }}),
		with(o.public, row{name: "index signed, legacy", sign: func(a *attempt) { index(a); signedLegacy(a) }}),
		with(o.public, row{
			name: "platform manifest signed", sign: func(a *attempt) { signed(a); index(a) },
			difference: "cosign looks for the signatures of the digest that it is asked about; " +
				"every document that leads to the image counts here",
		}),
		with(o.public, row{
			name: "attestation only", sign: attest, reason: missing,
			difference: "cosign counts an attestation as a signature; " +
				"an SBOM that the key has signed does not say that the image may run",
		}),
		with(o.public, row{name: "attestation and signature", sign: func(a *attempt) { attest(a); signed(a) }}),
		with(o.public, row{name: "signature of another image", sign: func(a *attempt) {
			first := a.image
			other := testkit.Value(a.repository.Image(a.Context(), "other", "other"))(a)
			a.image = other
			signed(a)
			signedLegacy(a)
			a.image = first
		}, reason: missing}),
	}
}

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
	var all []row
	add := func(name, reason string, sign func(*attempt), difference ...string) {
		r := with(o.key(0), row{name: "bundle: " + name, sign: sign, reason: reason, accepted: byFirst})
		r.difference = strings.Join(difference, "")
		all = append(all, r)
	}
	envelope := func(name, reason string, change func(a *attempt, e *protodsse.Envelope)) {
		add(name, reason, changed(func(a *attempt, b *protobundle.Bundle) { change(a, b.GetDsseEnvelope()) }))
	}
	hint := func(text string) func(*attempt) {
		return changed(func(_ *attempt, b *protobundle.Bundle) {
			b.GetVerificationMaterial().GetPublicKey().Hint = text
		})
	}
	add("unchanged", "", changed(func(*attempt, *protobundle.Bundle) {}))
	envelope("payload", invalid, func(_ *attempt, e *protodsse.Envelope) { e.Payload = append(e.GetPayload(), ' ') })
	envelope("payload of another signature", invalid, func(a *attempt, e *protodsse.Envelope) { e.Payload = ofAnother(a) })
	envelope("payload type", missing, func(_ *attempt, e *protodsse.Envelope) { e.PayloadType = "application/json" })
	envelope("no signature", invalid, func(_ *attempt, e *protodsse.Envelope) { e.Signatures = nil })
	envelope("two signatures", invalid, func(_ *attempt, e *protodsse.Envelope) {
		e.Signatures = append(e.GetSignatures(), e.GetSignatures()[0])
	})
	add("signature", invalid, changed(func(a *attempt, b *protobundle.Bundle) {
		b.Content = sigstoretest.Envelope(a, o.keys[1], b.GetDsseEnvelope().GetPayload()).GetContent()
	}))
	add("media type", invalid, changed(func(_ *attempt, b *protobundle.Bundle) {
		b.MediaType = "application/vnd.dev.sigstore.bundle.v9+json"
	}))
	add("no key", "", hint(""))
	add("hint of another key", "", hint("other"))
	add("digest of another image", invalid, statement(func(a *attempt, _ []byte) []byte { return ofAnother(a) }))
	add("predicate type", missing, statement(replace(sigstoretest.SignType, sigstoretest.AttestType)),
		"cosign counts an attestation as a signature")
	add("statement type", missing, statement(replace("in-toto.io/Statement/v1", "example.test/Statement/v1")),
		"cosign does not read the type of the statement")
	add("not JSON", invalid, func(a *attempt) { store(a, []byte("a bundle")) })
	add("empty", invalid, func(a *attempt) { store(a, []byte("{}")) })
	return all
}

// tamperedPayloads has a row for each part of the older form.
func (o *oracle) tamperedPayloads() []row {
	key := o.keys[0]
	attach := func(signed func(a *attempt) []byte, signer *ecdsa.PrivateKey, suffix string) func(*attempt) {
		return func(a *attempt) {
			payload := signed(a)
			signature := signing.Annotation(sigstoretest.Sign(a, signer, payload))
			a.must(a.repository.AttachLegacy(a.Context(), a.image.Digest, append(payload, suffix...), signature))
		}
	}
	right := func(a *attempt) []byte { return sigstoretest.SimplePayload(a.image.Digest) }
	var all []row
	add := func(name, reason string, sign func(*attempt), difference ...string) {
		r := with(o.key(0), row{name: "legacy: " + name, sign: sign, reason: reason, accepted: byFirst})
		r.difference = strings.Join(difference, "")
		all = append(all, r)
	}
	add("unchanged", "", attach(right, key, ""))
	add("payload", invalid, attach(right, key, " "))
	add("signature", invalid, attach(right, o.keys[1], ""))
	add("digest of another image", invalid, attach(func(*attempt) []byte {
		return sigstoretest.SimplePayload(otherDigest())
	}, key, ""))
	add("type", missing, attach(func(a *attempt) []byte {
		return bytes.ReplaceAll(right(a), []byte("cosign container image signature"), []byte("something else"))
	}, key, ""), "cosign does not read the type of the payload")
	add("not JSON", invalid, attach(func(*attempt) []byte { return []byte("a payload") }, key, ""))
	add("no signature", invalid, func(a *attempt) {
		a.must(a.repository.AttachLegacy(a.Context(), a.image.Digest, right(a), signing.Annotation(nil)))
	})
	return all
}
