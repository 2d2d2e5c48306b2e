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

// sign signs the image of an attempt.
func (k keyless) sign(a *attempt) {
	authority := a.authority
	if k.authority != nil {
		authority = k.authority
	}
	certificate, key := authority.Certificate(a, k.certificate)
	at := time.Now().Add(k.at)
	if k.legacy {
		payload := sigstoretest.SimplePayload(a.image.Digest)
		a.must(a.repository.AttachLegacy(a.Context(), a.image.Digest, payload, authority.SimpleAnnotations(a, certificate, key, payload, at)))
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
		"--certificate-identity", sigstoretest.Workflow, "--certificate-oidc-issuer", sigstoretest.Issuer, "--certificate-github-workflow-ref", "refs/tags/v1",
	)
}

func (o *oracle) keylessRows() []row {
	other := sigstoretest.NewAuthority(o.tb)
	entry := func(change func(*protorekor.TransparencyLogEntry)) func(*attempt, *protobundle.Bundle) {
		return func(_ *attempt, b *protobundle.Bundle) { change(b.GetVerificationMaterial().GetTlogEntries()[0]) }
	}
	flip := func(b []byte) { b[len(b)-1] ^= 1 }
	all := []row{
		{name: "right identity", sign: keyless{}.sign},
		{name: "right identity, legacy", sign: keyless{legacy: true}.sign},
		{name: "wrong workflow", reason: identity, sign: keyless{certificate: func(l *sigstoretest.LeafOptions) { l.Subject = "https://github.com/other/app" }}.sign},
		{name: "wrong workflow, legacy", reason: identity, sign: keyless{legacy: true, certificate: func(l *sigstoretest.LeafOptions) {
			l.Subject = "https://github.com/other/app"
		}}.sign},
		{name: "wrong issuer", reason: identity, sign: keyless{certificate: func(l *sigstoretest.LeafOptions) { l.Issuer = "https://issuer.test" }}.sign},
		{name: "wrong ref", reason: identity, sign: keyless{certificate: func(l *sigstoretest.LeafOptions) { l.Extensions["6"] = "refs/heads/main" }}.sign},
		{name: "expired certificate", reason: invalid, sign: keyless{at: 20 * time.Minute, change: withoutTimestamp}.sign},
		{name: "missing log entry", reason: invalid, sign: keyless{change: func(_ *attempt, b *protobundle.Bundle) {
			b.VerificationMaterial.TlogEntries = nil
		}}.sign},
		{name: "another authority", reason: invalid, sign: keyless{authority: other}.sign},
		{name: "another authority, legacy", reason: invalid, sign: keyless{authority: other, legacy: true}.sign},
		{name: "without SCT", reason: invalid, sign: keyless{certificate: func(l *sigstoretest.LeafOptions) { l.NoSCT = true }}.sign},
		{name: "SCT of another log", reason: invalid, sign: keyless{certificate: func(l *sigstoretest.LeafOptions) { l.CTFE = other.CTFE }}.sign},

		{name: "certificate changed", reason: invalid, sign: keyless{change: func(a *attempt, b *protobundle.Bundle) {
			certificate, _ := a.authority.Certificate(a, nil)
			b.GetVerificationMaterial().GetCertificate().RawBytes = certificate.Raw
		}}.sign},
		{name: "payload changed", reason: invalid, sign: keyless{change: func(_ *attempt, b *protobundle.Bundle) {
			b.GetDsseEnvelope().Payload = append(b.GetDsseEnvelope().GetPayload(), ' ')
		}}.sign},
		{name: "signature changed", reason: invalid, sign: keyless{change: func(_ *attempt, b *protobundle.Bundle) {
			flip(b.GetDsseEnvelope().GetSignatures()[0].GetSig())
		}}.sign},
		{name: "entry of another signature", reason: invalid, sign: keyless{change: func(a *attempt, b *protobundle.Bundle) {
			certificate, key := a.authority.Certificate(a, nil)
			second := a.authority.KeylessBundle(a, certificate, key, a.statement(), time.Now())
			b.VerificationMaterial.TlogEntries = second.GetVerificationMaterial().GetTlogEntries()
		}}.sign},
		{name: "body of the entry changed", reason: invalid, sign: keyless{change: entry(func(e *protorekor.TransparencyLogEntry) {
			e.CanonicalizedBody = append(e.GetCanonicalizedBody(), ' ')
		})}.sign},
		{name: "time of the entry changed", reason: invalid, sign: keyless{change: entry(func(e *protorekor.TransparencyLogEntry) { e.IntegratedTime++ })}.sign},
		{name: "promise of the entry changed", reason: invalid, sign: keyless{change: entry(func(e *protorekor.TransparencyLogEntry) {
			flip(e.GetInclusionPromise().GetSignedEntryTimestamp())
		})}.sign},
		{name: "root hash of the proof changed", reason: invalid, sign: keyless{change: entry(func(e *protorekor.TransparencyLogEntry) {
			flip(e.GetInclusionProof().GetRootHash())
		})}.sign},
		{name: "checkpoint of another log", reason: invalid, sign: keyless{change: func(a *attempt, b *protobundle.Bundle) {
			certificate, key := other.Certificate(a, nil)
			second := other.KeylessBundle(a, certificate, key, a.statement(), time.Now())
			b.VerificationMaterial.TlogEntries[0].InclusionProof = second.GetVerificationMaterial().GetTlogEntries()[0].GetInclusionProof()
		}}.sign},
		{name: "log of the entry changed", reason: invalid, sign: keyless{change: entry(func(e *protorekor.TransparencyLogEntry) { flip(e.GetLogId().GetKeyId()) })}.sign},
	}
	extensions := `{githubWorkflowRef: refs/tags/v1}`
	for i := range all {
		all[i].name, all[i].accepted = "keyless: "+all[i].name, byWorkflow
		all[i].attestors = fmt.Sprintf(`[{entries: [{keyless: {subject: %q, issuer: %q, additionalExtensions: %s}}]}]`, sigstoretest.Workflow, sigstoretest.Issuer, extensions)
	}
	return all
}

func withoutTimestamp(_ *attempt, b *protobundle.Bundle) {
	b.VerificationMaterial.TimestampVerificationData = nil
}
