package signatures_test

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"

	"github.com/pullgate/pullgate/e2e/signing"
)

// A keyless signature is one by the workflow of the tests. Its fields change something.
type keyless struct {
	authority   *sigstoretest.Authority // nil is the one that is trusted
	certificate func(*sigstoretest.LeafOptions)
	at          time.Duration // of the log entry, relative to now
	change      func(*attempt, *protobundle.Bundle)
	legacy      bool
}

func (k keyless) sign(a *attempt) {
	authority := a.authority
	if k.authority != nil {
		authority = k.authority
	}
	certificate, key := authority.Certificate(a, k.certificate)
	at := time.Now().Add(k.at)
	if k.legacy {
		payload := sigstoretest.SimplePayload(a.image.Digest)
		annotations := authority.SimpleAnnotations(a, certificate, key, payload, at)
		a.must(a.repository.AttachLegacy(a.Context(), a.image.Digest, payload, annotations))
		return
	}
	b := authority.KeylessBundle(a, certificate, key, a.statement(), at)
	if k.change != nil {
		k.change(a, b)
	}
	a.must(a.repository.Attach(a.Context(), a.image.Digest, sigstoretest.BundleJSON(a, b), signing.BundleMediaType))
}

// byWorkflow is whether cosign verifies the image by the trusted root and the workflow of the tests.
func byWorkflow(a *attempt) error {
	file := filepath.Join(a.TempDir(), "trusted_root.json")
	a.must(os.WriteFile(file, a.trustedRoot, 0o600))
	return a.cosign.VerifyWith(
		a.Context(), a.repository, a.image.Digest, "--trusted-root", file,
		"--certificate-identity", sigstoretest.Workflow, "--certificate-oidc-issuer", sigstoretest.Issuer,
		"--certificate-github-workflow-ref", "refs/tags/v1",
	)
}

func (o *oracle) keylessRows() []row {
	other := sigstoretest.NewAuthority(o.tb)
	second := func(a *attempt, authority *sigstoretest.Authority) []*protorekor.TransparencyLogEntry {
		certificate, key := authority.Certificate(a, nil)
		b := authority.KeylessBundle(a, certificate, key, a.statement(), time.Now())
		return b.GetVerificationMaterial().GetTlogEntries()
	}
	flip := func(b []byte) { b[len(b)-1] ^= 1 }
	var all []row
	add := func(name, reason string, k keyless) {
		r := row{name: "keyless: " + name, reason: reason, sign: k.sign, accepted: byWorkflow}
		r.attestors = fmt.Sprintf(`[{entries: [{keyless: {subject: %q, issuer: %q, additionalExtensions: %s}}]}]`,
			sigstoretest.Workflow, sigstoretest.Issuer, `{githubWorkflowRef: refs/tags/v1}`)
		all = append(all, r)
	}
	leaf := func(name, reason string, change func(*sigstoretest.LeafOptions)) {
		add(name, reason, keyless{certificate: change})
	}
	changed := func(name string, change func(*attempt, *protobundle.Bundle)) {
		add(name, invalid, keyless{change: change})
	}
	entry := func(name string, change func(*protorekor.TransparencyLogEntry)) {
		changed(name, func(_ *attempt, b *protobundle.Bundle) { change(b.GetVerificationMaterial().GetTlogEntries()[0]) })
	}
	otherSubject := func(l *sigstoretest.LeafOptions) { l.Subject = "https://github.com/other/app" }

	add("right identity", "", keyless{})
	add("right identity, legacy", "", keyless{legacy: true})
	leaf("wrong workflow", identity, otherSubject)
	add("wrong workflow, legacy", identity, keyless{legacy: true, certificate: otherSubject})
	leaf("wrong issuer", identity, func(l *sigstoretest.LeafOptions) { l.Issuer = "https://issuer.test" })
	leaf("wrong ref", identity, func(l *sigstoretest.LeafOptions) { l.Extensions["6"] = "refs/heads/main" })
	add("expired certificate", invalid, keyless{at: 20 * time.Minute, change: withoutTimestamp})
	changed("missing log entry", func(_ *attempt, b *protobundle.Bundle) { b.VerificationMaterial.TlogEntries = nil })
	add("another authority", invalid, keyless{authority: other})
	add("another authority, legacy", invalid, keyless{authority: other, legacy: true})
	leaf("without SCT", invalid, func(l *sigstoretest.LeafOptions) { l.NoSCT = true })
	leaf("SCT of another log", invalid, func(l *sigstoretest.LeafOptions) { l.CTFE = other.CTFE })

	changed("certificate changed", func(a *attempt, b *protobundle.Bundle) {
		certificate, _ := a.authority.Certificate(a, nil)
		b.GetVerificationMaterial().GetCertificate().RawBytes = certificate.Raw
	})
	changed("payload changed", func(_ *attempt, b *protobundle.Bundle) {
		b.GetDsseEnvelope().Payload = append(b.GetDsseEnvelope().GetPayload(), ' ')
	})
	changed("signature changed", func(_ *attempt, b *protobundle.Bundle) {
		flip(b.GetDsseEnvelope().GetSignatures()[0].GetSig())
	})
	changed("entry of another signature", func(a *attempt, b *protobundle.Bundle) {
		b.VerificationMaterial.TlogEntries = second(a, a.authority)
	})
	changed("checkpoint of another log", func(a *attempt, b *protobundle.Bundle) {
		b.VerificationMaterial.TlogEntries[0].InclusionProof = second(a, other)[0].GetInclusionProof()
	})
	entry("body of the entry changed", func(e *protorekor.TransparencyLogEntry) {
		e.CanonicalizedBody = append(e.GetCanonicalizedBody(), ' ')
	})
	entry("time of the entry changed", func(e *protorekor.TransparencyLogEntry) { e.IntegratedTime++ })
	entry("promise of the entry changed", func(e *protorekor.TransparencyLogEntry) {
		flip(e.GetInclusionPromise().GetSignedEntryTimestamp())
	})
	entry("root hash of the proof changed", func(e *protorekor.TransparencyLogEntry) {
		flip(e.GetInclusionProof().GetRootHash())
	})
	entry("log of the entry changed", func(e *protorekor.TransparencyLogEntry) { flip(e.GetLogId().GetKeyId()) })
	return all
}

func withoutTimestamp(_ *attempt, b *protobundle.Bundle) {
	b.VerificationMaterial.TimestampVerificationData = nil
}
