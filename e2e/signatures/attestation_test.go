package signatures_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"

	"github.com/pullgate/pullgate/e2e/signing"
)

const scanType = "https://trivy.aquasec.com/scan/v2"

// fresh are the conditions of a scan that is at most a day old and has no finding above 8.
const fresh = "[{all: [{key: '{{ scanner }}', operator: Equals, value: trivy}, " +
	"{key: \"{{ time_since('', timestamp, '') }}\", operator: LessThan, value: 24h}, " +
	"{key: '{{ Results[].Vulnerabilities[?CVSS.redhat.V3Score > `8.0`][] | length(@) }}', operator: Equals, value: 0}]}]"

// freshCEL is the same in CEL.
const freshCEL = "verifyAttestationSignatures(image, attestations.scan, [attestors.key]) > 0 && " +
	"[extractPayload(image, attestations.scan).predicate].all(p, p.scanner == 'trivy' && " +
	"time.now() - timestamp(p.timestamp) < duration('24h') && p.Results.all(r, r.Vulnerabilities.all(v, " +
	"v.CVSS.redhat.V3Score <= 8.0)))"

type scan struct {
	age   time.Duration
	score float64
	kind  string // its type, if it is not scanType
}

func (s scan) attest(legacy bool) func(*attempt) {
	return func(a *attempt) {
		if s.kind == "" {
			s.kind = scanType
		}
		predicate := filepath.Join(a.TempDir(), "scan.json")
		finding := map[string]any{
			"VulnerabilityID": "CVE-1",
			"CVSS":            map[string]any{"redhat": map[string]any{"V3Score": s.score}},
		}
		text, err := json.Marshal(map[string]any{
			"scanner": "trivy", "timestamp": time.Now().Add(-s.age).UTC().Format(time.RFC3339),
			"Results": []any{map[string]any{"Target": "app", "Vulnerabilities": []any{finding}}},
		})
		a.must(err)
		a.must(os.WriteFile(predicate, text, 0o600))
		a.must(a.cosign.Attest(a.Context(), a.repository, a.image.Digest, s.kind, predicate, legacy))
	}
}

// attestationRows are rules about attestations. cosign verifies signers and types; it is asked for no conditions.
func (o *oracle) attestationRows() []row {
	verified := func(public string) func(*attempt) error {
		return func(a *attempt) error {
			return o.cosign.VerifyAttestation(a.Context(), a.repository, public, a.image.Digest, scanType)
		}
	}
	const noConditions = "cosign is asked for no conditions"
	both := func(first, second func(*attempt)) func(*attempt) {
		return func(a *attempt) { first(a); second(a) }
	}
	good, old, bad := scan{age: time.Hour, score: 5}, scan{age: 25 * time.Hour}, scan{age: time.Hour, score: 9}
	var all []row
	for _, legacy := range []bool{false, true} {
		form := ""
		if legacy {
			form = ", legacy"
		}
		all = append(all,
			row{name: "scan" + form, sign: good.attest(legacy)},
			row{name: "old scan" + form, sign: old.attest(legacy), reason: "CONDITION_NOT_MET", difference: noConditions},
			row{
				name: "scan with a finding" + form, sign: bad.attest(legacy), reason: "CONDITION_NOT_MET",
				difference: noConditions,
			},
			row{name: "two scans of which one passes" + form, sign: both(bad.attest(legacy), good.attest(legacy))},
			row{name: "scan plus VEX" + form, sign: both(scan{kind: "openvex"}.attest(legacy), good.attest(legacy))},
			row{name: "other type" + form, sign: scan{kind: "openvex"}.attest(legacy), reason: "ATTESTATION_MISSING"},
		)
	}
	all = append(all,
		row{name: "no attestation", sign: func(*attempt) {}, reason: "ATTESTATION_MISSING"},
		row{name: "signature only", sign: signed, reason: "ATTESTATION_MISSING"},
	)
	for i := range all {
		r := &all[i]
		r.name, r.accepted, r.expression = "attestation: "+r.name, verified(o.public), freshCEL
		// The image itself need not be signed: the attestors are those of the attestation.
		r.attestors = fmt.Sprintf("[]\n      attestations: [{predicateType: %q, attestors: %s, conditions: %s}]", scanType,
			kyvernoKeys(0, o.public), fresh)
	}
	presence := []row{
		{name: "present", sign: old.attest(false)},
		{name: "present, legacy", sign: old.attest(true)},
		{name: "by another key", sign: good.attest(false), reason: invalid, accepted: verified(o.key(0))},
		{name: "of another image", sign: func(a *attempt) {
			statement := sigstoretest.Statement{Predicate: scanType, Digests: []string{otherDigest()}}.JSON(a)
			b := sigstoretest.KeyBundle(a, o.keys[0], statement)
			a.must(a.repository.Attach(a.Context(), a.image.Digest, sigstoretest.BundleJSON(a, b), signing.BundleMediaType))
		}, reason: invalid, accepted: verified(o.key(0))},
		{name: "none", sign: func(*attempt) {}, reason: "ATTESTATION_MISSING"},
	}
	for i := range presence {
		r := &presence[i]
		public := o.public
		if r.accepted != nil {
			public = o.key(0)
		} else {
			r.accepted = verified(public)
		}
		r.name = "attestation of a ClusterImagePolicy: " + r.name
		r.authorities = fmt.Sprintf("[{key: {data: %q}, attestations: [{name: scan, predicateType: %q}]}]", public, scanType)
		r.attestors = fmt.Sprintf("[]\n      attestations: [{type: %q, attestors: %s}]", scanType, kyvernoKeys(0, public))
	}
	return append(all, presence...)
}

// denyRows are rules about the configuration of a signed image.
func (o *oracle) denyRows() []row {
	deny := func(name, os, reason, difference string) row {
		return row{
			name: "image configuration: " + name, sign: signed, reason: reason, difference: difference,
			attestors: fmt.Sprintf("%s\n      validate: {deny: {conditions: {any: "+
				"[{key: '{{ image.config.os }}', operator: Equals, value: %s}]}}}", kyvernoKeys(0, o.public), os),
		}
	}
	return []row{
		deny("allowed", "windows", "", ""),
		deny("denied", "linux", "CONDITION_NOT_MET", "cosign is asked for no conditions"),
	}
}
