package verify_test

import (
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

const scanType = "https://trivy.aquasec.com/scan/v2"

// attestedBy requires a scan of trivy that is younger than a day and has no finding above 8.
func attestedBy(tb testing.TB, key *ecdsa.PrivateKey) *requirement.Requirement {
	tb.Helper()
	r := keyLeaf(tb, key).Attesting(&requirement.Statement{
		PredicateType: scanType,
		Conditions: []requirement.Conditions{{All: []requirement.Condition{
			{Key: "{{ scanner }}", Operator: "Equals", Value: "trivy"},
			{Key: "{{ time_since('', timestamp, '') }}", Operator: "LessThan", Value: "24h", Message: "scan again"},
			{Key: "{{ Results[].Vulnerabilities[?Score > `8.0`][] | length(@) }}", Operator: "Equals", Value: 0.0},
		}}},
	})
	return &r
}

// A scan is what a test attests.
type scan struct {
	kind, scanner string
	age           time.Duration
	score         float64
	digest        string // of the subject, if it is not the image
	padding       int    // bytes
}

func (a scan) payload(tb testing.TB, digest string) []byte {
	tb.Helper()
	if a.kind == "" {
		a.kind = scanType
	}
	if a.scanner == "" {
		a.scanner = "trivy"
	}
	if a.digest != "" {
		digest = a.digest
	}
	return testkit.Value(json.Marshal(map[string]any{
		"_type": "https://in-toto.io/Statement/v0.1", "predicateType": a.kind,
		"subject": []any{map[string]any{"name": "x", "digest": map[string]string{"sha256": digest[len("sha256:"):]}}},
		"predicate": map[string]any{
			"scanner": a.scanner, "timestamp": time.Now().Add(-a.age).UTC().Format(time.RFC3339),
			"Results": []any{map[string]any{"Vulnerabilities": []any{map[string]any{"ID": "CVE-1", "Score": a.score}}}},
			"padding": strings.Repeat("x", a.padding),
		},
	}))(tb)
}

// attach pushes the attestation for a digest, as a bundle or in the older form.
func (a scan) attach(tb testing.TB, m *memory, digest string, key *ecdsa.PrivateKey, older bool) {
	tb.Helper()
	payload := a.payload(tb, digest)
	if !older {
		m.attach(tb, digest, sigstoretest.BundleJSON(tb, sigstoretest.KeyBundle(tb, key, payload)), nil)
		return
	}
	const kind = "application/vnd.in-toto+json"
	envelope := testkit.Value(json.Marshal(map[string]any{
		"payloadType": kind, "payload": payload,
		"signatures": []any{map[string]string{"sig": base64.StdEncoding.EncodeToString(sigstoretest.Sign(tb, key,
			dsse.PAE(kind, payload)))}},
	}))(tb)
	layer := digestOf(envelope)
	m.blobs[layer] = envelope
	tag := strings.Replace(digest, ":", "-", 1) + ".att"
	var layers []any
	if before, ok := m.manifests[tag]; ok {
		var old map[string]any
		if err := json.Unmarshal(before, &old); err != nil {
			tb.Fatal(err)
		}
		layers, _ = old["layers"].([]any)
	}
	layers = append(layers, object{
		"mediaType": "application/vnd.dsse.envelope.v1+json", "digest": layer, "size": len(envelope),
		"annotations": object{"dev.cosignproject.cosign/signature": "", "predicateType": a.kind},
	})
	m.put(tb, object{
		"schemaVersion": 2, "config": object{
			"digest": digestOf([]byte("att")), "size": 3,
			"mediaType": "application/vnd.oci.image.config.v1+json",
		},
		"layers": layers,
	}, tag)
}

// Shows: 002-R8, 002-23, 002-25
func TestAttestations(t *testing.T) {
	a, b := sigstoretest.NewKey(t), sigstoretest.NewKey(t)
	fresh := scan{age: time.Hour, score: 5}
	both := func() *requirement.Requirement {
		r := requirement.AtLeast(2, *attestedBy(t, a), *attestedBy(t, b))
		return &r
	}
	signedToo := func() *requirement.Requirement {
		r := requirement.AtLeast(2, *keyLeaf(t, a), *attestedBy(t, a))
		return &r
	}
	presence := func() *requirement.Requirement {
		r := keyLeaf(t, a).Attesting(&requirement.Statement{PredicateType: scanType})
		return &r
	}
	type push func(m *memory, i image, older bool)
	one := func(s scan, key *ecdsa.PrivateKey) push {
		return func(m *memory, i image, older bool) { s.attach(t, m, i.index, key, older) }
	}
	several := func(all ...push) push {
		return func(m *memory, i image, older bool) {
			for _, p := range all {
				p(m, i, older)
			}
		}
	}
	old, high := scan{age: 25 * time.Hour}, scan{age: time.Hour, score: 9}
	for name, tc := range map[string]struct {
		push   push
		want   func() *requirement.Requirement
		expect string
	}{
		"met": {one(fresh, a), nil, "met"},
		"of the platform manifest": {
			func(m *memory, i image, older bool) { fresh.attach(t, m, i.manifest, a, older) }, nil,
			"met",
		},
		"none": {several(), nil, "ATTESTATION_MISSING; has no attestation of type " + scanType +
			" by key sha256:; none was found"},
		"of another image": {
			one(scan{digest: digestOf(nil)}, a), nil,
			"SIGNATURE_INVALID; is for " + digestOf(nil) + ", and not for this image",
		},
		"by another key":  {one(fresh, b), nil, "SIGNATURE_INVALID; the signature is not valid for this signer"},
		"of another type": {one(scan{kind: attestType}, a), nil, "ATTESTATION_MISSING; an attestation of type " + attestType},
		"signature only": {
			func(m *memory, i image, _ bool) { attachKey(t, m, i.index, a) }, nil,
			"ATTESTATION_MISSING; a signature, and not an attestation",
		},
		"too old": {
			one(old, a), nil,
			"CONDITION_NOT_MET; scan again; found \"25h; want {{ time_since('', timestamp, '') }} LessThan 24h",
		},
		"finding": {
			one(high, a), nil,
			"CONDITION_NOT_MET; does not meet its conditions: found 1; Equals 0",
		},
		"of several, one meets all conditions": {several(one(old, a), one(high, a), one(fresh, a)), nil, "met"},
		"of several, none meets all":           {several(one(old, a), one(high, a)), nil, "CONDITION_NOT_MET"},
		"beside another type":                  {several(one(scan{kind: attestType}, a), one(fresh, a)), nil, "met"},
		"by both":                              {several(one(fresh, a), one(fresh, b)), both, "met"},
		"by one of both":                       {one(fresh, a), both, "ATTESTATION_MISSING; 1 found"},
		"bad by one of both":                   {several(one(fresh, a), one(high, b)), both, "CONDITION_NOT_MET"},
		"signed too": {func(m *memory, i image, older bool) {
			attachKey(t, m, i.manifest, a)
			fresh.attach(t, m, i.index, a, older)
		}, signedToo, "met"},
		"attested, not signed": {one(fresh, a), signedToo, "SIGNATURE_MISSING"},
		"presence":             {one(old, a), presence, "met"},
		"large":                {one(scan{age: time.Hour, padding: 4 << 20}, a), nil, "met"},
		"too large":            {one(scan{age: time.Hour, padding: 7 << 20}, a), nil, "LIMIT_EXCEEDED"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, older := range []bool{false, true} {
				m, i := withImage(t)
				tc.push(m, i, older)
				want := attestedBy(t, a)
				if tc.want != nil {
					want = tc.want()
				}
				result := newCheck(m, i, want).result(t)
				if expect(t, result, tc.expect); !result.Met {
					continue
				}
				if len(result.Attestations) == 0 || result.Attestations[0].PredicateType != scanType ||
					!strings.HasPrefix(result.Attestations[0].Digest, "sha256:") {
					t.Errorf("attestations %+v", result.Attestations)
				}
				left := time.Until(result.Until)
				if timed := name != "presence"; timed != (left > 22*time.Hour && left < 24*time.Hour) || result.ReadsClock {
					t.Errorf("until %v, reads the clock: %v", result.Until, result.ReadsClock)
				}
			}
		})
	}
}

// A key whose attestations count signs no image, and the other way round, whatever a bundle says.
// Shows: 002-54
func TestAttestationsAreNoSignatures(t *testing.T) {
	key := sigstoretest.NewKey(t)
	m, i := withImage(t)
	scan{age: time.Hour}.attach(t, m, i.index, key, false)
	scan{age: time.Hour}.attach(t, m, i.index, key, true)
	c := newCheck(m, i, keyLeaf(t, key), attestedBy(t, key))
	c.list = true
	report := c.report(t)
	expect(t, report.Results[0], "SIGNATURE_MISSING")
	expect(t, report.Results[1], "met")
	for _, s := range report.Signatures {
		if !s.Counts || s.FoundBy != "referrers" && s.FoundBy != "att-tag" {
			t.Errorf("found %+v", s)
		}
	}
	if len(report.Signatures) != 2 {
		t.Errorf("found %+v; want both forms", report.Signatures)
	}
}

// Several requirements on one image read each attestation once.
func TestAttestationsAreReadOnce(t *testing.T) {
	key := sigstoretest.NewKey(t)
	requests := func(n int) int32 {
		m, i := withImage(t)
		scan{age: time.Hour}.attach(t, m, i.index, key, false)
		var want []*requirement.Requirement
		for k := range n {
			r := keyLeaf(t, key).Attesting(&requirement.Statement{PredicateType: scanType, Conditions: []requirement.Conditions{{
				All: []requirement.Condition{{Key: "{{ scanner }}", Operator: "NotEquals", Value: fmt.Sprint(k)}},
			}}})
			want = append(want, &r)
		}
		for _, r := range newCheck(m, i, want...).report(t).Results {
			expect(t, r, "met")
		}
		return m.requests.Load()
	}
	if one, ten := requests(1), requests(10); one != ten {
		t.Errorf("%d requests for one requirement, %d for ten", one, ten)
	}
}

// The folder of bundles has attestations too. No registry is asked.
func TestAttestationsOfTheFolder(t *testing.T) {
	key, dir := sigstoretest.NewKey(t), t.TempDir()
	m, i := withImage(t)
	write := func(path string, data []byte) {
		path = filepath.Join(dir, path)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644))
	}
	write("blobs/sha256/"+i.manifest[len("sha256:"):], m.manifests[i.manifest])
	client := testkit.Value(registry.New(registry.Options{Bundles: dir}))(t)
	defer client.Close()
	c := newCheck(m, i, attestedBy(t, key))
	c.image.Digests = []string{repository + "@" + i.manifest}
	c.options.Open = func(name string, login admission.Login) verify.Repository { return client.Repository(name, login) }
	for name, tc := range map[string]struct {
		scan
		want string
	}{
		"fresh":            {scan{age: time.Hour}, "met"},
		"old":              {scan{age: 25 * time.Hour}, "CONDITION_NOT_MET"},
		"of another image": {scan{digest: digestOf(nil)}, "SIGNATURE_INVALID; not for this image"},
	} {
		bundle := sigstoretest.KeyBundle(t, key, tc.payload(t, i.manifest))
		write("signatures/"+strings.Replace(i.manifest, ":", "-", 1)+"/scan.json", sigstoretest.BundleJSON(t, bundle))
		t.Run(name, func(t *testing.T) { expect(t, c.result(t), tc.want) })
	}
}

// The newest attestation of the older form, which cosign adds at the end, decides how long the result counts.
func TestNewestAttestationIsReadFirst(t *testing.T) {
	key := sigstoretest.NewKey(t)
	m, i := withImage(t)
	for _, age := range []time.Duration{23 * time.Hour, 20 * time.Hour, time.Hour} {
		scan{age: age}.attach(t, m, i.index, key, true)
	}
	if left := time.Until(newCheck(m, i, attestedBy(t, key)).result(t).Until); left < 22*time.Hour {
		t.Errorf("counts for %v; want the 23 hours of the newest scan", left)
	}
}

// In the background all attestations are read, so that an old one that still counts does not hide a newer one. Without
// that, the registry's order decides.
func TestTheLongestAttestationCounts(t *testing.T) {
	key := sigstoretest.NewKey(t)
	for _, ages := range [][]time.Duration{{20 * time.Hour, time.Hour}, {time.Hour, 20 * time.Hour}} {
		m, i := withImage(t)
		for _, age := range ages {
			scan{age: age}.attach(t, m, i.index, key, false)
		}
		c := newCheck(m, i, attestedBy(t, key))
		c.image.Background = true
		if left := time.Until(c.result(t).Until); left < 22*time.Hour {
			t.Errorf("%v: counts for %v; want the 23 hours of the newest scan", ages, left)
		}
	}
}

// A list names the type of each statement and what each of its conditions was compared with; nothing else does.
func TestTheListHasConditions(t *testing.T) {
	key := sigstoretest.NewKey(t)
	m, i := withImage(t)
	scan{age: time.Hour, score: 9}.attach(t, m, i.index, key, false)
	c := newCheck(m, i, attestedBy(t, key))
	c.list = true
	found := c.report(t).Signatures
	if len(found) != 1 || found[0].PredicateType != scanType || len(found[0].Conditions) < 2 ||
		!strings.Contains(strings.Join(found[0].Conditions, "\n"), "not met: ") ||
		!strings.Contains(strings.Join(found[0].Conditions, "\n"), "\nmet: ") &&
			!strings.HasPrefix(found[0].Conditions[0], "met: ") {
		t.Errorf("signatures %+v; want one with its conditions", found)
	}
}

// A list has what each condition that denies was compared with, once, whether it denies or not; nothing else has it.
func TestTheListHasConditionsThatDeny(t *testing.T) {
	key := sigstoretest.NewKey(t)
	m, i := withConfig(t, `{"os":"linux","config":{"User":"root"}}`)
	attachKey(t, m, i.index, key)
	rule := denying(t, key, "", "{all: [{key: '{{ image.config.os }}', operator: Equals, value: plan9}], any: ["+
		"{key: '{{ image.config.config.User }}', operator: Equals, value: root}, "+
		"{key: '{{ image.config.config.None }}', operator: Equals, value: 0}]}")
	c := newCheck(m, i, rule.Requirement)
	if got := c.result(t).Conditions; got != nil {
		t.Errorf("without a list: %q", got)
	}
	c.list = true
	want := []string{
		`allows: denied by us; found "linux"; denied by {{ image.config.os }} Equals plan9`,
		`denies: denied by us; found "root"; denied by {{ image.config.config.User }} Equals root`,
		"denies: denied by us; nothing found; denied by {{ image.config.config.None }} Equals 0",
	}
	if got := c.result(t).Conditions; !slices.Equal(got, want) {
		t.Errorf("conditions\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	c = newCheck(m, i, loadIVP(t, validating(t, []*ecdsa.PrivateKey{key}, noDigest, signedInCEL)).Requirement)
	if got := c.result(t).Conditions; got != nil {
		t.Errorf("without a list: %q", got)
	}
	c.list = true
	if got := c.result(t).Conditions; !slices.Equal(got, []string{"met: " + signedInCEL}) {
		t.Errorf("conditions in CEL: %q", got)
	}
}

// Large attestations by others do not take all the time that there is.
func TestFewLargeAttestationsAreRead(t *testing.T) {
	key, other := sigstoretest.NewKey(t), sigstoretest.NewKey(t)
	for n, want := range map[int]string{8: requirement.SignatureInvalid, 9: requirement.LimitExceeded} {
		m, i := withImage(t)
		for k := range n {
			scan{age: time.Hour, padding: 300<<10 + k}.attach(t, m, i.index, other, false)
		}
		expect(t, newCheck(m, i, attestedBy(t, key)).result(t), want)
	}
}

// Subjects and members are bounded, and a second list of subjects hides none.
func TestPartsOfAStatementAreBounded(t *testing.T) {
	key := sigstoretest.NewKey(t)
	many := `{"subject":[` + strings.Repeat(`{"digest":{}},`, 20_000) + `{}],`
	members := "{"
	for i := range 100 {
		members += fmt.Sprintf(`"m%d":0,`, i)
	}
	for name, tc := range map[string]struct{ before, want string }{
		"a second list":  {`{"subject":[],`, "ATTESTATION_MISSING; its payload is not a statement"},
		"what is unread": {strings.Replace(many, "subject", "other", 1), "met"},
		"many subjects":  {many, "LIMIT_EXCEEDED; parts"},
		"many members":   {members, "LIMIT_EXCEEDED; members"},
	} {
		m, i := withImage(t)
		payload := string(scan{age: time.Hour}.payload(t, i.index))
		if name == "many subjects" {
			payload = strings.Replace(payload, `"subject"`, `"other"`, 1)
		}
		payload = tc.before + payload[1:]
		m.attach(t, i.index, sigstoretest.BundleJSON(t, sigstoretest.KeyBundle(t, key, []byte(payload))), nil)
		t.Run(name, func(t *testing.T) { expect(t, newCheck(m, i, attestedBy(t, key)).result(t), tc.want) })
	}
}

// Predicates that are large, deep or many end in bounded time and memory.
func TestHostilePredicates(t *testing.T) {
	key := sigstoretest.NewKey(t)
	for name, predicate := range map[string]string{
		"not a predicate of one leaf": `{"scanner":"trivy","list":[` + strings.TrimSuffix(strings.Repeat("1,", 200_000),
			",") + `]}`,
		"deep":       `{"scanner":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`,
		"deeper":     `{"scanner":` + strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000) + `}`,
		"many parts": `{"scanner":[` + strings.TrimSuffix(strings.Repeat("1,", 1<<20), ",") + `]}`,
		"no object":  `"trivy"`,
		"null":       `null`,
		"absent":     ``,
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withImage(t)
			payload := `{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + scanType +
				`","subject":[{"digest":{"sha256":"` +
				i.index[len("sha256:"):] + `"}}]`
			if predicate != "" {
				payload += `,"predicate":` + predicate
			}
			payload += `}`
			m.attach(t, i.index, sigstoretest.BundleJSON(t, sigstoretest.KeyBundle(t, key, []byte(payload))), nil)
			// The second leaf is met by a document that is not there.
			absent := keyLeaf(t, key).Attesting(&requirement.Statement{
				PredicateType: scanType,
				Conditions: []requirement.Conditions{
					{All: []requirement.Condition{{Key: "{{ !list }}", Operator: "Equals", Value: true}}},
				},
			})
			for _, got := range newCheck(m, i, attestedBy(t, key), &absent).report(t).Results {
				if got.Met || got.Reason == requirement.RegistryUnavailable {
					t.Errorf("%+v; want a denial", got)
				}
			}
		})
	}
}

// A report of 1 MiB, judged by conditions in both languages.
func BenchmarkAttestation(b *testing.B) {
	key := sigstoretest.NewKey(b)
	m, i := withImage(b)
	findings := strings.TrimSuffix(strings.Repeat(`{"ID":"CVE-1","Score":5,"Title":"`+strings.Repeat("x", 950)+`"},`,
		1050), ",")
	payload := `{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + scanType +
		`","subject":[{"digest":{"sha256":"` +
		i.index[len("sha256:"):] + `"}}],"predicate":{"scanner":"trivy","timestamp":"` +
		time.Now().UTC().Format(time.RFC3339) +
		`","Results":[{"Vulnerabilities":[` + findings + `]}]}}`
	m.attach(b, i.index, sigstoretest.BundleJSON(b, sigstoretest.KeyBundle(b, key, []byte(payload))), nil)
	inCEL := loadIVP(b, validating(b, []*ecdsa.PrivateKey{key}, noDigest, attestedInCEL, freshInCEL)).Requirement
	for language, of := range map[string]*requirement.Requirement{"JMESPath": attestedBy(b, key), "CEL": inCEL} {
		b.Run(language, func(b *testing.B) {
			c := newCheck(m, i, of)
			for b.Loop() {
				if r := c.result(b); !r.Met {
					b.Fatal(r)
				}
			}
		})
	}
}
