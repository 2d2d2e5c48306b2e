package verify_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
)

// customPolicy returns a policy for kinds with a signature by a key, or what fields replace it with.
func customPolicy(name, kinds, paths, fields string) string {
	if fields == "" {
		fields = "attestors: [{entries: [{keys: {publicKeys: \"" +
			strings.ReplaceAll(strings.ReplaceAll(publicKey, "        ", ""), "\n", `\n`) + "\"}}]}]"
	}
	return fmt.Sprintf(`apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: %s}
spec:
  validationFailureAction: Enforce
  rules:
  - name: r
    match: {any: [{resources: {kinds: [%s]}}]}
    imagePaths: [%s]
    verifyImages: [{imageReferences: ['r.test/*'], %s}]
`, name, kinds, paths, fields)
}

var (
	taskKind     = requirement.Kind{Group: "tekton.dev", Version: "v1", Kind: "Task"}
	workflowKind = requirement.Kind{Group: "argoproj.io", Version: "v1alpha1", Kind: "Workflow"}
)

const stepPaths = "{path: '{{ spec.steps[*] }}'}, {path: '{{ spec.sidecars[*] }}'}, {path: spec.stepTemplate.image}"

// custom judges an object in YAML completely, as the webhook does; nil findings mean that no rule is for it.
func (w *world) custom(t *testing.T, kind requirement.Kind, object, old string) (
	findings []admission.Finding, c *verify.Custom,
) {
	t.Helper()
	o := verify.CustomObject{Kind: kind, Namespace: "team", Operation: "CREATE", JSON: asJSON(t, object)}
	if old != "" {
		o.Operation, o.Old = "UPDATE", asJSON(t, old)
	}
	c = w.JudgeCustom(t.Context(), w.rules, o)
	if c == nil || c.Judge == nil {
		if c != nil {
			findings = c.Findings
		}
		return findings, c
	}
	findings = c.Findings
	if len(findings) == 0 || admission.DecisionOf(findings).Admitted() {
		findings = append(findings, c.Judge(t.Context())...)
	}
	return findings, c
}

func asJSON(t *testing.T, text string) []byte {
	t.Helper()
	if strings.HasPrefix(text, "{\"") {
		return []byte(text)
	}
	return testkit.Value(yaml.YAMLToJSON([]byte(text)))(t)
}

// onlySigned has all images signed whose name contains signed.
func onlySigned(_ context.Context, image verify.Image) (requirement.Result, error) {
	if strings.Contains(image.Name.Repository(), "signed") {
		return requirement.Result{Met: true, Signers: []string{"k"}, Digest: someDigest}, nil
	}
	return requirement.Result{Reason: requirement.SignatureMissing, Message: "no signature"}, nil
}

func messages(findings []admission.Finding) string {
	var all []string
	for _, f := range findings {
		if f.Answer != admission.Admit {
			all = append(all, f.Message)
		}
	}
	return strings.Join(all, "\n")
}

// Every image that a path finds is verified, with the sentences that a pod gets.
// Shows: 002-R2, 002-12
func TestCustomResources(t *testing.T) {
	workflow := "{path: 'spec.templates[].container'}, {path: 'spec.templates[].script'}, " +
		"{path: 'spec.templates[].initContainers[]'}, {path: 'spec.templates[].sidecars[]'}, " +
		"{path: 'spec.templates[].containerSet.containers[]'}"
	w := newWorld(t, customPolicy("task", "Pod, tekton.dev/v1/Task", stepPaths, ""),
		customPolicy("workflow", "argoproj.io/v1alpha1/Workflow", workflow, ""))
	w.verify = onlySigned
	pod, _ := w.judge(t, "r.test/bad:1")
	denied := messages(pod)
	if denied == "" {
		t.Fatal("the pod is admitted")
	}
	for _, tc := range []struct {
		kind         requirement.Kind
		object, want string
	}{
		{taskKind, "spec: {steps: [{name: a, image: r.test/signed:1}]}", ""},
		{taskKind, "spec: {steps: [{name: a, image: r.test/signed:1}, {name: b, image: r.test/bad:1}]}", denied},
		{taskKind, "spec: {steps: [{name: a, image: r.test/bad:1}, {name: a, image: r.test/signed:1}]}", denied},
		{taskKind, "spec: {steps: [{image: r.test/bad:1}]}", denied},
		{taskKind, "spec: {sidecars: [{name: a, image: r.test/bad:1}]}", denied},
		{taskKind, "spec: {stepTemplate: {image: r.test/bad:1}, steps: [{name: a}]}", denied},
		{taskKind, "spec: {steps: {a: {image: r.test/signed:1}, b: {image: r.test/bad:1}}}", denied},
		{taskKind, "spec: {steps: [{name: a, image: other.test/bad:1}]}", ""},
		{taskKind, "spec: {steps: [{name: a, ref: {name: r.test/bad}}, null, {image: null}, {image: ''}]}", ""},
		{taskKind, "spec: {steps: [], sidecars: null}", ""},
		{taskKind, "spec: {}", ""},
		{taskKind, "{}", ""},
		{workflowKind, "spec: {templates: [{container: {image: r.test/signed}}, {script: {image: r.test/bad:1}}]}", denied},
		{workflowKind, "spec: {templates: [{dag: {}}, {container: {image: r.test/bad:1}}]}", denied},
		{workflowKind, "spec: {templates: [{sidecars: [{name: s, image: r.test/bad:1}]}]}", denied},
		{workflowKind, "spec: {templates: [{initContainers: [{image: r.test/signed}, {image: r.test/bad:1}]}]}", denied},
		{workflowKind, "spec: {templates: [{containerSet: {containers: [{image: r.test/bad:1}]}}]}", denied},
		{workflowKind, "spec: {templates: [{container: {image: r.test/signed:1}}]}", ""},
	} {
		findings, c := w.custom(t, tc.kind, tc.object, "")
		got := strings.ReplaceAll(messages(findings), "workflow", "task")
		if got != tc.want || c == nil {
			t.Errorf("%s, %s: %q; want %q", tc.kind.Kind, tc.object, got, tc.want)
		}
	}
	for _, kind := range []requirement.Kind{
		{},
		{Group: "tekton.dev", Version: "v1", Kind: "TaskRun"},
		{Group: "other.dev", Version: "v1", Kind: "Task"},
		{Version: "v1", Kind: "Pod"},
	} {
		if _, c := w.custom(t, kind, "spec: {steps: [{name: a, image: r.test/bad:1}]}", ""); c != nil {
			t.Errorf("%+v is judged", kind)
		}
	}
}

// No node verifies a custom resource later, so one that cannot be verified here is denied, whatever the reason: a
// tenant could choose it. The rule being for pods too changes nothing.
func TestCustomResourcesThatCannotBeVerified(t *testing.T) {
	keyless := "attestors: [{entries: [{keyless: {issuer: https://issuer.test, subject: me@team.test}}]}]"
	key := customPolicy("p", "Task", stepPaths, "")
	elsewhere := strings.Replace(key, "verifyImages: [{",
		"verifyImages: [{repository: other.test/signatures, ", 1)
	reasons := func(reason string) func(context.Context, verify.Image) (requirement.Result, error) {
		return func(context.Context, verify.Image) (requirement.Result, error) {
			return requirement.Result{Reason: reason, Message: "canary"}, nil
		}
	}
	const unread = "it could not read them from the registry"
	for name, tc := range map[string]struct {
		policy, why string
		resolve     error
		verify      func(context.Context, verify.Image) (requirement.Result, error)
	}{
		"no image":             {key, unread, registry.ErrNotFound, nil},
		"no access":            {key, unread, registry.ErrDenied, nil},
		"no access, pods":      {customPolicy("p", "Pod, Task", stepPaths, ""), unread, registry.ErrDenied, nil},
		"signatures denied":    {key, unread, nil, reasons(requirement.RegistryDenied)},
		"not available":        {key, unread, nil, reasons(requirement.RegistryUnavailable)},
		"another platform":     {key, unread, nil, reasons(requirement.ContentMismatch)},
		"another repository":   {elsewhere, unread, nil, reasons(requirement.SignatureMissing)},
		"without trusted root": {customPolicy("p", "Task", stepPaths, keyless), "it has no trusted root", nil, onlySigned},
	} {
		audit := strings.Replace(tc.policy, "Action: Enforce", "Action: Audit", 1)
		for policy, want := range map[string]string{
			tc.policy: "Deny SIGNATURE_MISSING p", audit: "Deny SIGNATURE_MISSING p audit",
		} {
			w := newWorld(t, policy)
			w.resolve = func(string, string) (string, error) { return someDigest, tc.resolve }
			if tc.verify != nil {
				w.verify = tc.verify
			}
			got, _ := w.custom(t, taskKind, "spec: {steps: [{image: r.test/bad:1}]}", "")
			const text = `image "r.test/bad:1": rule r of policy p requires signatures, ` +
				"and pullgate-policyd cannot verify them: "
			if describe(got) != want || !strings.HasPrefix(messages(got), text+tc.why) ||
				strings.Contains(messages(got), "the node verifies") || strings.Contains(messages(got), "canary") {
				t.Errorf("%s: %s %q; want %s with %s", name, describe(got), messages(got), want, tc.why)
			}
			if !strings.Contains(w.logged(t), "Signatures could not be verified, no node verifies them") {
				t.Errorf("%s: the log has %q", name, w.logged(t))
			}
		}
	}
}

// Many slow images do not hide one that is not signed: at the end of the time all of them are denied.
func TestSlowImagesOfCustomResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, customPolicy("p", "Task", stepPaths, ""))
		w.resolve = func(repository, _ string) (string, error) {
			if strings.Contains(repository, "slow") {
				time.Sleep(20 * time.Second)
			}
			return someDigest, nil
		}
		w.verify = onlySigned
		steps := "{image: r.test/z-bad:1}"
		for i := range 999 {
			steps += fmt.Sprintf(", {image: r.test/slow-signed-%03d:1}", i)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		o := verify.CustomObject{Kind: taskKind, Namespace: "team", JSON: asJSON(t, "spec: {steps: ["+steps+"]}")}
		began := time.Now()
		findings := w.JudgeCustom(ctx, w.rules, o).Judge(ctx)
		if d := admission.DecisionOf(findings); d.Admitted() || len(findings) != 1000 || time.Since(began) > 10*time.Second {
			t.Errorf("admitted %v with %d findings after %v; want denials of all", d.Admitted(), len(findings),
				time.Since(began))
		}
		time.Sleep(time.Minute)
	})
}

// An object arrives in a version that a rule does not name if another one names it. Its images may be elsewhere then.
func TestOtherVersionsOfCustomResources(t *testing.T) {
	v1beta1 := requirement.Kind{Group: "tekton.dev", Version: "v1beta1", Kind: "Task"}
	const good, renamed = "spec: {steps: [{image: other.test/a:1}]}", "spec: {containers: [{image: r.test/a:1}]}"
	for kinds, want := range map[string]string{
		"tekton.dev/v1/Task": "Deny FIELD_UNKNOWN p",
		"v1/Task":            "Deny FIELD_UNKNOWN p",
		"tekton.dev/v1beta1/TaskRun, tekton.dev/v1/*": "Deny FIELD_UNKNOWN p",
		"tekton.dev/*/Task":                           "",
		"tekton.dev/v1*/Task":                         "",
		"Task":                                        "",
		"tekton.dev/v1/Task, tekton.dev/v1beta1/Task": "",
	} {
		w := newWorld(t, customPolicy("p", kinds, stepPaths, "digestVerify: true"))
		for _, object := range []string{good, renamed} {
			got, _ := w.custom(t, v1beta1, object, "")
			if describe(got) != want || want != "" && !strings.Contains(messages(got), "does not name the version v1beta1") {
				t.Errorf("%s, %s: %s %q; want %q", kinds, object, describe(got), messages(got), want)
			}
			if got, _ := w.custom(t, taskKind, object, ""); kinds != "tekton.dev/v1beta1/Task" && len(got) > 0 {
				t.Errorf("%s, %s as v1: %s", kinds, object, describe(got))
			}
		}
	}
	// Metadata can change, and nothing else; not metadata either if a path reads it.
	for paths, want := range map[string]bool{
		stepPaths: true, stepPaths + ", {path: metadata.annotations.image}": false,
	} {
		w := newWorld(t, customPolicy("a", "tekton.dev/v1/Task", stepPaths, "digestVerify: true"),
			customPolicy("p", "tekton.dev/v1/Task", paths, "digestVerify: true"))
		for _, tc := range []struct {
			old, object string
			unchanged   bool
		}{
			{"metadata: {a: b}\nspec: {}", "metadata: {a: c}\nspec: {}", want},
			{"template: {}\nspec: {}", "template: {image: r.test/a:1}\nspec: {}", false},
			{"spec: {}", "template: {image: r.test/a:1}\nspec: {}", false},
			{"template: {image: r.test/a:1}\nspec: {}", "spec: {}", false},
		} {
			got, c := w.custom(t, v1beta1, tc.object, tc.old)
			if c.Unchanged != tc.unchanged || !tc.unchanged && describe(got[len(got)-1:]) != "Deny FIELD_UNKNOWN p" {
				t.Errorf("%s, then %s: unchanged %v, %s", tc.old, tc.object, c.Unchanged, describe(got))
			}
		}
	}
}

// An object in the place of a list is the list of its values, wherever a path has one.
func TestObjectsInThePlaceOfLists(t *testing.T) {
	extractor := strings.Replace(customPolicy("p", "tekton.dev/*/Task", "", "digestVerify: true"), "imagePaths: []",
		"imageExtractors: {Task: [{path: /spec/steps/*/image}, {path: /spec/groups/*/steps/*}]}", 1)
	const lists = "{path: 'spec.steps[*].image'}, {path: 'spec.groups[].steps[]'}"
	for _, policy := range []string{extractor, customPolicy("p", "Task", lists, "digestVerify: true")} {
		w := newWorld(t, policy)
		for _, object := range []string{
			"spec: {steps: [{image: r.test/a:1}]}", "spec: {steps: {a: {image: r.test/a:1}}}",
			"spec: {groups: [{steps: [{image: r.test/a:1}]}]}", "spec: {groups: {a: {steps: [{image: r.test/a:1}]}}}",
			"spec: {groups: [{steps: {a: {image: r.test/a:1}}}]}", "spec: {groups: {a: {steps: {b: {image: r.test/a:1}}}}}",
		} {
			if got, _ := w.custom(t, taskKind, object, ""); describe(got) != "Deny DIGEST_REQUIRED p" {
				t.Errorf("%s: %s", object, describe(got))
			}
		}
	}
}

// A rule for custom resources alone is not for pods, neither at the node nor in the webhook.
func TestCustomResourcesAreNoPods(t *testing.T) {
	w := newWorld(t, customPolicy("task", "tekton.dev/v1/Task", stepPaths, "default: deny, digestVerify: true"))
	if len(w.requirements.Rules()) > 0 {
		t.Errorf("rules for pods: %v", w.requirements.Rules())
	}
	if got, _ := w.judge(t, "r.test/bad:1"); len(got) > 0 {
		t.Errorf("a pod: %s", describe(got))
	}
	if w.rules.Verifies() {
		t.Error("signatures decide; want none")
	}
	w = newWorld(t, customPolicy("task", "tekton.dev/v1/Task", stepPaths, ""))
	if !w.rules.Verifies() {
		t.Error("signatures do not decide about custom resources")
	}
}

// Digests, defaults, audits and conditions on the object count as for pods.
func TestRulesOfCustomResources(t *testing.T) {
	const object = "metadata: {labels: {team: a}}\nspec: {steps: [{image: r.test/a:1}, {image: other.test/b}]}"
	for _, tc := range [][2]string{
		{"digestVerify: true", "Deny DIGEST_REQUIRED p"},
		{"default: deny", "Deny SIGNATURE_MISSING p, Admit p"},
		{"default: allow", "Admit SIGNATURE_MISSING p, Admit p"},
		{"digestVerify: true, failureAction: Audit", "Deny DIGEST_REQUIRED p audit"},
		{denyTeam("a"), "Deny CONDITION_NOT_MET p"},
		{denyTeam("b"), "Admit p"},
	} {
		fields, want := tc[0], tc[1]
		w := newWorld(t, customPolicy("p", "Task", stepPaths, fields))
		if got, _ := w.custom(t, taskKind, object, ""); describe(got) != want {
			t.Errorf("%s: %s; want %s", fields, describe(got), want)
		}
	}
	// Of two rules with other paths, each is for the images of its own; together they decide what no rule is for.
	w := newWorld(t, customPolicy("a", "Task", "{path: spec.steps}", "digestVerify: true, default: deny"),
		strings.Replace(customPolicy("b", "Task", "{path: spec.sidecars}", "default: deny"), "r.test/*", "b.test/*", 1))
	for object, want := range map[string]string{
		"spec: {steps: [{image: r.test/a:1}]}":                                  "Deny DIGEST_REQUIRED a",
		"spec: {sidecars: [{image: r.test/a:1}]}":                               "Deny SIGNATURE_MISSING b",
		"spec: {sidecars: [{image: b.test/a:1}]}":                               "Admit b",
		"spec: {steps: [{image: b.test/a:1}]}":                                  "Deny SIGNATURE_MISSING a",
		"spec: {steps: [{image: b.test/a:1}], sidecars: [{image: b.test/a:1}]}": "Admit b",
	} {
		if got, _ := w.custom(t, taskKind, object, ""); describe(got) != want {
			t.Errorf("%s: %s; want %s", object, describe(got), want)
		}
	}
}

func denyTeam(team string) string {
	return "validate: {deny: {conditions: {any: [{key: '{{ request.object.metadata.labels.team }}', operator: Equals, " +
		"value: " + team + "}]}}}"
}

// An update is judged by the images that it brings, and one that changes nothing that a path reads is not.
func TestUpdatesOfCustomResources(t *testing.T) {
	w := newWorld(t, customPolicy("p", "Task", stepPaths, "digestVerify: true"))
	deep := `{"a":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + "}"
	const bad, unchanged = "spec: {steps: [{name: s, image: r.test/bad:1}]}", "unchanged"
	for name, tc := range map[string]struct{ old, object, want string }{
		"metadata":          {"metadata: {finalizers: [x]}\n" + bad, bad, unchanged},
		"another field":     {"x: 1\n" + bad, "x: 2\n" + bad, unchanged},
		"a field beside":    {strings.Replace(bad, "{steps", "{a: b, steps", 1), bad, ""},
		"another image":     {strings.Replace(bad, "bad:1", "bad:2", 1), bad, "Deny DIGEST_REQUIRED p"},
		"the image moves":   {"spec: {sidecars: [{image: r.test/bad:1}]}", bad, ""},
		"no image before":   {"{}", bad, "Deny DIGEST_REQUIRED p"},
		"a number stays":    {"spec: {steps: [{image: 7}], x: 1}", "spec: {steps: [{image: 7}], x: 2}", ""},
		"another number":    {"spec: {steps: [{image: 7}]}", "spec: {steps: [{}, {image: 7}]}", "Deny FIELD_UNKNOWN p"},
		"cannot be decoded": {`{"`, bad, "Deny DIGEST_REQUIRED p"},
		"both cannot":       {`{"`, `{"spec`, "Deny FIELD_UNKNOWN p"},
		"the other is deep": {deep, bad, "Deny DIGEST_REQUIRED p"},
	} {
		findings, c := w.custom(t, taskKind, tc.object, tc.old)
		got := describe(findings)
		if c.Unchanged {
			got = unchanged
		}
		if got != tc.want {
			t.Errorf("%s: %s; want %s", name, got, tc.want)
		}
	}
	// What cannot be evaluated may hide an image, also if it could not be before.
	w = newWorld(t, customPolicy("p", "Task", "{path: 'max(spec.steps)'}", "digestVerify: true"))
	if got, _ := w.custom(t, taskKind, "spec: {steps: [{}], a: 1}", "spec: {steps: [{}], a: 2}"); !strings.Contains(
		messages(got), "rule r of policy p is not met: path max(spec.steps): ") {
		t.Errorf("a path that fails: %s", messages(got))
	}
	numbers := "spec: {steps: [" + strings.Repeat("{image: 7}, ", 20) + "{}]"
	w = newWorld(t, customPolicy("p", "Task", stepPaths, "digestVerify: true"))
	if got, _ := w.custom(t, taskKind, numbers+", a: 1}", numbers+", a: 2}"); len(got) == 0 {
		t.Error("more numbers than can be compared are admitted")
	}
	// A path that can read everything leaves no update unjudged.
	const paths = "{path: '{{ @.spec.steps }}'}, {path: '{{ \"a.b\" }}'}"
	w = newWorld(t, customPolicy("p", "Task", paths, "digestVerify: true"))
	for old, object := range map[string]string{
		"{}": bad, "a.b: [{image: r.test/c@" + someDigest + "}]": "a.b: [{image: r.test/c:1}]",
	} {
		if got, c := w.custom(t, taskKind, object, old); describe(got) != "Deny DIGEST_REQUIRED p" || c.Unchanged {
			t.Errorf("%s, then %s: %s, unchanged %v", old, object, describe(got), c.Unchanged)
		}
	}
}

// Whatever an object has where images should be is denied, without the value, and in bounded time.
func TestHostileCustomResources(t *testing.T) {
	many := func(n int, element string) string {
		var all []string
		for i := range n {
			all = append(all, strings.ReplaceAll(element, "%", fmt.Sprint(i)))
		}
		return strings.Join(all, ",")
	}
	deep := strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64)
	w := newWorld(t, customPolicy("p", "Task", "{path: spec.steps}, {path: 'spec.lists[]'}", "digestVerify: true"))
	const denied = "rule r of policy p is not met: "
	const field = denied + `element "0" of path spec.steps has the field image, which must be a text`
	const element = denied + `element "0" of path spec.steps must be an object`
	const byTag = `image "r.test/a:1": rule r of policy p requires`
	const tooMany = denied + "the object has 10000 images; must have at most 1000"
	const tooDeep, invalid = denied + "the object is nested more than 64 deep", denied + "the object cannot be decoded"
	steps := func(list string) string { return `{"spec":{"steps":` + list + "}}" }
	for _, tc := range [][2]string{
		{steps(`[{"name":"a","image":7}]`), denied + `element "a" of path spec.steps has the field image`},
		{steps(`[{"image":{"name":"canary"}}]`), field},
		{steps(`[{"image":["r.test/a:1"]}]`), field},
		{steps(`[{"image":true}]`), field},
		{steps(`[{"name":7,"image":1}]`), field},
		{steps(`[{"name":"\u001b[31m\u202e","image":1}]`), denied + `element "`},
		{steps(`[7]`), element},
		{steps(`[[{"image":"r.test/a:1"}]]`), element},
		{steps(`7`), denied + "path spec.steps finds neither a list nor an object nor a text"},
		{steps(`"r.test/a:1"`), byTag},
		{steps(`["r.test/a:1"]`), byTag},
		{steps(`{"a":{"image":"r.test/a:1"}}`), byTag},
		{steps(`{"image":"r.test/a:1"}`), byTag},
		{steps(`{"image":{"image":"r.test/a:1"}}`), byTag},
		{steps(`[{"image":"r.test/b:1","image":"r.test/a:1"}]`), byTag},
		{steps(`[{"image":"$(params.image)"}]`), "is an image ID or not a valid name"},
		{steps(`[{"image":"` + strings.Repeat("a", 1<<20) + `"}]`), "image"},
		{steps("[" + many(10_000, `{"image":"r.test/a:%"}`) + "]"), tooMany},
		{steps("[" + many(10_000, `{"image":"other.test/a:%"}`) + "]"), tooMany},
		{steps("[" + many(30_000, `{"image":%}`) + "]"), denied},
		{`{"spec":{"lists":[` + many(10_000, `[{"image":%},null]`) + "]}}", denied},
		{`{"spec":{"x":` + deep + `,"steps":[{"image":"r.test/a:1"}]}}`, tooDeep},
		{`{"spec":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}", tooDeep},
		{`{"spec`, invalid},
		{`{"":`, invalid},
	} {
		object, want := tc[0], tc[1]
		began := time.Now()
		findings, c := w.custom(t, taskKind, object, "")
		got, short := messages(findings), object[:min(len(object), 80)]
		if c == nil || !strings.Contains(got, want) || strings.Contains(got, "canary") || got == "" {
			t.Errorf("%s: %.300q; want %q", short, got, want)
		}
		if strings.ContainsAny(got, "\x1b\u202e") || len(got) > 16<<10 {
			t.Errorf("%s: %d bytes, %.300q", short, len(got), got)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s took %v", short, took)
		}
	}
	// Many elements that are the same image are one.
	same := steps("[" + many(10_000, `{"image":"r.test/a@`+someDigest+`"}`) + "]")
	if got, _ := w.custom(t, taskKind, same, ""); describe(got) != "Admit p" {
		t.Errorf("one image in 10,000 places: %s", describe(got))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, old := range []string{"", `{"spec":{}}`} {
		o := verify.CustomObject{Kind: taskKind, JSON: []byte(`{"spec":{"steps":[]}}`), Old: []byte(old)}
		got := messages(w.JudgeCustom(ctx, w.rules, o).Findings)
		if !strings.Contains(got, "path spec.steps was not evaluated") {
			t.Errorf("cancelled, before %s: %q; want a denial", old, got)
		}
	}
}

// A path that cannot be compiled is an error of the file, with its place; a rule for pods too says it once.
func TestPathsThatAreErrors(t *testing.T) {
	for path, want := range map[string]string{
		"'{{ spec.steps[ }}'":    "is not an expression: ",
		"'{{ a }}{{ b }}'":       "must be one expression, as in {{ spec.steps[*] }}",
		"'{{ a'":                 "{{ has no }}",
		"'{{ sort(a) }}'":        "there is no function sort",
		"'{{ [a, b] }}'":         "only fields, indexes, lists",
		"'{{ time_now_utc() }}'": "must not read the clock",
		"/spec/steps/*":          "is not an expression: ",
		"'{{ " + strings.Repeat("a.", 600) + "a }}'": "must have at most 1024",
	} {
		err := examine(t, customPolicy("p", "Pod, Task", "{path: "+path+"}", ""))
		if err == nil || strings.Count(err.Error(), "spec.rules[0].imagePaths[0].path: Invalid value: ") != 1 ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want once %s", path, err, want)
		}
	}
	// A condition of a rule for pods and for custom resources is compiled for both.
	invalid := strings.Replace(denyTeam("a"), "request.object.metadata", "sort(request.object)", 1)
	err := examine(t, customPolicy("p", "Pod, Task", "{path: a}", invalid))
	if err == nil || strings.Count(err.Error(), "there is no function sort") != 1 {
		t.Errorf("a condition: %v; want the error once", err)
	}
}

func examine(t *testing.T, policy string) error {
	t.Helper()
	c := config.DefaultPolicyd()
	c.Policies = t.TempDir()
	testkit.Must(t, os.WriteFile(c.Policies+"/p.yaml", []byte(policy), 0o600))
	_, err := verify.Examine(c, testkit.Value(policyfiles.Read(policyfiles.Paths{Folder: c.Policies}))(t), time.Now())
	return err
}

// What the proposal writes for Tekton, corrected, is enforced.
// Shows: 002-44
func TestProposalForTekton(t *testing.T) {
	text := testkit.Value(os.ReadFile("../../policyfiles/testdata/kyverno/proposal-tekton-corrected.yaml"))(t)
	w := newWorld(t, string(text))
	w.verify = onlySigned
	kind := requirement.Kind{Group: "tekton.io", Version: "v1", Kind: "Task"}
	for image, want := range map[string]string{
		"registry.company.com/signed@" + someDigest: "Admit verify-task-images",
		"registry.company.com/signed:1":             "Deny DIGEST_REQUIRED verify-task-images",
		"other.test/signed@" + someDigest:           "Deny SIGNATURE_MISSING verify-task-images",
	} {
		if got, _ := w.custom(t, kind, `{"spec":{"tasks":[{"image":"`+image+`"}]}}`, ""); describe(got) != want {
			t.Errorf("%s: %s; want %s", image, describe(got), want)
		}
	}
}

// A rule that is also for pods adds the digest to those of a Task. A rule for Tasks alone adds none.
func TestDigestsOfCustomResources(t *testing.T) {
	for _, tc := range []struct{ kinds, namespace, want string }{
		{"Pod, tekton.dev/v1/Task", "team", ""},
		{"Pod, tekton.dev/v1/Task", "", "DIGEST_REQUIRED"}, // its pods can be in any namespace
		{"tekton.dev/v1/Task", "team", "DIGEST_REQUIRED"},
	} {
		w := newWorld(t, customPolicy("p", tc.kinds, stepPaths, "verifyDigest: true, mutateDigest: true"))
		c := w.JudgeCustom(t.Context(), w.rules, verify.CustomObject{
			Kind: taskKind, Namespace: tc.namespace, Operation: "CREATE",
			JSON: []byte(`{"spec":{"steps":[{"name":"a","image":"r.test/a:1"}]}}`),
		})
		got := ""
		for _, f := range append(c.Findings, c.Judge(t.Context())...) {
			got += string(f.Reason)
		}
		if got != tc.want {
			t.Errorf("%s in namespace %q: %q; want %q", tc.kinds, tc.namespace, got, tc.want)
		}
	}
	w := newWorld(t, customPolicy("p", "Pod, tekton.dev/v1/Task", stepPaths, "mutateDigest: true"))
	if c := w.JudgeCustom(t.Context(), w.rules, verify.CustomObject{
		Kind: taskKind, Namespace: "team", Operation: "CREATE", JSON: []byte(`{"spec":{"steps":1}}`),
	}); c != nil {
		t.Errorf("a rule that only adds digests judges a Task: %v", c.Findings)
	}
}
