package policyfiles_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// Shows: 002-40, 002-41, 002-42, 002-43, 002-44, 002-45
func TestExamplesOfTheProposal(t *testing.T) {
	for _, name := range []string{
		"digest-corrected", "key-corrected", "keyless", "one-of-three-corrected",
		"tekton-corrected", "tekton-for-pods", "trivy-corrected",
	} {
		p, err := kyverno.Load(readFile(t, "testdata/kyverno/proposal-"+name+".yaml"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		compare(t, "testdata/kyverno/proposal-"+name+".golden", describePolicies(p))
	}
}

// The other examples of the proposal use what is not supported yet, or are malformed.
// Shows: 002-46
func TestMalformedExamplesOfTheProposal(t *testing.T) {
	var text strings.Builder
	for _, name := range []string{"structure", "digest", "key", "one-of-three", "tekton", "trivy"} {
		p, err := kyverno.Load(readFile(t, "testdata/kyverno/proposal-"+name+".yaml"))
		if err == nil {
			t.Errorf("%s is valid: %v", name, p)
			continue
		}
		fmt.Fprintf(&text, "%s\n%v\n\n", name, err)
	}
	compare(t, "testdata/kyverno/malformed.golden", text.String())
}

// Shows: 002-R6, 002-17, 002-19, 002-20, 002-29
func TestKyvernoEveryField(t *testing.T) {
	p := kyverno.Valid(t, readFile(t, "testdata/kyverno/every-field.yaml"))
	compare(t, "testdata/kyverno/every-field.golden", describePolicies(p))
}

// kyvernoVerification returns a policy with one entry of verifyImages, in flow style.
func kyvernoVerification(fields string) string {
	return kyvernoPolicy("match: {any: [{resources: {kinds: [Pod]}}]}, verifyImages: [{imageReferences: ['*'], " + fields +
		"}]")
}

const kyvernoHeader = "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\n"

func kyvernoPolicy(rule string) string {
	return kyvernoHeader + "spec: {validationFailureAction: Enforce, rules: [{name: r, " + rule + "}]}\n"
}

// kyvernoAttestorsOf returns a policy with one set of attestors.
func kyvernoAttestorsOf(set string) string { return kyvernoVerification("attestors: [" + set + "]") }

// Shows: 002-10, 002-18, 002-19, 002-46
func TestKyvernoErrors(t *testing.T) {
	kyverno.Errors(t, "testdata/kyverno/errors.golden", kyvernoHeader)
}

// An attestation is by its own attestors, or by those of the rule.
// Shows: 002-10, 002-26, 002-46
func TestAttestorsOfAttestations(t *testing.T) {
	of := func(key string) string {
		return "attestors: [{entries: [{keys: {publicKeys: " + pemText(t, key) + "}}]}]"
	}
	requires := func(fields string) string {
		return kyverno.Valid(t, kyvernoVerification(fields)).Rules[0].Requirement.String()
	}
	a, b := of("a.pub"), of("b.pub")
	signed, attested := requires(a), "an attestation of type https://openvex.dev/ns by "
	for fields, want := range map[string]string{
		a + ", attestations: [{type: openvex}]":                   signed + "; " + attested + signed,
		a + ", attestions: [{predicateType: openvex, " + b + "}]": signed + "; " + attested + requires(b),
		"attestations: [{type: openvex, " + b + "}]":              attested + requires(b),
	} {
		if got := requires(fields); !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %s", fields, got, want)
		}
	}
}

func TestExpiredRoot(t *testing.T) {
	file := kyvernoAttestorsOf("{entries: [{keyless: {issuer: i, subject: s, roots: " + pemText(t, "root.crt") + "}}]}")
	kyverno.Valid(t, file)
	p, err := policyfiles.LoadKyverno([]policyfiles.File{{Name: "a.yaml", Data: []byte(file)}}, now().AddDate(100, 0, 0))
	must(t, err)
	if want := "expired at 2126-10-29T"; !slices.ContainsFunc(p.Notes,
		func(n string) bool { return strings.Contains(n, want) }) {
		t.Errorf("notes about an expired root: %q; want %s", p.Notes, want)
	}
}

// Shows: 002-18
func TestNestedTooDeep(t *testing.T) {
	nested := func(n int) string {
		set := "{entries: [{keys: {publicKeys: " + pemText(t, "a.pub") + "}}]}"
		for range n - 1 {
			set = "{entries: [{attestors: " + set + "}]}"
		}
		return kyvernoAttestorsOf(set)
	}
	if _, err := kyverno.Load(nested(16)); err != nil {
		t.Errorf("16 deep: %v", err)
	}
	if _, err := kyverno.Load(nested(17)); err == nil ||
		!strings.Contains(err.Error(), "sets of attestors can be nested 16 deep") {
		t.Errorf("17 deep: %v; want an error", err)
	}
}

// Shows: 002-14
func TestLoadOfSeveralFiles(t *testing.T) {
	named := func(name, fields string) string {
		return strings.Replace(kyvernoVerification(fields), "name: p", "name: "+name, 1)
	}
	p, err := kyverno.Load(named("second", "verifyDigest: true, default: deny"), named("first", "verifyDigest: true"),
		named("third", "default: deny"))
	if err != nil || p.Count != 3 || len(p.Rules) != 3 || p.Rules[0].Policy != "first" || p.Rules[0].File != "b.yaml" ||
		p.Rules[1].Policy != "second" {
		t.Errorf("Load = %+v, %v; want three rules in the order of their policies", p, err)
	}
	_, err = kyverno.Load(named("p", "verifyDigest: true"), named("p", "verifyDigst: true"), "{")
	want := []string{
		"b.yaml: spec.rules[0].verifyImages[0].verifyDigst: unknown field; did you mean verifyDigest? (line 4)",
		`b.yaml: metadata.name: Duplicate value: "p": also in a.yaml; each policy needs its own name (line 3)`,
		"c.yaml: yaml: line 1: did not find expected node content",
	}
	if err == nil || !slices.Equal(strings.Split(err.Error(), "\n"), want) {
		t.Errorf("Load reports\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
	_, err = kyverno.Load(named("a", "default: allow"), named("b", "default: deny"))
	const twice = `b.yaml (rule r): default: Invalid value: "deny": is allow in a.yaml (rule r); all rules must have ` +
		"the same default"
	if err == nil || err.Error() != twice {
		t.Errorf("two defaults: %v; want %s", err, twice)
	}
}

// Each spelling of the proposal is the same rule as that of Kyverno.
// Shows: 002-46
func TestSpellings(t *testing.T) {
	a := pemText(t, "a.pub")
	hash := func(file string) string {
		t.Helper()
		p := kyverno.Valid(t, file)
		text := describePolicies(p)
		before, _, _ := strings.Cut(text, "note ")
		return before
	}
	rule := func(verify string) string { return kyvernoPolicy("match: {resources: {kinds: [Pod]}}, " + verify) }
	want := hash(rule("verifyImages: [{imageReferences: [a], verifyDigest: true, mutateDigest: true, attestors: " +
		"[{entries: [{attestor: {entries: [{keys: {publicKeys: " + a + "}}]}}]}]}]"))
	for _, verify := range []string{
		"imageVerify: {images: [a], digestVerify: true, digestMutate: true, attestors: [{entries: [{attestors: {entries: " +
			"[{staticKey: {key: " + a + "}}]}}]}]}",
		"imageVerify: [{images: [a], verifyDigest: true, digestMutate: true, attestors: [{count: 0, entries: [{staticKey: " +
			"{publicKeys: " + a + "}}]}]}]",
		"verifyImages: {images: [a], verifyDigest: true, mutateDigest: true, attestors: [{count: 1, entries: [{keys: {key: " +
			a + "}}]}]}",
	} {
		if got := hash(rule(verify)); got != want {
			t.Errorf("%s is\n%s\nwant\n%s", verify, got, want)
		}
	}
}

// A change of names, patterns, namespaces or the action does not change the hash.
func TestHashIsOfTheRequirementAlone(t *testing.T) {
	a := pemText(t, "a.pub")
	base := kyvernoVerification("attestors: [{entries: [{keys: {publicKeys: " + a + "}}]}]")
	hash := func(file string) string {
		t.Helper()
		p, err := kyverno.Load(file)
		if err != nil || len(p.Rules) != 1 {
			t.Fatalf("%v: %s", err, file)
		}
		return p.Rules[0].Requirement.Hash("")
	}
	want := hash(base)
	for old, changed := range map[string]string{
		"name: p": "name: q", "name: r": "name: s", "Enforce": "Audit", "'*'": "nginx",
		"kinds: [Pod]": "kinds: [Pod], namespaces: [a]",
		"attestors":    "default: deny, verifyDigest: true, attestors",
	} {
		if got := hash(strings.Replace(base, old, changed, 1)); got != want {
			t.Errorf("%s instead of %s has another hash", changed, old)
		}
	}
	for old, changed := range map[string]string{
		a: pemText(t, "b.pub"), "publicKeys": "rekor: {}, publicKeys",
		"attestors": "repository: repo.test/signatures, attestors",
	} {
		if got := hash(strings.Replace(base, old, changed, 1)); got == want {
			t.Errorf("%s instead of %s has the same hash", changed, old)
		}
	}
}

func TestMatchAndExclude(t *testing.T) {
	const pods, exclude = "match: {resources: {kinds: [Pod]}}", "match: {resources: {kinds: [Pod]}}, exclude: "
	const excludeAll = exclude + "{all: [{resources: {"
	for _, tc := range [][2]string{ // and the namespaces of a, ab, b whose pods a rule is for
		{pods, "a ab b"},
		{"match: {resources: {kinds: [Deployment, '*/Pod'], namespaces: ['a?', b]}}", "ab b"},
		{"match: {resources: {kinds: [Deployment], namespaces: [a]}}", ""},
		{"match: {any: [{resources: {kinds: [Pod], namespaces: [a]}}, {resources: {kinds: [Job]}}]}", "a"},
		{"match: {any: [{resources: {kinds: [Pod], namespaces: [a]}}, {resources: {kinds: [Pod]}}]}", "a ab b"},
		{"match: {all: [{resources: {kinds: [Pod], namespaces: ['a*']}}, {resources: {kinds: ['*'], namespaces: " +
			"['*b']}}]}", "ab"},
		{"match: {all: [{resources: {kinds: [Pod]}}, {resources: {kinds: [Job]}}]}", ""},
		{exclude + "{resources: {namespaces: [a]}}", "ab b"},
		{exclude + "{resources: {kinds: [Job], namespaces: [a]}}", "a ab b"},
		{exclude + "{any: [{resources: {namespaces: [a]}}, {resources: {namespaces: [b]}}]}", "ab"},
		{excludeAll + "namespaces: ['a*']}}, {resources: {namespaces: ['*b']}}]}", "a b"},
		{excludeAll + "kinds: [Job]}}, {resources: {namespaces: ['*b']}}]}", "a ab b"},
		{"match: {resources: {kinds: [Pod], namespaces: ['a*']}}, exclude: {all: [{resources: {kinds: [Pod], " +
			"namespaces: [ab, b]}}]}", "a"},
	} {
		match, want := tc[0], tc[1]
		p, err := kyverno.Load(kyvernoPolicy(match + ", imageVerify: {images: ['*'], verifyDigest: true}"))
		if err != nil {
			t.Errorf("%s: %v", match, err)
			continue
		}
		var in []string
		for _, namespace := range []string{"a", "ab", "b"} {
			if len(requirement.NewSet("", p).For(namespace, imageref.New("nginx")).Rules) > 0 {
				in = append(in, namespace)
			}
		}
		if got := strings.Join(in, " "); got != want {
			t.Errorf("%s is for %q; want %q", match, got, want)
		}
	}
}

// Shows: 002-11, 002-29
func TestKyvernoNotes(t *testing.T) {
	noPods := kyvernoPolicy("match: {any: [{resources: {kinds: [Deployment]}}]}, verifyImages: [{imageReferences: " +
		"['*'], verifyDigest: true}]")
	p, err := kyverno.Load(strings.Replace(noPods, "validationFailureAction: Enforce, ", "", 1))
	want := []string{
		"a.yaml: spec.validationFailureAction: absent: the policy is enforced here and audited by Kyverno; set it to " +
			"Enforce or Audit (line 4)",
		"a.yaml: spec.rules[0].match.any[0].resources.kinds[0]: no effect; a rule for Pod is for the pods of all workloads " +
			"(line 4)",
		"a.yaml: spec.rules[0].match: not enforced: the rule is not for pods; add Pod to kinds if it should be (line 4)",
	}
	if err != nil || len(p.Rules) != 0 || p.Count != 1 || !slices.Equal(p.Notes, want) {
		t.Errorf("Load = %+v, %v; want no rule and the notes\n%s", p, err, strings.Join(want, "\n"))
	}
	mutate := kyvernoVerification("mutateDigest: true")
	p, err = kyverno.Load(mutate)
	if err != nil || len(p.Rules) != 1 || !p.Rules[0].MutateDigest || p.Rules[0].FailClosed || len(p.Notes) != 2 ||
		!strings.Contains(p.Notes[0], ".mutateDigest: no effect at nodes") ||
		!strings.Contains(p.Notes[1], "spec.failurePolicy: absent: an image whose digest cannot be read keeps its tag") {
		t.Errorf("Load = %+v, %v; want a rule and two notes", p, err)
	}
	onPods := kyvernoVerification("validate: {deny: {conditions: {any: [{key: '{{ request.object.metadata.name }}', " +
		"operator: Equals, value: a}]}}}")
	p, err = kyverno.Load(onPods)
	const alone = "conditions on request are judged by the webhook alone, and not at nodes"
	if err != nil || len(p.Rules) != 1 || p.Rules[0].Object == nil || len(p.Notes) != 1 ||
		!strings.Contains(p.Notes[0], alone) {
		t.Errorf("Load = %+v, %v; want a rule on pods, and the note %s", p, err, alone)
	}
	for _, field := range []string{"failurePolicy: Fail", "webhookConfiguration: {failurePolicy: Ignore}"} {
		p, err = kyverno.Load(strings.Replace(mutate, "spec: {", "spec: {"+field+", ", 1))
		if err != nil || len(p.Notes) != 2 || strings.Contains(strings.Join(p.Notes, ""), "absent") {
			t.Errorf("%s: Load = %+v, %v; want notes about other things", field, p, err)
		}
	}
}

// A rule about custom resources is not an error, so that the other policies of the folder are enforced.
// Shows: 002-11
func TestCustomResources(t *testing.T) {
	custom := kyvernoPolicy("match: {any: [{resources: {kinds: [tekton.dev/v1beta1/TaskRun.status, PipelineRun]}}]}, " +
		"imageExtractors: {PipelineRun: [{path: /spec/pipelineRef, value: bundle}]}, verifyImages: [{imageReferences: " +
		"['*'], verifyDigest: true, default: allow}]")
	both := kyvernoPolicy("match: {any: [{resources: {kinds: [Pod, argoproj.io/v1alpha1/Workflow]}}]}, verifyImages: " +
		"[{imageReferences: ['*'], verifyDigest: true, default: deny}]")
	p, err := kyverno.Load(custom, strings.Replace(both, "name: p", "name: q", 1))
	want := []string{
		"a.yaml: spec.rules[0].match.any[0].resources.kinds[0]: no effect; subresources are not judged (line 4)",
		"a.yaml: spec.rules[0].match.any[0].resources.kinds[1]: not enforced here: pods made from it are judged as pods; " +
			"the webhook judges the object (line 4)",
		"b.yaml: spec.rules[0].match.any[0].resources.kinds[1]: not enforced: neither imagePaths nor imageExtractors says " +
			"where it names images (line 4)",
	}
	if err != nil || len(p.Rules) != 1 || p.Rules[0].Policy != "q" || p.Count != 2 || !slices.Equal(p.Notes, want) ||
		len(p.Custom) != 1 || p.Custom[0].Policy != "p" {
		t.Errorf("Load = %+v, %v; want the rule of q for pods, that of p for PipelineRuns, and the notes\n%s", p, err,
			strings.Join(want, "\n"))
	}
}

func FuzzKyverno(f *testing.F) {
	kyverno.Fuzz(f, func(t *testing.T, r requirement.Rule) {
		t.Helper()
		if len(r.Images) == 0 || r.Requirement == nil && !r.RequireDigest && r.Default == requirement.NoDefault {
			t.Errorf("a rule without effect: %+v", r)
		}
		if r.Requirement != nil && !r.Requirement.NeedsSignature() {
			t.Errorf("a requirement that no signature decides: %s", r.Requirement)
		}
	},
		kyvernoVerification("verifyDigest: true, default: deny"),
		kyvernoAttestorsOf("{count: 1, entries: [{keyless: {issuer: i, subject: 's*', additionalExtensions: "+
			"{githubWorkflowRef: r}, rekor: {ignoreTlog: true}}}, {staticKey: {key: k}}]}"),
		kyvernoPolicy("match: {all: [{resources: {kinds: [Pod], namespaces: ['a*']}}]}, exclude: {resources: {namespaces: "+
			"[ab]}}, imageVerify: {images: ['a/*:b'], attestors: [{entries: [{attestors: {count: 0, entries: []}}]}]}"))
}
