package verify_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// pemOf returns a key in PEM form, in quotes.
func pemOf(tb testing.TB, key *ecdsa.PrivateKey) string {
	tb.Helper()
	der := testkit.Value(x509.MarshalPKIXPublicKey(key.Public()))(tb)
	return fmt.Sprintf("%q", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// validating returns a policy whose attestors are a and b, with more fields of its spec and with validations.
func validating(tb testing.TB, keys []*ecdsa.PrivateKey, fields string, validations ...string) string {
	tb.Helper()
	var b strings.Builder
	b.WriteString("apiVersion: policies.kyverno.io/v1\nkind: ImageValidatingPolicy\nmetadata: {name: p}\nspec:\n" +
		"  matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], " +
		"resources: [pods]}]}\n  attestors:\n")
	for i, key := range keys {
		fmt.Fprintf(&b, "  - {name: %c, cosign: {key: {data: %s}, ctlog: {insecureIgnoreTlog: true}}}\n",
			'a'+i, pemOf(tb, key))
	}
	fmt.Fprintf(&b, "  attestations: [{name: scan, intoto: {type: %s}}]\n", scanType)
	for line := range strings.SplitSeq(fields, "\n") {
		b.WriteString("  " + line + "\n")
	}
	b.WriteString("  validations:\n")
	for _, v := range validations {
		fmt.Fprintf(&b, "  - {message: failed, expression: %q}\n", v)
	}
	return b.String()
}

const (
	noDigest = "validationConfigurations: {verifyDigest: false}"
	notAll   = "validationConfigurations: {verifyDigest: false, required: false}"
)

func loadIVP(tb testing.TB, file string) *requirement.Rule {
	tb.Helper()
	p := testkit.Value(policyfiles.LoadIVP([]policyfiles.File{{Name: "a.yaml", Data: []byte(file)}}, time.Now()))(tb)
	if err := condition.Check(p.Rules); err != nil {
		tb.Fatal(err)
	}
	if len(p.Rules) != 1 {
		tb.Fatalf("%d rules; want one", len(p.Rules))
	}
	return &p.Rules[0]
}

// Validations about signatures, and about an attestation with a scan.
const (
	signedInCEL   = "images.containers.map(image, verifyImageSignatures(image, [attestors.a])).all(e, e > 0)"
	attestedInCEL = "images.containers.map(image, verifyAttestationSignatures(image, attestations.scan, [attestors.a]))" +
		".all(e, e > 0)"
	freshInCEL = "images.containers.map(image, extractPayload(image, attestations.scan).predicate).all(p, " +
		"p.scanner == 'trivy' && time.now() - timestamp(p.timestamp) < duration('24h') && " +
		"p.Results.all(r, r.Vulnerabilities.all(v, v.Score <= 8.0)))"
)

// Evidence of images, in both forms, is judged as the expressions say.
func TestCELOnImages(t *testing.T) {
	a, b := sigstoretest.NewKey(t), sigstoretest.NewKey(t)
	const (
		signed   = signedInCEL
		oneOf    = "images.containers.all(image, verifyImageSignatures(image, [attestors.a, attestors.b]) >= 1)"
		both     = "images.containers.all(image, verifyImageSignatures(image, [attestors.a, attestors.b]) == 2)"
		attested = attestedInCEL
		fresh    = freshInCEL
	)
	type push = func(m *memory, i image)
	sign := func(keys ...*ecdsa.PrivateKey) push {
		return func(m *memory, i image) {
			for _, key := range keys {
				attachKey(t, m, i.index, key)
			}
		}
	}
	say := func(key *ecdsa.PrivateKey, scans ...scan) push {
		return func(m *memory, i image) {
			for n, s := range scans {
				s.attach(t, m, i.index, key, n%2 == 1)
			}
		}
	}
	ok, old, high := scan{age: time.Hour, score: 5}, scan{age: 25 * time.Hour}, scan{age: time.Hour, score: 9}
	for name, tc := range map[string]struct {
		fields      string
		validations []string
		push        push
		expect      string
	}{
		"signed":            {noDigest, []string{signed}, sign(a), "met"},
		"not signed":        {noDigest, []string{signed}, sign(), "SIGNATURE_MISSING; failed; no signature by a"},
		"signed by another": {noDigest, []string{signed}, sign(b), "SIGNATURE_MISSING; no signature by a"},
		"one of two":        {noDigest, []string{oneOf}, sign(b), "met"},
		"one of two, none":  {noDigest, []string{oneOf}, sign(), "SIGNATURE_MISSING; no signature by a, b"},
		"both":              {noDigest, []string{both}, sign(b, a), "met"},
		"both, one is not":  {noDigest, []string{both}, sign(a), "SIGNATURE_MISSING; no signature by b"},
		"twice the same": {
			noDigest, []string{strings.ReplaceAll(both, "attestors.b", "attestors.a")}, sign(a), "CONDITION_NOT_MET; failed",
		},
		"attested": {noDigest, []string{attested}, say(a, old), "met"},
		"not attested": {noDigest, []string{attested}, sign(a), "ATTESTATION_MISSING; failed; no attestation " +
			"scan by a"},
		"attested by another": {noDigest, []string{attested}, say(b, ok), "ATTESTATION_MISSING"},
		"fresh":               {noDigest, []string{attested, fresh}, say(a, ok), "met"},
		"old":                 {noDigest, []string{attested, fresh}, say(a, old), "CONDITION_NOT_MET; failed"},
		"high":                {noDigest, []string{attested, fresh}, say(a, high), "CONDITION_NOT_MET; failed"},
		"one of several":      {noDigest, []string{attested, fresh}, say(a, old, ok, high), "met"},
		"none of several":     {noDigest, []string{attested, fresh}, say(a, old, high), "CONDITION_NOT_MET"},
		"read before it is verified": {
			noDigest,
			[]string{fresh, attested},
			say(a, ok),
			"CONDITION_NOT_MET; extractPayload: scan has not been found by verifyAttestationSignatures before",
		},
		"of another attestor": {
			noDigest,
			[]string{attested, fresh},
			func(m *memory, i image) { say(a, old)(m, i); say(b, ok)(m, i) }, "CONDITION_NOT_MET",
		},
		"a field that is absent": {
			noDigest,
			[]string{attested, "images.containers.all(i, extractPayload(i, attestations.scan).predicate.x == 1)"},
			say(a, ok), "CONDITION_NOT_MET; failed; no such key: x",
		},
		"required": {
			noDigest,
			[]string{"images.containers.all(i, verifyImageSignatures(i, [attestors.a]) >= 0)"},
			sign(),
			"SIGNATURE_MISSING; no validation has verified the image, and validationConfigurations.required is true",
		},
		"not required": {
			notAll, []string{"images.containers.all(i, verifyImageSignatures(i, [attestors.a]) >= 0)"}, sign(), "met",
		},
		"registry": {
			notAll, []string{"images.containers.all(i, parseImageReference(i).registry() == 'repo.test')"}, sign(), "met",
		},
		"other registry": {
			notAll, []string{"images.containers.all(i, image(i).registry() == 'ghcr.io')"}, sign(), "CONDITION_NOT_MET; " +
				"failed",
		},
		"no match": {noDigest + "\nmatchImageReferences: [{expression: " +
			"'ref.startsWith(\"ghcr.io/\")'}]", []string{signed}, sign(), "met"},
		"match": {noDigest + "\nmatchImageReferences: [{expression: " +
			"'ref.startsWith(\"repo.test/\")'}]", []string{signed}, sign(), "SIGNATURE_MISSING"},
		"match of one": {noDigest + "\nmatchImageReferences: [{expression: 'ref.startsWith(\"ghcr.io/\")'}, " +
			"{glob: 'repo.test/*'}]", []string{signed}, sign(), "SIGNATURE_MISSING"},
		"match with an error": {noDigest + "\nmatchImageReferences: [{expression: " +
			"'[1][1] == 1'}]", []string{signed}, sign(), "SIGNATURE_MISSING"},
		"variables": {
			noDigest + "\nvariables: [{name: all, expression: 'images.containers + images.?initContainers.orValue([])'}, " +
				"{name: by, expression: '[attestors.a]'}]",
			[]string{"variables.all.map(i, verifyImageSignatures(i, variables.by)).all(n, n > 0)"},
			sign(a), "met",
		},
		"configuration": {
			notAll, []string{"images.containers.all(i, getImageData(i).config.config.User == '1000')"}, sign(), "met",
		},
		"configuration, other": {
			notAll,
			[]string{"images.containers.all(image, image.GetMetadata(image).config.config.User != '1000')"},
			sign(),
			"CONDITION_NOT_MET; failed",
		},
		"slow": {
			noDigest,
			[]string{attested, "images.containers.all(i, extractPayload(i, attestations.scan).predicate.padding" +
				".matches('" + strings.Repeat("(a|x)*", 20) + "'))"},
			say(a, scan{age: time.Hour, padding: 900 << 10}), "CONDITION_NOT_MET; cost",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withConfig(t, `{"config":{"User":"1000"}}`)
			tc.push(m, i)
			rule := loadIVP(t, validating(t, []*ecdsa.PrivateKey{a, b}, tc.fields, tc.validations...))
			begin := time.Now()
			got := newCheck(m, i, rule.Requirement).result(t)
			expect(t, got, tc.expect)
			if got.Met && strings.Contains(name, "fresh") != got.ReadsClock {
				if name != "one of several" {
					t.Errorf("reads the clock: %v", got.ReadsClock)
				}
			}
			if strings.ContainsFunc(got.Message, func(r rune) bool { return r < ' ' || r > '~' }) || len(got.Message) > 1024 {
				t.Errorf("message %q; want at most 1 KiB of printable ASCII", got.Message)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// An image that a program is not for is met without a question to the registry.
func TestCELOfOtherImagesAsksNoRegistry(t *testing.T) {
	key := sigstoretest.NewKey(t)
	m, i := withImage(t)
	rule := loadIVP(t, validating(t, []*ecdsa.PrivateKey{key}, noDigest+
		"\nmatchImageReferences: [{expression: 'parseImageReference(ref).registry() == \"ghcr.io\"'}]",
		"images.containers.all(i, verifyImageSignatures(i, [attestors.a]) > 0)"))
	if got := newCheck(m, i, rule.Requirement).result(t); !got.Met || got.Signers != nil || m.requests.Load() > 0 {
		t.Errorf("%+v with %d requests; want a result without any", got, m.requests.Load())
	}
}

func TestCELEndsWithItsContext(t *testing.T) {
	key := sigstoretest.NewKey(t)
	rule := loadIVP(t, validating(t, []*ecdsa.PrivateKey{key}, noDigest,
		"images.containers.all(i, verifyImageSignatures(i, [attestors.a]) > 0)"))
	c, errs := condition.CompileValidation(rule.Requirement.SignedBy.Image)
	if errs != nil {
		t.Fatal(errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := c.EvaluateImage(ctx, condition.Evidence{Repository: "r.test/a"}); err == nil || r.Met {
		t.Errorf("%+v, %v; want the error of the context", r, err)
	}
}

// Kyverno's conformance cases about pods, as a webhook sees them: what an object is, and how a policy answers.
func TestKyvernoCasesOfPods(t *testing.T) {
	key := sigstoretest.NewKey(t)
	const (
		prod   = `{"metadata":{"labels":{"prod":"true"}},"spec":{"containers":[{"image":"ghcr.io/a:1"}]}}`
		other  = `{"metadata":{"labels":{"prod":"false"}},"spec":{"containers":[{"image":"ghcr.io/a:1"}]}}`
		plain  = `{"metadata":{},"spec":{"containers":[{"image":"ghcr.io/a:1"}]}}`
		debug  = `{"spec":{"containers":[{"image":"ghcr.io/a:1"}],"ephemeralContainers":[{"image":"ghcr.io/d:1"}]}}`
		forged = `{"metadata":{"annotations":{"kyverno.io/verify-images":"{\"ghcr.io/a:1\":true}"}},` +
			`"spec":{"containers":[{"image":"ghcr.io/a:1"}]}}`
		signed   = signedInCEL
		labelled = "matchConditions: [{name: check-prod-label, expression: \"has(object.metadata.labels) && " +
			"has(object.metadata.labels.prod) && object.metadata.labels.prod == 'true'\"}]"
		noDebug = "object.spec.?ephemeralContainers.orValue([]).size() == 0"
	)
	for name, tc := range map[string]struct {
		fields, validation, pod string
		template                bool
		want                    string // the answer; "" is none of this policy
	}{
		"match-conditions, selected":     {noDigest + "\n" + labelled, signed, prod, false, "Deny SIGNATURE_MISSING p"},
		"match-conditions, not selected": {noDigest + "\n" + labelled, signed, other, false, ""},
		"match-conditions, no labels":    {noDigest + "\n" + labelled, signed, plain, false, ""},
		"validation-actions/audit": {noDigest + "\nvalidationActions: " +
			"[Audit]", signed, plain, false, "Deny SIGNATURE_MISSING p audit"},
		"validation-actions/warn": {noDigest + "\nvalidationActions: " +
			"[Warn]", signed, plain, false, "Deny SIGNATURE_MISSING p audit"},
		"validation-actions/deny": {noDigest + "\nvalidationActions: [Deny, " +
			"Audit]", signed, plain, false, "Deny SIGNATURE_MISSING p"},
		"validation-actions/none": {noDigest, signed, plain, false, "Deny SIGNATURE_MISSING p"},
		"autogen":                 {noDigest, signed, plain, true, "Deny SIGNATURE_MISSING p"},
		"autogen/none": {noDigest + "\nautogen: {podControllers: {controllers: " +
			"[]}}", signed, plain, true, ""},
		"block-ephemeral-containers":     {notAll, noDebug, debug, false, "Deny CONDITION_NOT_MET p"},
		"no ephemeral container":         {notAll, noDebug, plain, false, ""},
		"forged-verification-annotation": {noDigest, signed, forged, false, "Deny SIGNATURE_MISSING p"},
		"mutate-then-validate, no mutation": {
			notAll, "images.containers.map(image, image.contains('@sha256:')).all(e, " +
				"e)", plain, false, "Deny CONDITION_NOT_MET p",
		},
		"verifyDigest": {"validationConfigurations: {required: " +
			"true}", signed, plain, false, "Deny CONDITION_NOT_MET p"},
		"verifyDigest of a template": {"validationConfigurations: {required: " +
			"true}", signed, plain, true, "Deny SIGNATURE_MISSING p"},
		"imagereference": {
			notAll + "\nvariables: [{name: images, expression: 'object.spec.containers.map(e, " +
				"parseImageReference(e.image))'}]",
			"variables.images.map(i, i.registry() == 'ghcr.io' && !i.containsDigest()).all(e, e)", plain, false, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, validating(t, []*ecdsa.PrivateKey{key}, tc.fields, tc.validation))
			w.verify = func(context.Context, verify.Image) (requirement.Result, error) {
				return requirement.Result{Reason: requirement.SignatureMissing}, nil
			}
			images := []string{"ghcr.io/a:1"}
			found, unselected := w.JudgeObject(t.Context(), w.rules, verify.Object{
				Namespace: "ns", Operation: "CREATE", Images: images, JSON: []byte(tc.pod), Template: tc.template,
			})
			got := describe(found)
			if got == "" {
				more, _ := w.Judge(t.Context(), w.rules, "ns", images, tc.template, unselected)
				got = describe(more)
			}
			if !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
				t.Errorf("got %q; want %q", got, tc.want)
			}
			atNode := w.requirements.AtNode().For("ns", imageref.New("ghcr.io/a:1")).Rules
			if selects := strings.Contains(tc.fields, "matchConditions"); (len(atNode) == 0) != selects {
				t.Errorf("%d rules at a node", len(atNode))
			}
		})
	}
}

// Pods that a policy selects have its audit annotations, whether they are admitted or not.
func TestAuditAnnotationsOfPods(t *testing.T) {
	key := sigstoretest.NewKey(t)
	w := newWorld(t, validating(t, []*ecdsa.PrivateKey{key}, notAll+
		"\nmatchConditions: [{name: a, expression: \"object.metadata.name != 'other'\"}]\nauditAnnotations: [{key: name, "+
		"valueExpression: object.metadata.name}, {key: digest, valueExpression: 'string(getImageData(i))'}]",
		"object.metadata.name == 'a'"))
	for name, want := range map[string]string{
		"a":     "Admit map[p_name:a]",
		"b":     "Deny map[p_name:b]",
		"other": "",
		"":      "",
	} {
		found, _ := w.JudgeObject(t.Context(), w.rules, verify.Object{
			Namespace: "ns", Operation: "CREATE", Images: []string{"r.test/a:1", "r.test/b:1"},
			JSON: fmt.Appendf(nil, `{"metadata":{"name":%q},"spec":{"containers":[{"image":"r.test/a:1"}]}}`, name),
		})
		var got string
		for _, f := range found {
			got += fmt.Sprintf("%v %v", f.Answer, f.AuditAnnotations)
		}
		if got != want && name != "" || name == "" && got != "Deny map[]" {
			t.Errorf("%q: %q; want %q", name, got, want)
		}
	}
}

// A rule is for an object with several templates if it is for one of them.
func TestUnselectedOfSeveralTemplates(t *testing.T) {
	key := sigstoretest.NewKey(t)
	w := newWorld(t, validating(t, []*ecdsa.PrivateKey{key}, noDigest+
		"\nmatchConditions: [{name: a, expression: \"object.metadata.name == 'a'\"}]",
		"images.containers.all(i, verifyImageSignatures(i, [attestors.a]) > 0)"))
	of := func(name string) verify.Unselected {
		_, u := w.JudgeObject(t.Context(), w.rules, verify.Object{
			Images: []string{"r.test/a:1"}, JSON: []byte(`{"metadata":{"name":"` + name + `"}}`),
		})
		return u
	}
	for name, tc := range map[string]struct {
		unselected verify.Unselected
		judged     bool
	}{
		"selected":     {of("a"), true},
		"not selected": {of("b"), false},
		"one of both":  {of("b").Both(of("a")), true},
		"none of both": {of("b").Both(of("c")), false},
		"no pod":       {nil, true},
	} {
		found, _ := w.Judge(t.Context(), w.rules, "ns", []string{"r.test/a:1"}, true, tc.unselected)
		if (len(found) > 0) != tc.judged {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// No node enforces a rule that selects pods, so that the webhook denies what it cannot verify.
func TestSelectingRulesFailClosed(t *testing.T) {
	key := sigstoretest.NewKey(t)
	const signed = "images.containers.all(i, verifyImageSignatures(i, [attestors.a]) > 0)"
	const selects = "\nmatchConditions: [{name: a, expression: \"object.metadata.name == 'a'\"}]"
	elsewhere := func(policy string) string {
		return strings.ReplaceAll(policy, "cosign: {key", "cosign: {source: {repository: other.test/signatures}, key")
	}
	keyless := func(policy string) string {
		return strings.ReplaceAll(policy, "cosign: {key: {data: "+pemOf(t, key)+"}, ctlog: {insecureIgnoreTlog: true}}",
			"cosign: {keyless: {identities: [{issuer: 'https://issuer.test', subject: me}]}}")
	}
	same := func(policy string) string { return policy }
	for name, tc := range map[string]struct {
		policy func(string) string
		reason string
		err    error
	}{
		"denied":             {same, requirement.RegistryDenied, nil},
		"unavailable":        {same, requirement.RegistryUnavailable, nil},
		"mismatch":           {same, requirement.ContentMismatch, nil},
		"missing":            {same, requirement.SignatureMissing, nil},
		"elsewhere":          {elsewhere, requirement.SignatureMissing, nil},
		"no trusted root":    {keyless, requirement.SignatureInvalid, nil},
		"time-out":           {same, "", context.DeadlineExceeded},
		"cannot be resolved": {same, "", errors.New("a dial")},
	} {
		for _, selecting := range []bool{true, false} {
			fields := noDigest
			if selecting {
				fields += selects
			}
			w := newWorld(t, tc.policy(validating(t, []*ecdsa.PrivateKey{key}, fields, signed)))
			w.verify = func(context.Context, verify.Image) (requirement.Result, error) {
				return requirement.Result{Reason: tc.reason}, tc.err
			}
			found, unselected := w.JudgeObject(t.Context(), w.rules, verify.Object{
				Namespace: "ns", Operation: "CREATE", Images: []string{"r.test/a:1"}, JSON: []byte(`{"metadata":{"name":"a"}}`),
			})
			if len(found) > 0 || len(unselected) > 0 {
				t.Errorf("%s: %+v, %+v", name, found, unselected)
			}
			found, undetermined := w.Judge(t.Context(), w.rules, "ns", []string{"r.test/a:1"}, false, unselected)
			denied := strings.HasPrefix(describe(found), "Deny")
			if want := selecting || name == "missing"; denied != want || len(undetermined) > 0 == denied {
				t.Errorf("%s, selecting %v: %+v, %+v; want a denial: %v", name, selecting, found, undetermined, want)
			}
		}
	}
}

// A default is for images that no rule is surely for.
func TestDefaultBesideExpressions(t *testing.T) {
	key := sigstoretest.NewKey(t)
	const signed = "images.containers.all(i, verifyImageSignatures(i, [attestors.a]) > 0)"
	fallback := "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: d}\nspec: {validationFailureAction: " +
		"Enforce, rules: [{name: r, match: {any: [{resources: {kinds: [Pod]}}]}, verifyImages: [{imageReferences: " +
		"[d.test/*], default: deny, attestors: [{entries: [{keys: {publicKeys: " + pemOf(t, key) + "}}]}]}]}]}\n"
	for name, tc := range map[string]struct {
		fields string
		denied bool
	}{
		"glob":       {"\nmatchImageReferences: [{glob: 'r.test/*'}]", false},
		"expression": {"\nmatchImageReferences: [{expression: 'ref.startsWith(\"r.test/\")'}]", true},
		"expression, too": {
			"\nmatchImageReferences: [{glob: 'r.test/*'}, {expression: 'ref.startsWith(\"x.test/\")'}]", true,
		},
		"matchConditions": {"\nmatchConditions: [{name: a, expression: 'true'}]", true},
	} {
		w := newWorld(t, validating(t, []*ecdsa.PrivateKey{key}, noDigest+tc.fields, signed), fallback)
		for _, set := range []*requirement.Set{w.requirements, w.requirements.AtNode()} {
			if a := set.For("ns", imageref.New("r.test/a:1")); (a.Default == requirement.DenyUnmatched) != tc.denied {
				t.Errorf("%s: %+v; want the default: %v", name, a, tc.denied)
			}
		}
	}
}

// An endorsement is found under every tag of a repository, so that a program is for all tags or for none.
func TestCELIsForAllTags(t *testing.T) {
	key := sigstoretest.NewKey(t)
	const signed = "images.containers.all(i, verifyImageSignatures(i, [attestors.a]) > 0)"
	for glob, want := range map[string]bool{
		"r.test/team/*": true, "r.test/team/app": true, "r.test/team/app?": true, "*": true, "team/app": true,
		"r.test/team/app:1": false, "r.test/team/app:*": false, "r.test/team/*debug": false, "r.test/a*b*": false,
		"*app": false,
	} {
		_, err := policyfiles.LoadIVP([]policyfiles.File{{Name: "a.yaml", Data: []byte(validating(t,
			[]*ecdsa.PrivateKey{key}, noDigest+"\nmatchImageReferences: [{expression: 'ref.startsWith(\"x.test/\")'}, {glob: '"+
				glob+"'}]", signed))}}, time.Now())
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "must not depend on tags") {
			t.Errorf("%s: %v", glob, err)
		}
		if !want {
			continue
		}
		rule := loadIVP(t, validating(t, []*ecdsa.PrivateKey{key}, noDigest+
			"\nmatchImageReferences: [{expression: 'ref.startsWith(\"x.test/\")'}, {glob: '"+glob+"'}]", signed))
		c, errs := condition.CompileValidation(rule.Requirement.SignedBy.Image)
		if errs != nil {
			t.Fatal(errs)
		}
		for _, repository := range []string{"r.test/team/app", "r.test/team/app1", "docker.io/team/app", "r.test/abb"} {
			one := c.Applies(t.Context(), imageref.New(repository+":1"))
			for _, other := range []string{":debug", ":app", ":1b", "@" + someDigest} {
				if c.Applies(t.Context(), imageref.New(repository+other)) != one {
					t.Errorf("%s: %s is judged in another way than :1", glob, repository+other)
				}
			}
		}
	}
}

// All subjects of a statement are decoded with it, and count as it does.
func TestSubjectsInCELAreBounded(t *testing.T) {
	key := sigstoretest.NewKey(t)
	rule := loadIVP(t, validating(t, []*ecdsa.PrivateKey{key}, noDigest,
		"images.containers.all(i, verifyAttestationSignatures(i, attestations.scan, [attestors.a]) > 0)",
		"images.containers.all(i, extractPayload(i, attestations.scan).predicate.ok)"))
	for n, want := range map[int]string{10: "met", 130_000: "LIMIT_EXCEEDED"} {
		m, i := withImage(t)
		subject := `{"digest":{"sha256":"` + strings.TrimPrefix(i.index, "sha256:") + `"}}` + strings.Repeat(",{}", n)
		payload := `{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + scanType + `","subject":[` + subject +
			`],"predicate":{"ok":true}}`
		m.attach(t, i.index, sigstoretest.BundleJSON(t, sigstoretest.KeyBundle(t, key, []byte(payload))), nil)
		expect(t, newCheck(m, i, rule.Requirement).result(t), want)
	}
}
