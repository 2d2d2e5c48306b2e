package verify_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// labelling returns a patch with a label for each text.
func labelling(tb testing.TB, texts ...string) *condition.Patch {
	tb.Helper()
	labels := map[string]any{}
	for i, text := range texts {
		labels[fmt.Sprint(i)] = text
	}
	p, errs := condition.CompilePatch(&requirement.Mutation{
		Merge:      map[string]any{"metadata": map[string]any{"labels": labels}},
		ImageReads: []string{"attestations", "image", "signatures"},
	})
	if errs != nil {
		tb.Fatal(errs)
	}
	return p
}

// onPods are conditions that are not part of a requirement.
const onPods = "{any: [{key: '{{ request.namespace }}', operator: Equals, value: x}]}"

// What counts for the requirement gives the values. What cannot be read gives none, and the requirement is met.
// Shows: 002-R3, 002-R7, 002-R9, 002-27
func TestValuesForPatches(t *testing.T) {
	key, other := sigstoretest.NewKey(t), sigstoretest.NewKey(t)
	const scanned = "attestations: [{type: " + scanType + "}], "
	const first = "{{ attestations[0].predicate.state }}"
	for name, tc := range map[string]struct {
		texts      []string
		predicates []string
		others     []string // by another key
		unsigned   bool
		fail       string
		want       map[string]any
		expect     string
	}{
		"image": {
			texts: []string{"{{ image.config.config.User }}", "{{ image.manifest.annotations.team }} of {{ image.repository }}"},
			want: map[string]any{
				"{{ image.config.config.User }}":                                  "1000",
				"{{ image.manifest.annotations.team }} of {{ image.repository }}": "a of team/app",
			},
		},
		"attestation": {texts: []string{first}, predicates: []string{`{"state":"ok"}`}, want: map[string]any{first: "ok"}},
		"of another signer": {
			texts: []string{first}, predicates: []string{`{"state":"ok"}`}, others: []string{`{"state":"bad"}`},
			want: map[string]any{first: "ok"},
		},
		"object": {texts: []string{first}, predicates: []string{`{"state":{"$patch":"replace"}}`}, expect: "is not a text"},
		"absent": {texts: []string{first}, predicates: []string{`{}`}, expect: first + " has no value"},
		"large": {
			texts: []string{first}, predicates: []string{`{"state":"` + strings.Repeat("x", 5000) + `"}`}, expect: "4096 bytes",
		},
		"too large": {
			texts: []string{first}, predicates: []string{`{"state":"` + strings.Repeat("x", 1<<20) + `"}`},
			expect: "conditions read attestations of at most 1048576 bytes",
		},
		"not met": {texts: []string{first}, predicates: []string{`{"state":"ok"}`}, unsigned: true, expect: "does not count"},
		"registry": {
			texts: []string{"{{ image.config.os }}"}, predicates: []string{`{"state":"ok"}`}, fail: "blob",
			expect: "the configuration of the image",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, i := withConfig(t, `{"config":{"User":"1000"}}`)
			signer, rule := key, denying(t, key, scanned, onPods)
			if tc.unsigned {
				signer = other
			}
			attachKey(t, m, i.index, signer)
			if tc.predicates == nil {
				rule = denying(t, key, "", onPods)
			}
			attach := func(predicate string, by *ecdsa.PrivateKey) {
				payload := `{"_type":"https://in-toto.io/Statement/v1","predicateType":"` + scanType + `","subject":[{"digest":` +
					`{"sha256":"` + i.index[len("sha256:"):] + `"}}],"predicate":` + predicate + "}"
				m.attach(t, i.index, sigstoretest.BundleJSON(t, sigstoretest.KeyBundle(t, by, []byte(payload))), nil)
			}
			for _, p := range tc.others {
				attach(p, other)
			}
			for _, p := range tc.predicates {
				attach(p, key)
			}
			if tc.fail != "" {
				m.failures[tc.fail+" "+i.id] = fmt.Errorf("%w: at 10.0.0.1", registry.ErrUnavailable)
			}
			plain := newCheck(m, i, rule.Requirement).result(t)
			c := newCheck(m, i, rule.Requirement)
			c.image.Patch = labelling(t, tc.texts...)
			got := c.result(t)
			if !maps.Equal(got.Values, tc.want) || !strings.Contains(got.Message, tc.expect) || got.Met == tc.unsigned ||
				got.Met && (got.Values == nil) != (got.Reason != "") {
				t.Errorf("%+v; want %v, %q", got, tc.want, tc.expect)
			}
			if plain.Values != nil || plain.Met != got.Met {
				t.Errorf("without a patch: %+v", plain)
			}
		})
	}
}

// An image that a condition of the rule denies gives no values.
// Shows: 002-27
func TestNoValuesOfDeniedImages(t *testing.T) {
	key := sigstoretest.NewKey(t)
	m, i := withConfig(t, `{"config":{"User":"root"}}`)
	attachKey(t, m, i.index, key)
	rule := denying(t, key, "", "{any: [{key: '{{ image.config.config.User }}', operator: Equals, value: root}]}")
	c := newCheck(m, i, rule.Requirement)
	c.image.Patch = labelling(t, "{{ image.config.config.User }}")
	if got := c.result(t); got.Met || got.Values != nil {
		t.Errorf("%+v; want no values", got)
	}
}

// changing returns a policy whose rule labels pods of images with a text.
func changing(name, images, fields, text string) string {
	return fmt.Sprintf(`apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: %s}
spec:
  %s
  rules:
  - name: label
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ['%s']
      mutateDigest: true
      attestors: [{entries: [{keys: {publicKeys: %q}}]}]
      mutate: {patchStrategicMerge: {metadata: {labels: {%s: %q}}}}
`, name, fields, images, strings.ReplaceAll(publicKey, "        ", ""), name, text)
}

func elements(images ...string) (all []verify.Element) {
	for i, image := range images {
		all = append(all, verify.Element{Name: fmt.Sprint("c", i), Image: image + "@" + someDigest})
	}
	return all
}

// filled returns what changes do, by their images.
func filled(t *testing.T, changes []*verify.Change) (all []string) {
	t.Helper()
	for _, c := range changes {
		merge, _, err := c.Fill(t.Context(), verify.Object{JSON: []byte(`{"kind":"Pod"}`)})
		all = append(all, fmt.Sprintf("%s %v %v", c.Name, merge, err))
	}
	return all
}

// Shows: 002-27
func TestChanges(t *testing.T) {
	const digests, pods = "{{ image.digest }}", "{{ element.name }}"
	met := requirement.Result{Met: true, Values: map[string]any{digests: "v"}}
	const unverified = `image "r.test/a@` + someDigest + `": rule label of policy a does not change the pod: ` +
		"pullgate-policyd could not verify the image"
	for name, tc := range map[string]struct {
		image, text string
		result      requirement.Result
		plain       *requirement.Result // without the patch, if it is another one
		err         error
		want        string // of a change
		refused     string
		notMet      bool // what does not fail closed is left to the validating webhook
	}{
		"met":         {text: digests, result: met, want: "c0 map[metadata:map[labels:map[a:v]]] <nil>"},
		"of the pod":  {text: pods, result: met, want: "c0 map[metadata:map[labels:map[a:c0]]] <nil>"},
		"other image": {image: "other.test/a", text: digests, result: met},
		"not met": {
			text: digests, result: requirement.Result{Reason: requirement.SignatureMissing, Message: "none"}, notMet: true,
			refused: "is not met: none; required: key sha256:93432b09f1679d9ffd9c774d11f574e020d719f3aec02480eff7905e8848295d",
		},
		"unavailable": {
			text: digests, refused: unverified,
			result: requirement.Result{Reason: requirement.RegistryUnavailable, Message: "10.0.0.1"},
		},
		"denied": {text: digests, result: requirement.Result{Reason: requirement.RegistryDenied}, refused: unverified},
		"error":  {text: digests, err: errors.New("at 10.0.0.1"), refused: unverified},
		"no value": {
			text: digests, refused: "does not change the pod: it has no value",
			result: requirement.Result{Met: true, Reason: requirement.SignatureInvalid, Message: "it has no value"},
		},
		"met without the patch": {
			text: digests, refused: "does not change the pod: too many bytes", plain: &requirement.Result{Met: true},
			result: requirement.Result{Reason: requirement.LimitExceeded, Message: "too many bytes"},
		},
		"met without the patch, no registry": {
			text: digests, refused: unverified, plain: &requirement.Result{Met: true},
			result: requirement.Result{Reason: requirement.RegistryUnavailable, Message: "10.0.0.1"},
		},
		"no registry": {
			text: digests, refused: unverified,
			result: requirement.Result{Met: true, Reason: requirement.RegistryUnavailable, Message: "10.0.0.1"},
		},
	} {
		for fields, denies := range map[string]bool{
			"failurePolicy: Fail": true, "failurePolicy: Ignore": false,
			"failurePolicy: Fail\n  validationFailureAction: Audit": false,
		} {
			w := newWorld(t, changing("a", "r.test/*", fields, tc.text))
			w.verify = func(_ context.Context, i verify.Image) (requirement.Result, error) {
				if i.Patch != nil && tc.text != digests || i.Name.String() != "r.test/a@"+someDigest {
					t.Errorf("%s: asked about %+v", name, i)
				}
				if i.Patch == nil && tc.plain != nil {
					return *tc.plain, nil
				}
				return tc.result, tc.err
			}
			image := cmp.Or(tc.image, "r.test/a")
			changes, refused := w.Changes(t.Context(), w.rules, "team", elements(image))
			if got := strings.Join(filled(t, changes), ""); got != tc.want {
				t.Errorf("%s: %s; want %s", name, got, tc.want)
			}
			said := refused.Warnings
			for _, f := range refused.Findings {
				said = append(said, f.Message)
			}
			want := tc.refused
			if tc.notMet && !denies {
				want = ""
			}
			if text := strings.Join(said, ""); !strings.HasSuffix(text, want) || want == "" && text != "" ||
				(len(refused.Findings) > 0) != (denies && want != "") || strings.Contains(text, "10.0.0.1") {
				t.Errorf("%s, %s: %+v; want %s", name, fields, refused, want)
			}
		}
	}
}

// Values are kept as results are, of a patch, and the validating webhook finds the result. A value that was not there
// can come soon.
func TestValuesAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, changing("a", "r.test/*", "failurePolicy: Fail", "{{ image.digest }}"),
			changing("b", "r.test/*", "failurePolicy: Fail", "{{ image.config.os }}"))
		result := requirement.Result{Met: true, Values: map[string]any{}}
		w.verify = func(_ context.Context, i verify.Image) (requirement.Result, error) {
			r := result
			if r.Values != nil {
				r.Values = map[string]any{"{{ image.digest }}": "a", "{{ image.config.os }}": "b"}
			}
			return r, nil
		}
		ask := func(want int64, changes int) {
			t.Helper()
			before := w.verified.Load()
			got, _ := w.Changes(t.Context(), w.rules, "team", elements("r.test/a", "r.test/a"))
			if asked := w.verified.Load() - before; asked != want || len(got) != changes {
				t.Errorf("%d changes, asked %d times; want %d and %d", len(got), asked, changes, want)
			}
		}
		ask(2, 4) // of two patches by the same requirement
		ask(0, 4)
		before := w.verified.Load()
		if findings, _ := w.judge(t, "r.test/a@"+someDigest); !strings.Contains(describe(findings), "Admit") ||
			w.verified.Load() != before {
			t.Errorf("judged %s, asked %d times", describe(findings), w.verified.Load()-before)
		}
		time.Sleep(61 * time.Minute)
		result = requirement.Result{Met: true, Reason: requirement.SignatureInvalid, Message: "no value"}
		ask(2, 0)
		time.Sleep(11 * time.Second)
		ask(2, 0)
		if findings, _ := w.judge(t, "r.test/a@"+someDigest); describe(findings) != "Admit a, Admit b" {
			t.Errorf("judged %s without values", describe(findings))
		}
	})
}

// Changes of one namespace leave turns at a registry to others.
func TestNamespacesShareTheTurnsForChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, changing("a", "r.test/*", "failurePolicy: Fail", "{{ image.digest }}"))
		w.verify = func(context.Context, verify.Image) (requirement.Result, error) {
			time.Sleep(time.Second)
			return requirement.Result{Met: true, Values: map[string]any{"{{ image.digest }}": "a"}}, nil
		}
		for i := range 40 {
			go w.Changes(t.Context(), w.rules, "greedy", elements(fmt.Sprint("r.test/greedy-", i)))
		}
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		changes, refused := w.Changes(t.Context(), w.rules, "team", elements("r.test/app"))
		if len(changes) != 1 || len(refused.Findings) > 0 || time.Since(began) > 1500*time.Millisecond {
			t.Errorf("%d changes, %+v after %v; want one after a second", len(changes), refused, time.Since(began))
		}
		time.Sleep(time.Minute)
	})
}

// A pod with many images is not patched, and no registry is asked.
func TestChangesAreBounded(t *testing.T) {
	w := newWorld(t, changing("a", "r.test/*", "failurePolicy: Fail", "{{ element.name }}"))
	images := slices.Repeat([]string{"r.test/a"}, verify.MaxChanges)
	if changes, refused := w.Changes(t.Context(), w.rules, "team", elements(images...)); len(refused.Findings) > 0 ||
		len(changes) != verify.MaxChanges {
		t.Errorf("%d changes, %+v", len(changes), refused)
	}
	before := w.verified.Load() + w.resolved.Load()
	changes, refused := w.Changes(t.Context(), w.rules, "team", elements(append(images, "r.test/b")...))
	if len(changes) > 0 || len(refused.Findings) != 2 || w.verified.Load()+w.resolved.Load() != before ||
		!strings.Contains(refused.Findings[0].Message, "the pod has more than 32 changes by rules") {
		t.Errorf("%d changes, %+v", len(changes), refused)
	}
}

// The conditions on the pod are judged before its change, and what is not met changes nothing.
func TestChangesAreForPodsThatMeetTheConditions(t *testing.T) {
	policy := strings.Replace(changing("a", "r.test/*", "failurePolicy: Fail", "{{ element.name }}"), "      mutate:",
		"      validate: {deny: {conditions: {any: [{key: '{{ request.object.state }}', operator: NotEquals, value: ok}]}}}"+
			"\n      mutate:", 1)
	w := newWorld(t, policy)
	changes, _ := w.Changes(t.Context(), w.rules, "team", elements("r.test/a"))
	for object, want := range map[string]bool{`{"state":"ok"}`: true, `{"state":"bad"}`: false, `{}`: false} {
		merge, operations, err := changes[0].Fill(t.Context(), verify.Object{JSON: []byte(object)})
		if (merge != nil) != want || operations != nil || err != nil {
			t.Errorf("%s: %v, %v, %v; want a patch %v", object, merge, operations, err, want)
		}
	}
	if _, _, err := changes[0].Fill(t.Context(), verify.Object{JSON: []byte("{")}); err == nil {
		t.Error("an object that cannot be decoded is patched")
	}
}

// What nodes verify, and under which hash, does not depend on a change.
func TestChangesAreNotPartOfTheRequirement(t *testing.T) {
	with := changing("a", "r.test/*", "failurePolicy: Fail", "{{ image.config.os }}")
	lines := slices.DeleteFunc(strings.Split(with, "\n"), func(l string) bool { return strings.Contains(l, "mutate:") })
	w, without := newWorld(t, with), newWorld(t, strings.Join(lines, "\n"))
	if !slices.Equal(w.hashes, without.hashes) || w.rules.Mutates() == without.rules.Mutates() {
		t.Errorf("hashes %q with a change, %q without one", w.hashes, without.hashes)
	}
	w.verify = func(_ context.Context, i verify.Image) (requirement.Result, error) {
		if i.Patch != nil {
			t.Error("a node asks for values")
		}
		return requirement.Result{Met: true}, nil
	}
	request := verify.Request{Image: verify.Image{Name: imageref.New("r.test/a:1")}, Requirements: w.hashes}
	if report, err := w.Verify(t.Context(), w.rules, request); err != nil || !report.Results[0].Met {
		t.Errorf("%+v, %v", report, err)
	}
}
