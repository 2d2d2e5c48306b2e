package verify_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
)

// denying returns the rule of a file with attestors, fields of verifyImages, and conditions of validate.deny.
func denying(tb testing.TB, key *ecdsa.PrivateKey, fields, conditions string) *requirement.Rule {
	tb.Helper()
	attestors := ""
	if key != nil {
		attestors = fmt.Sprintf("attestors: [{entries: [{keys: {publicKeys: %q}}]}], ", publicPEM(tb, key))
	}
	p := testkit.Value(policyfiles.LoadKyverno([]policyfiles.File{{Name: "a.yaml", Data: []byte(
		"apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\n" +
			"spec: {validationFailureAction: Enforce, rules: [{name: r, match: {any: [{resources: {kinds: [Pod]}}]}, " +
			"verifyImages: [{imageReferences: ['*'], " + attestors + fields +
			"validate: {message: denied by us, deny: {conditions: " + conditions + "}}}]}]}\n")}}, time.Now()))(tb)
	if err := condition.Check(p.Rules); err != nil {
		tb.Fatal(err)
	}
	return &p.Rules[0]
}

func publicPEM(tb testing.TB, key *ecdsa.PrivateKey) string {
	tb.Helper()
	der := testkit.Value(x509.MarshalPKIXPublicKey(key.Public()))(tb)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// withConfig returns an image whose configuration is stored.
func withConfig(tb testing.TB, config string) (*memory, image) {
	tb.Helper()
	m := newMemory()
	i := image{id: m.putBlob([]byte(config))}
	manifest := manifestOf(i.id)
	manifest["annotations"] = object{"team": "a"}
	i.manifest = m.put(tb, manifest)
	other := m.put(tb, manifestOf(digestOf([]byte("arm64"))))
	i.index = m.put(tb, indexOf(entry(other, "arm64"), entry(i.manifest, "amd64")), "1")
	return m, i
}

// Shows: 002-R3, 002-R4, 002-R9, 002-21, 002-28
func TestDenyOfImages(t *testing.T) {
	key := sigstoretest.NewKey(t)
	const (
		root = "{any: [{key: \"{{ image.config.config.User || '' }}\", operator: AnyIn, " +
			"value: ['', '0', '0:*', root, 'root:*']}]}"
		scanned   = "attestations: [{type: " + scanType + "}], "
		notRoot   = "{any: [{key: \"{{ image.config.config.User || 'ok' }}\", operator: Equals, value: root}]}"
		notObject = "SIGNATURE_INVALID; the config of the image is not an object with the fields of one"
		twice     = "SIGNATURE_INVALID; the config of the image has a field twice, or in another case"
		plain     = `{"os":"linux","config":{"User":"1000","Env":["A=1"]}}`
	)
	for name, tc := range map[string]struct {
		config, fields, conditions, expect string
		scan                               *finding
		unsigned                           bool
	}{
		"not denied": {config: plain, conditions: root, expect: "met"},
		"denied": {
			config: `{"config":{"User":"root"}}`, conditions: root,
			expect: `CONDITION_NOT_MET; repo.test/team/app:1: the image does not meet its conditions: ` +
				`denied by us; found "root"; denied by {{ image.config.config.User || '' }} AnyIn`,
		},
		"with a group":               {config: `{"config":{"User":"0:1000"}}`, conditions: root, expect: "CONDITION_NOT_MET"},
		"group alone":                {config: `{"config":{"User":"1000:0"}}`, conditions: root, expect: "met"},
		"default of an absent field": {config: `{"config":{}}`, conditions: root, expect: `CONDITION_NOT_MET; found ""`},
		"absent": {
			config: `{"config":{}}`, expect: "CONDITION_NOT_MET; nothing found",
			conditions: "{all: [{key: '{{ image.config.config.User }}', operator: Equals, value: root}]}",
		},
		"all, of which one is not met": {config: plain, expect: "met", conditions: "{all: [" +
			"{key: '{{ image.config.os }}', operator: Equals, value: linux}, " +
			"{key: '{{ image.config.config.User }}', operator: Equals, value: root}]}"},
		"all and any": {config: plain, expect: "CONDITION_NOT_MET", conditions: "{all: [" +
			"{key: '{{ image.config.os }}', operator: Equals, value: linux}], any: [" +
			"{key: '{{ image.config.config.User }}', operator: Equals, value: root}, " +
			"{key: '{{ image.repository }}', operator: Equals, value: team/app}]}"},
		"all and any, of which any is not met": {config: plain, expect: "met", conditions: "{all: [" +
			"{key: '{{ image.config.os }}', operator: Equals, value: linux}], any: [" +
			"{key: '{{ image.config.config.User }}', operator: Equals, value: root}, " +
			"{key: '{{ image.registry }}', operator: Equals, value: other.test}]}"},
		"manifest": {
			config: plain, expect: `CONDITION_NOT_MET; found "a"`,
			conditions: "{any: [{key: '{{ image.manifest.annotations.team }}', operator: NotEquals, value: b}]}",
		},
		"other types": {
			config: plain, expect: "CONDITION_NOT_MET",
			conditions: "{any: [{key: '{{ image.config.config.Env }}', operator: GreaterThan, value: 3}]}",
		},
		"signature": {
			config: plain, expect: "CONDITION_NOT_MET; found 1",
			conditions: "{any: [{key: \"{{ length(signatures[?starts_with(keyID, 'sha256:')]) }}\", operator: Equals, " +
				"value: 1}]}",
		},
		"signatures, not denied": {
			config: plain, expect: "met",
			conditions: "{any: [{key: '{{ length(signatures) }}', operator: LessThan, value: 1}]}",
		},
		"attestation": {
			config: plain, fields: scanned, scan: &finding{score: 9}, expect: "CONDITION_NOT_MET; found [9]",
			conditions: "{any: [{key: '{{ attestations[].predicate.Results[].Vulnerabilities[].Score }}', operator: AnyIn, " +
				"value: [9, 10]}]}",
		},
		"attestation, not denied": {
			config: plain, fields: scanned, scan: &finding{score: 2}, expect: "met",
			conditions: "{any: [{key: '{{ attestations[].predicate.Results[].Vulnerabilities[].Score }}', operator: AnyIn, " +
				"value: [9, 10]}]}",
		},
		"attestations that are too large": {
			config: plain, fields: scanned, scan: &finding{padding: 2 << 20}, expect: "LIMIT_EXCEEDED",
			conditions: "{any: [{key: '{{ length(attestations) }}', operator: GreaterThan, value: 5}]}",
		},
		"attestors first": {
			config: `{"config":{"User":"root"}}`, conditions: root, unsigned: true, expect: "SIGNATURE_MISSING",
		},
		"large config": {
			config: `{"config":{"User":"1","x":"` + strings.Repeat("x", 1<<20) + `"}}`, conditions: root,
			expect: "LIMIT_EXCEEDED",
		},
		"many parts": {
			config: `{"config":{"User":"1","x":[` + strings.Repeat("1,", 200_000) + `1]}}`, conditions: root,
			expect: "LIMIT_EXCEEDED",
		},
		"deep": {
			config: `{"config":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, conditions: root,
			expect: "LIMIT_EXCEEDED",
		},
		"no object":        {config: `[]`, conditions: root, expect: notObject},
		"null":             {config: `null`, conditions: root, expect: notObject},
		"no configuration": {config: `{"config":[]}`, conditions: root, expect: notObject},
		// A runtime starts these as root.
		"in another case":       {config: `{"Config":{"User":"root"}}`, conditions: notRoot, expect: twice},
		"field in another case": {config: `{"config":{"user":"root"}}`, conditions: notRoot, expect: twice},
		"in both cases": {
			config: `{"Config":{"User":"root"},"config":{"Env":["A=1"]}}`, conditions: notRoot, expect: twice,
		},
		"twice": {
			config: `{"config":{"User":"root"},"config":{"Env":["A=1"]}}`, conditions: notRoot, expect: twice,
		},
		"as Docker writes it": {
			config: `{"created":"0001-01-01T00:00:00Z","container_config":{"User":"root"},"history":[{"comment":"x"}],` +
				`"config":{"User":"1","Hostname":"","ExposedPorts":{"80/tcp":{}},"Healthcheck":{"Test":["NONE"]},` +
				`"Cmd":null,"OnBuild":null,"Labels":{"a":"1","A":"2"}},"docker_version":"20.10.7"}`,
			conditions: notRoot, expect: "met",
		},
		"hostile": {
			config: `{"config":{"User":"ro\u001b[31m\u202eot"}}`, expect: "CONDITION_NOT_MET",
			conditions: "{any: [{key: '{{ image.config.config.User }}', operator: NotEquals, value: a}]}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withConfig(t, tc.config)
			if !tc.unsigned {
				attachKey(t, m, i.index, key)
			}
			if tc.scan != nil {
				scan{age: time.Hour, score: tc.scan.score, padding: tc.scan.padding}.attach(t, m, i.index, key, false)
			}
			got := newCheck(m, i, denying(t, key, tc.fields, tc.conditions).Requirement).result(t)
			expect(t, got, tc.expect)
			if strings.ContainsFunc(got.Message, func(r rune) bool { return r < ' ' || r > '~' }) || len(got.Message) > 1024 {
				t.Errorf("message %q; want at most 1 KiB of printable ASCII", got.Message)
			}
			if got.Met && strings.Contains(strings.Join(got.Signers, " "), "condition") {
				t.Errorf("signers %v; want signers alone", got.Signers)
			}
		})
	}
}

type finding struct {
	score   float64
	padding int
}

// A config that another content has taken the place of, or that is not there, denies; a registry that does not answer
// is a failure.
func TestConfigOfAnImage(t *testing.T) {
	key := sigstoretest.NewKey(t)
	rule := denying(t, key, "", "{any: [{key: '{{ image.config.config.User }}', operator: Equals, value: root}]}")
	for name, tc := range map[string]struct {
		change func(m *memory, i image)
		want   string
	}{
		"other content": {func(m *memory, i image) { m.blobs[i.id] = []byte(`{"config":{"User":"9"}}`) }, "CONTENT_MISMATCH"},
		"absent":        {func(m *memory, i image) { delete(m.blobs, i.id) }, "REGISTRY_DENIED"},
		"no answer": {func(m *memory, i image) {
			m.failures["blob "+i.id] = fmt.Errorf("%w: refused", registry.ErrUnavailable)
		}, "REGISTRY_UNAVAILABLE"},
	} {
		m, i := withConfig(t, `{"config":{"User":"1"}}`)
		attachKey(t, m, i.index, key)
		tc.change(m, i)
		t.Run(name, func(t *testing.T) { expect(t, newCheck(m, i, rule.Requirement).result(t), tc.want) })
	}
}

// A field of a manifest in another case is one of the same manifest to a runtime.
func TestManifestOfAnImage(t *testing.T) {
	rule := denying(t, nil, "",
		"{any: [{key: \"{{ image.manifest.annotations.team || 'a' }}\", operator: NotEquals, value: a}]}")
	for name, tc := range map[string]struct{ field, value, expect string }{
		"met":          {"annotations", "a", "met"},
		"another case": {"Annotations", "b", "SIGNATURE_INVALID; the manifest of the image has a field twice"},
		"large":        {"padding", strings.Repeat("x", 1<<20), "LIMIT_EXCEEDED"},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withConfig(t, `{}`)
			manifest := manifestOf(i.id)
			manifest[tc.field] = object{"team": tc.value}
			i.index = m.put(t, manifest, "1")
			expect(t, newCheck(m, i, rule.Requirement).result(t), tc.expect)
		})
	}
}

// The configuration is read once, and only if a condition reads it; without attestors no signature is looked up.
func TestRequestsOfConditionsOnImages(t *testing.T) {
	key := sigstoretest.NewKey(t)
	const user = "{any: [{key: '{{ image.config.config.User }}', operator: Equals, value: root}]}"
	const os = "{any: [{key: '{{ image.config.os }}', operator: Equals, value: plan9}]}"
	const name = "{any: [{key: '{{ image.repository }}', operator: Equals, value: x}]}"
	const annotations = "{any: [{key: '{{ image.manifest.annotations.team }}', operator: Equals, value: x}]}"
	requests := func(want ...*requirement.Requirement) int32 {
		m, i := withConfig(t, `{"os":"linux","config":{"User":"1"}}`)
		attachKey(t, m, i.index, key)
		for _, r := range newCheck(m, i, want...).report(t).Results {
			expect(t, r, "met")
		}
		return m.requests.Load()
	}
	signed := requests(keyLeaf(t, key))
	for what, tc := range map[string]struct {
		got, want int32
	}{
		"repository":    {requests(denying(t, key, "", name).Requirement), signed},
		"manifest":      {requests(denying(t, key, "", annotations).Requirement), signed},
		"configuration": {requests(denying(t, key, "", user).Requirement), signed + 1},
		"configuration for two rules": {
			requests(denying(t, key, "", user).Requirement, denying(t, key, "", os).Requirement), signed + 1,
		},
		"configuration without a signer": {requests(denying(t, nil, "", user).Requirement), 3},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %d requests; want %d", what, tc.got, tc.want)
		}
	}
}

// What conditions cannot read of attestations is a denial, also where conditions have a default.
// Shows: 002-R4, 002-R9
func TestDenyByAttestations(t *testing.T) {
	key := sigstoretest.NewKey(t)
	rule := denying(t, key, "attestations: [{type: "+scanType+"}], ",
		"{any: [{key: \"{{ attestations[0].predicate.state || 'ok' }}\", operator: NotEquals, value: ok}]}")
	large := `{"x":"` + strings.Repeat("x", 600<<10) + `"}`
	many := `{"x":[` + strings.Repeat("1,", 70_000) + `1]}`
	const limit = "LIMIT_EXCEEDED; conditions read"
	for name, tc := range map[string]struct {
		predicates []string
		expect     string
	}{
		"object":         {[]string{`{}`}, "met"},
		"text":           {[]string{`"ok"`}, "SIGNATURE_INVALID; the predicate of the attestation is not an object"},
		"null":           {[]string{`null`}, "SIGNATURE_INVALID; is not an object"},
		"list, second":   {[]string{`{}`, `[]`}, "SIGNATURE_INVALID; is not an object"},
		"absent":         {[]string{``}, "SIGNATURE_INVALID; is not an object"},
		"large":          {[]string{large}, "met"},
		"large together": {[]string{large, large}, limit + " attestations of at most 1048576 bytes in all"},
		"many parts":     {[]string{many}, "met"},
		"many together":  {[]string{many, many}, limit},
		"deep":           {[]string{`{"x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`}, limit},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withImage(t)
			attachKey(t, m, i.index, key)
			for _, predicate := range tc.predicates {
				payload := `{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + scanType +
					`","subject":[{"digest":{"sha256":"` + i.index[len("sha256:"):] + `"}}]`
				if predicate != "" {
					payload += `,"predicate":` + predicate
				}
				m.attach(t, i.index, sigstoretest.BundleJSON(t, sigstoretest.KeyBundle(t, key, []byte(payload+"}"))), nil)
			}
			results := newCheck(m, i, rule.Requirement, keyLeaf(t, key)).report(t).Results
			expect(t, results[0], tc.expect)
			expect(t, results[1], "met") // by a rule without conditions
		})
	}
}

// Conditions on signatures are judged with all of them, or not at all.
// Shows: 002-21
func TestConditionsReadAllSignatures(t *testing.T) {
	key := sigstoretest.NewKey(t)
	rule := denying(t, key, "", "{any: [{key: '{{ length(signatures) }}', operator: LessThan, value: 200}]}")
	for n, want := range map[int]string{199: "CONDITION_NOT_MET; found 199", 200: "met", 201: "LIMIT_EXCEEDED"} {
		m, i := withImage(t)
		for range n {
			attachKey(t, m, i.index, key)
		}
		c := newCheck(m, i, rule.Requirement)
		c.options.Limits = config.DefaultPolicyd().Limits
		c.options.Limits.Signatures = 200
		expect(t, c.result(t), want)
	}
	m, i := withImage(t)
	attachKey(t, m, i.index, key)
	few := denying(t, key, "", "{any: [{key: '{{ length(signatures) }}', operator: GreaterThan, value: 1}]}")
	expect(t, newCheck(m, i, few.Requirement).result(t), "met")
	m.failures["manifest "+strings.Replace(i.index, ":", "-", 1)+".sig"] = fmt.Errorf("%w: x", registry.ErrUnavailable)
	expect(t, newCheck(m, i, few.Requirement).result(t), "REGISTRY_UNAVAILABLE")
	m.failures = nil
	m, i = withImage(t)
	attachKey(t, m, i.manifest, key)
	c := newCheck(m, i, few.Requirement)
	c.image.Digests = []string{i.manifest, i.index}
	expect(t, c.result(t), "met")
	for reason, failure := range map[string]error{
		"REGISTRY_UNAVAILABLE": registry.ErrUnavailable, "LIMIT_EXCEEDED": registry.ErrDenied,
	} { // what is attached to the index is not read
		m.failures["manifest "+i.index] = fmt.Errorf("%w: x", failure)
		expect(t, c.result(t), reason)
	}
	m.failures = nil
	noRoot := denying(t, nil, "attestors: [{count: 1, entries: [{keys: {publicKeys: "+strconv.Quote(publicPEM(t, key))+
		"}}, {keyless: {issuer: https://issuer.test, subject: s}}]}], ",
		"{any: [{key: '{{ signatures[].subject }}', operator: AnyIn, value: [s]}]}")
	expect(t, newCheck(m, i, noRoot.Requirement).result(t), "SIGNATURE_INVALID; relies on a trusted root")
	m.attach(t, i.index, []byte("{}"), nil) // of another signer
	expect(t, newCheck(m, i, rule.Requirement).result(t), "CONDITION_NOT_MET; found 1")
}

type slowBlobs struct{ *memory }

func (slowBlobs) Blob(ctx context.Context, _ string, _ int64) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A configuration that does not come in time exceeds the limit of time.
func TestConditionsInTime(t *testing.T) {
	m, i := withConfig(t, `{"config":{}}`)
	rule := denying(t, nil, "", "{any: [{key: '{{ image.config.os }}', operator: Equals, value: x}]}")
	c := newCheck(m, i, rule.Requirement)
	c.options.Limits = config.DefaultPolicyd().Limits
	c.options.Limits.Time = "1s"
	c.options.Open = func(string, admission.Login) verify.Repository { return slowBlobs{m} }
	expect(t, c.result(t), "LIMIT_EXCEEDED; took more than 1s")
}

func TestDenyOfPods(t *testing.T) {
	s, rules, _ := newService(t, verify.ServiceOptions{Config: config.DefaultPolicyd()}, `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  validationFailureAction: Enforce
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ["repo.test/*"]
      validate:
        message: name the team
        deny:
          conditions:
            any:
            - {key: "{{ request.object.metadata.labels.team || '' }}", operator: Equals, value: ""}
            - {key: "{{ request.object.metadata.labels.state || 'ok' }}", operator: NotEquals, value: ok}
`)
	const undecodable = "the object cannot be decoded"
	for pod, want := range map[string]string{
		`{"metadata":{"labels":{"team":"a"}}}`: "",
		`{"metadata":{}}`:                      `name the team; found ""; denied by {{ request.object.metadata.labels.team `,
		`{`:                                    undecodable,
		``:                                     undecodable,
		`null`:                                 undecodable,
		`[]`:                                   undecodable,
		`"x"`:                                  undecodable,
	} {
		o := verify.Object{
			Namespace: "ns", Operation: "CREATE", Images: []string{"repo.test/a:1", "repo.test/b:1"},
			JSON: []byte(pod),
		}
		found, _ := s.JudgeObject(t.Context(), rules, o)
		if (want == "") != (len(found) == 0) || want != "" && !strings.Contains(found[0].Message, want) {
			t.Errorf("%s: %+v; want %q", pod, found, want)
		}
		o.Images = []string{"other.test/a:1"}
		if found, _ := s.JudgeObject(t.Context(), rules, o); len(found) > 0 {
			t.Errorf("an image of no rule: %+v", found)
		}
	}
	if n := testing.AllocsPerRun(10, func() { s.JudgeObject(t.Context(), &verify.Rules{}, verify.Object{}) }); n > 0 {
		t.Errorf("%v allocations without such rules", n)
	}
}
