package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2/ktesting"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
)

// patching returns a policy with a patch for images of r.test whose configuration was verified, as fields of mutate.
func patching(name, failurePolicy, mutate string) string {
	return fmt.Sprintf(`apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: %s}
spec:
  failurePolicy: %s
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ["r.test/*"]
      mutateDigest: true
      validate: {deny: {conditions: {any: [{key: "{{ image.config.bad || 'no' }}", operator: Equals, value: "yes"}]}}}
      mutate: {%s}
`, name, failurePolicy, mutate)
}

func merging(patch string) string { return "patchStrategicMerge: " + patch }

func operating(patch string) string {
	return "patchesJson6902: " + string(testkit.Value(json.Marshal(patch))(&testing.T{}))
}

func newPatcher(tb testing.TB, configuration map[string]any, policies ...string) *world {
	tb.Helper()
	return newWorld(tb, patcherOptions(tb, configuration, policies...))
}

// patcherOptions are those of a webhook with policies. All images have a configuration, which is attested too. It
// cannot resolve gone:1.
func patcherOptions(tb testing.TB, configuration map[string]any, policies ...string) webhook.Options {
	tb.Helper()
	dir := tb.TempDir()
	for i, text := range policies {
		testkit.Must(tb, os.WriteFile(filepath.Join(dir, fmt.Sprint(i, ".yaml")), []byte(text), 0o600))
	}
	set := testkit.Value(policyfiles.Read(policyfiles.Paths{Folder: dir, AnyOwner: true}))(tb)
	s := testkit.Value(verify.NewService(verify.ServiceOptions{
		Config: config.DefaultPolicyd(), Verified: func(string) {}, Log: ktesting.NewLogger(tb, ktesting.NewConfig()),
		Resolve: func(repository, reference string) (string, error) {
			if digest, is := strings.CutPrefix(reference, "sha256:"); is {
				return "sha256:" + digest, nil
			}
			if strings.HasSuffix(repository, "/gone") {
				return "", errors.New("it is gone")
			}
			return digestOf(reference), nil
		},
		Verify: func(_ context.Context, i verify.Image, want []*requirement.Rule, _ admission.Login, _ bool) (
			report requirement.Report, err error,
		) {
			for _, w := range want {
				r := requirement.Result{Requirement: w.Hash, Met: configuration["bad"] != "yes"}
				if r.Met && i.Patch != nil {
					values, invalid := i.Patch.ImageValues(map[string]any{
						"image":        map[string]any{"config": configuration, "digest": "d"},
						"attestations": []any{map[string]any{"predicate": configuration}},
					})
					if r.Values = values; invalid != nil {
						r.Reason, r.Message = requirement.SignatureInvalid, invalid.Error()
					}
				} else if !r.Met {
					r.Reason = requirement.ConditionNotMet
				}
				report.Results = append(report.Results, r)
			}
			return report, nil
		},
	}))(tb)
	tb.Cleanup(s.Close)
	rules := testkit.Value(s.Compile(set))(tb)
	return webhook.Options{
		Digests: func(ctx context.Context, namespace string, images []verify.Tagged) (
			[]string, []admission.Finding, []string,
		) {
			return s.Digests(ctx, rules, namespace, images)
		},
		Changes: func(ctx context.Context, namespace string, elements []verify.Element) ([]*verify.Change, verify.Refusals) {
			return s.Changes(ctx, rules, namespace, elements)
		},
	}
}

const twoContainers = `{containers: [{name: c, image: "r.test/a:1", env: [{name: A, value: b}]},
  {name: d, image: "free.test/a:1"}], initContainers: [{name: i, image: "r.test/b:1"}],
  terminationGracePeriodSeconds: 9007199254740993, fieldOfTomorrow: {a: 1}}`

const everyKind = `{metadata: {labels: {team: "{{ image.config.team }}"}, annotations: {
  images.example.com/one: "{{ image.config.team }} of {{ image.digest }}"}}, spec: {
  containers: [{name: "{{ element.name }}", env: [{name: TEAM, value: "{{ image.config.team }}"}]}],
  initContainers: [{name: i, env: [{name: IMAGE, value: "{{ element.image }}"}]}]}}`

// Shows: 002-R3, 002-R7, 004-15
func TestPodsArePatched(t *testing.T) {
	w := newPatcher(t, map[string]any{"team": "blue"}, patching("a", "Fail", merging(everyKind)), patching("b", "Fail",
		operating(`[{op: add, path: /metadata/labels/priority, value: "{{ image.config.team }}"},
			{op: add, path: /spec/securityContext/runAsNonRoot, value: true},
			{op: replace, path: /spec/containers/0/name, value: c}, {op: remove, path: /spec/nodeName}]`)))
	q := pod(twoContainers, "other: b", digestsKey+`: '{"containers/c":{"image":"r.test/a:1","digest":"forged"}}'`)
	q.dryRun = true
	first, _, r := w.mutated(t, q)
	want := fmt.Sprintf(`{containers: [{name: c, image: "r.test/a:1@%[1]s", env: [{name: TEAM, value: blue},
  {name: A, value: b}]}, {name: d, image: "free.test/a:1"}], initContainers: [{name: i, image: "r.test/b:1@%[1]s",
  env: [{name: IMAGE, value: "r.test/a:1@%[1]s"}]}], terminationGracePeriodSeconds: 9007199254740993,
  fieldOfTomorrow: {a: 1}, securityContext: {runAsNonRoot: true}}`, digestOf("1"))
	note := fmt.Sprintf(`{"containers/c":{"image":"r.test/a:1","digest":%[1]q},`+
		`"initContainers/i":{"image":"r.test/b:1","digest":%[1]q}}`, digestOf("1"))
	var spec, metadata any
	testkit.Must(t, yaml.Unmarshal([]byte(want), &spec), yaml.Unmarshal(fmt.Appendf(nil, `{name: app, labels: {team: blue,
  priority: blue}, annotations: {other: b, images.example.com/one: blue of d, %s: %q}}`, digestsKey, note), &metadata))
	if diff := cmp.Diff(map[string]any{"spec": spec, "metadata": metadata},
		map[string]any{"spec": first["spec"], "metadata": first["metadata"]}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.Contains(string(r.Patch), "9007199254740993") {
		t.Errorf("patch %s; want the number as it was", r.Patch)
	}
	const by = "rule r of policy a; rule r of policy b"
	if e := w.last(); r.AuditAnnotations["patched-by"] != by || r.AuditAnnotations["image-digests"] != note ||
		e.Patched != by || e.Outcome != webhook.Changed || len(r.Warnings) > 0 {
		t.Errorf("audit annotations %v, warnings %q, event %+v", r.AuditAnnotations, r.Warnings, e)
	}
	// A second pass changes nothing. An update is not patched, nor a pod without digests.
	stored := object(t, first)
	again := request{resource: "pods", kind: "Pod", object: stored}
	if _, operations, r := w.mutated(t, again); len(operations) > 0 || r.AuditAnnotations != nil || !r.Allowed {
		t.Errorf("a second pass: %q, %v", operations, r.AuditAnnotations)
	}
	again.object, again.old = strings.Replace(stored, `"team":"blue"`, `"team":"red"`, 1), stored
	if _, operations, r := w.mutated(t, again); len(operations) > 0 || !r.Allowed {
		t.Errorf("an update: %q", operations)
	}
	for resource, q := range wrap(twoContainers) {
		if _, operations, _ := w.mutated(t, q); resource != "pods" && len(operations) > 0 {
			t.Errorf("%s: %q", resource, operations)
		}
	}
	if _, operations, r := w.mutated(t, pod(`{containers: [{name: d, image: "free.test/a:1"}]}`)); len(operations) > 0 {
		t.Errorf("an image of no rule: %q, %v", operations, r)
	}
	w = newPatcher(t, map[string]any{"team": "blue"}, patching("a", "Ignore", merging(everyKind)))
	if _, operations, r := w.mutated(t, pod(`{containers: [{name: d, image: "r.test/gone:1"}]}`)); len(operations) > 0 ||
		len(r.Warnings) != 1 || !strings.HasSuffix(r.Warnings[0], "the image keeps its tag") {
		t.Errorf("an image without a digest: %q, %q", operations, r.Warnings)
	}
	// What does not meet the rule is denied, or left to the validating webhook.
	w = newPatcher(t, map[string]any{"bad": "yes"}, patching("a", "Fail", merging(everyKind)))
	if _, _, r := w.mutated(t, pod(twoContainers)); r.Allowed || !strings.Contains(message(r), "policy a is not met") {
		t.Errorf("an image that does not meet the rule: %q", message(r))
	}
	w = newPatcher(t, map[string]any{"bad": "yes"}, patching("a", "Ignore", merging(everyKind)))
	if got, _, r := w.mutated(t, pod(twoContainers)); !r.Allowed || len(r.Warnings) > 0 ||
		strings.Contains(object(t, got), "TEAM") || r.AuditAnnotations["patched-by"] != "" {
		t.Errorf("an image that does not meet the rule: %v", got)
	}
	// The API server writes quantities in another way.
	w = newPatcher(t, nil, patching("a", "Fail", merging(
		`{spec: {containers: [{name: "{{ element.name }}", resources: {limits: {cpu: 1000m}}}]}}`)))
	named := `{containers: [{name: c, image: "r.test/a:1@` + digestOf("1") + `", resources: {limits: {cpu: "1"}}}]}`
	if _, operations, r := w.mutated(t, pod(named)); len(operations) > 0 || r.AuditAnnotations != nil || !r.Allowed {
		t.Errorf("the same quantity: %q, %v", operations, r.AuditAnnotations)
	}
	// A strategic merge puts its volumes first.
	w = newPatcher(t, nil, patching("a", "Fail", merging(`{spec: {volumes: [{name: first, emptyDir: {}}]}}`)))
	got, _, r := w.mutated(t, pod(`{containers: [{name: c, image: "r.test/a:1"}],
		volumes: [{name: v, image: {reference: "free.test/v:1"}}]}`))
	if !r.Allowed || !strings.Contains(object(t, got), `"volumes":[{"emptyDir":{},"name":"first"},{"image"`) {
		t.Errorf("a pod with an image volume: %q, %s", message(r), object(t, got))
	}
}

// What a patch must not do is not done: with the failure policy Fail the pod is denied, and otherwise it gets digests
// alone.
func TestPatchesThatAreNotApplied(t *testing.T) {
	const images = "the result has other images, containers or image volumes"
	const again = "rule r of policy a would change it again, by itself or because another patch undoes it"
	container := func(fields string) string { return merging("{spec: {containers: [{" + fields + "}]}}") }
	label := func(value string) string { return merging(`{metadata: {labels: {app: "` + value + `"}}}`) }
	add := func(path, value string) string {
		return operating("[{op: add, path: " + path + ", value: " + value + "}]")
	}
	values := map[string]any{
		"image": "evil.test/x:1", "object": map[string]any{"$patch": "replace"}, "large": strings.Repeat("x", 1<<20),
		"number": 7.0,
	}
	for _, tc := range []struct{ name, mutate, want string }{
		{"another image", container(`name: c, image: "{{ image.config.image }}"`), images},
		{"of another container", container(`name: d, image: "{{ image.config.image }}"`), images},
		{"another container", container(`name: another, tty: true`), images},
		{"sidecar", merging(`{spec: {initContainers: [{name: s, image: "s:1"}]}}`), images},
		{"no containers", merging("{spec: {containers: null}}"), images},
		{"volume", merging(`{spec: {volumes: [{name: v, image: {reference: "v:1"}}]}}`), images},
		{"image by operations", operating(`[{op: replace, path: /spec/containers/0/image, value: "e:1"}]`), images},
		{"name by operations", operating(`[{op: replace, path: /spec/containers/0/name, value: "e"}]`), images},
		{"no annotations", merging("{metadata: {annotations: null}}"), "another annotation with a meaning for pullgate"},
		{"object", label("{{ image.config.object }}"), "{{ image.config.object }} is not a text, number or boolean"},
		{"large", label("{{ image.config.large }}"), "{{ image.config.large }} has more than 4096 bytes"},
		{"absent", label("{{ image.config.absent }}"), "{{ image.config.absent }} has no value"},
		{"absent in the pod", label("{{ request.object.kinds }}"), "{{ request.object.kinds }} has no value"},
		{"number for a text", label("{{ image.config.number }}"), "the result is not a Pod: json: cannot unmarshal number"},
		{"unknown field", add("/spec/containers/0/enf", "[]"), `is not a Pod: unknown field "spec.containers[0].enf"`},
		{"nothing to replace", operating("[{op: replace, path: /spec/nodeName, value: a}]"), "missing key: /spec/nodeName"},
		{"no position", operating("[{op: replace, path: /spec/containers/9/tty, value: true}]"), "path: /spec/containers/9"},
		{"no object", add("/spec/containers/0/name/x", "a"), "the operations cannot be applied: "},
		{"grows", label("{{ request.object.metadata.labels.app }}x"), again},
		{"grows by operations", add("/metadata/labels/app", `"{{ request.object.metadata.labels.app }}x"`), again},
		{"another for each image", label("{{ element.name }}"), again},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := pod(`{containers: [{name: c, image: "r.test/a:1"},
				{name: d, image: "r.test/b:1", env: [{name: S, value: secret}]}]}`)
			q.object = strings.Replace(q.object, "name: app,", "name: app, labels: {app: a},", 1)
			w := newPatcher(t, values, patching("a", "Fail", tc.mutate))
			_, _, denied := w.mutated(t, q)
			if text := message(denied); denied.Allowed || !strings.Contains(text, tc.want) || strings.Contains(text, "secret") ||
				!strings.HasPrefix(text, `403 pullgate: pod team/app: image "r.test/`) || w.last().Outcome != webhook.Denied ||
				denied.AuditAnnotations != nil || w.last().Digests != "" {
				t.Errorf("%q, %v; want %s", text, denied.AuditAnnotations, tc.want)
			}
			w = newPatcher(t, values, patching("a", "Ignore", tc.mutate))
			got, operations, ignored := w.mutated(t, q)
			if len(operations) != 3 || !ignored.Allowed || !strings.Contains(strings.Join(ignored.Warnings, ""), tc.want) ||
				ignored.AuditAnnotations["patched-by"] != "" || !strings.Contains(object(t, got), "r.test/a:1@sha256") {
				t.Errorf("%q, warnings %q; want digests alone, and %s", operations, ignored.Warnings, tc.want)
			}
		})
	}
}

// A pod that takes long to patch, or in which another element than that of a patch counts, is not patched.
func TestPodsThatAreNotPatched(t *testing.T) {
	elements := strings.Repeat("{}, ", 256)
	const c = `{containers: [{name: c, image: "r.test/a:1"`
	for spec, want := range map[string]string{
		c + `}], tolerations: [` + elements + `]}`:               "",
		c + `}], tolerations: [` + elements + ` {}]}`:            "more than 256 elements",
		c + `}, {name: c, image: "free.test/a:1"}]}`:             `"c" is there twice`,
		c + `}], initContainers: [{name: c}]}`:                   `"c" is there twice`,
		c + `, env: [{name: A}, {name: A, value: b}]}]}`:         `"c/env/A" is there twice`,
		c + `, env: [{name: A}]}, {name: d, env: [{name: A}]}]}`: "",
	} {
		_, _, r := newPatcher(t, nil, patching("a", "Fail", merging("{metadata: {labels: {a: b}}}"))).mutated(t, pod(spec))
		if text := message(r); r.Allowed != (want == "") || !strings.Contains(text, want) {
			t.Errorf("%.200s: %q; want %q", spec, text, want)
		}
	}
}

// What takes longer than the caller waits ends.
func TestPatchesEndInTime(t *testing.T) {
	o := patcherOptions(t, nil, patching("a", "Fail", merging("{metadata: {labels: {a: b}}}")))
	changes := o.Changes
	o.Changes = func(ctx context.Context, namespace string, elements []verify.Element) (
		[]*verify.Change, verify.Refusals,
	) {
		all, refused := changes(ctx, namespace, elements)
		<-ctx.Done()
		return all, refused
	}
	body := string(pod(`{containers: [{name: c, image: "r.test/a:1"}]}`).body(t))
	if answer := send(t, newWorld(t, o), webhook.MutatePath, body); !strings.Contains(answer, "not changed in time") {
		t.Error(answer)
	}
}

// An error of the library for strategic merges would quote the pod.
func TestErrorsOfPatchesDoNotQuoteThePod(t *testing.T) {
	const patch = `{spec: {containers: [{name: c, env: [{name: A, value: b}]}]}}`
	w := newPatcher(t, nil, patching("a", "Fail", merging(patch)))
	_, _, r := w.mutated(t, pod(`{containers: [{name: c, image: "r.test/a:1", env: [{value: secret}]}]}`))
	if text := message(r); !strings.HasSuffix(text, "the strategic merge cannot be applied to the pod") {
		t.Errorf("%q", text)
	}
}

// Values that look like a part of a patch are texts in the pod.
func TestHostileValuesAreTexts(t *testing.T) {
	for _, value := range []string{
		"$patch", "$patch: replace", "a\n$patch: delete\nname: b", `"}, "spec": {"hostNetwork": true}, "x": {"y": "`,
		"{{ image.digest }}", "~1spec", "null", "- a", "\x00\u202e",
	} {
		for _, mutate := range []string{
			merging(`{metadata: {annotations: {v: "{{ image.config.v }}"}}}`),
			operating(`[{op: add, path: /metadata/annotations/v, value: "{{ image.config.v }}"}]`),
		} {
			w := newPatcher(t, map[string]any{"v": value}, patching("a", "Fail", mutate))
			got, _, r := w.mutated(t, pod(`{containers: [{name: c, image: "r.test/a:1"}]}`))
			metadata, _ := got["metadata"].(map[string]any)
			annotations, _ := metadata["annotations"].(map[string]any)
			spec, _ := got["spec"].(map[string]any)
			if !r.Allowed || annotations["v"] != value || len(annotations) != 2 || len(spec) != 1 || len(metadata) != 2 {
				t.Errorf("%q: %q, %v", value, message(r), got)
			}
		}
	}
}

// Rules that contradict each other change nothing, whatever their order is.
func TestConflictingPatches(t *testing.T) {
	label := func(value string) string { return merging("{metadata: {labels: {l: " + value + "}}}") }
	for _, policies := range [][2]string{{"Fail", "Ignore"}, {"Ignore", "Fail"}, {"Ignore", "Ignore"}} {
		w := newPatcher(t, nil, patching("a", policies[0], label("blue")), patching("b", policies[1], label("red")))
		_, operations, r := w.mutated(t, pod(`{containers: [{name: c, image: "r.test/a:1"}]}`))
		denies := policies[0] != policies[1]
		if r.Allowed == denies || !denies && (len(r.Warnings) != 2 || len(operations) != 2) {
			t.Errorf("%q: %q, %q, %q", policies, message(r), operations, r.Warnings)
		}
	}
	w := newPatcher(t, nil, patching("a", "Fail", label("blue")), patching("b", "Fail", label("blue")))
	if _, _, r := w.mutated(t, pod(`{containers: [{name: c, image: "r.test/a:1"}]}`)); !r.Allowed {
		t.Errorf("rules that agree: %q", message(r))
	}
}

// A large pod is not patched, and a patch does not make one.
func TestPatchedPodsAreBounded(t *testing.T) {
	const tooLarge = "the pod has more than 131072 bytes"
	padded := func(n int) request {
		return pod(`{containers: [{name: c, image: "r.test/a:1"}]}`, "padding: "+strings.Repeat("x", n))
	}
	add := merging("{metadata: {annotations: {a: " + strings.Repeat("x", 60<<10) + "}}}")
	for n, fails := range map[int]bool{1: false, 80 << 10: true, 200 << 10: true} {
		_, _, r := newPatcher(t, nil, patching("a", "Fail", add)).mutated(t, padded(n))
		if r.Allowed == fails || fails && !strings.Contains(message(r), tooLarge) {
			t.Errorf("%d bytes: %q", n, message(r))
		}
		got, operations, r := newPatcher(t, nil, patching("a", "Ignore", add)).mutated(t, padded(n))
		if !r.Allowed || fails != (len(r.Warnings) == 1) || fails && len(operations) != 2 {
			t.Errorf("%d bytes: %q, %q, %d", n, operations, r.Warnings, len(got))
		}
	}
}

// The example of the manual tells each container when its image was scanned.
func TestExampleOfAPatch(t *testing.T) {
	policy := string(testkit.Value(os.ReadFile("../../../../docs/examples/mutate/policies/scan-time.yaml"))(t))
	policy = strings.Replace(policy, "namespaces: [team-a]", "namespaces: [team]", 1)
	w := newPatcher(t, map[string]any{"timestamp": "2026-05-06T02:00:00Z"}, policy)
	got, _, r := w.mutated(t, pod(`{containers: [{name: a, image: "registry.example/team-a/app:1"},
		{name: b, image: "registry.example/team-a/other:1"}, {name: c, image: "other.example/app:1"}],
		initContainers: [{name: i, image: "registry.example/team-a/app:1"}]}`))
	const env = `"env":[{"name":"IMAGE_SCANNED_AT","value":"2026-05-06T02:00:00Z"}],"image":"registry.example/team-a/`
	text := object(t, got)
	if !r.Allowed || len(r.Warnings) > 0 || strings.Count(text, env) != 2 ||
		strings.Count(text, "IMAGE_SCANNED_AT") != 2 || !strings.Contains(text, `"labels":{"scanned":"true"}`) {
		t.Errorf("%q, %q, %s", message(r), r.Warnings, text)
	}
}

// Large pods are changed one at a time, and not while a large object is judged.
func TestLargePatchesWait(t *testing.T) {
	labels := waiting{make(chan struct{}), make(chan struct{})}
	o := patcherOptions(t, nil, patching("a", "Fail", merging("{metadata: {labels: {a: b}}}")))
	o.Chain, o.Labels = chain(t, noHostNetwork), labels.Labels
	w := newWorld(t, o)
	large := strings.Replace(string(pod("{containers: [{name: c, image: a}]}").body(t)),
		`"object":{`, `"object":{"x":"`+strings.Repeat("x", 300<<10)+`",`, 1)
	judged := make(chan string)
	go func() { judged <- send(t, w, webhook.ValidatePath, large) }()
	<-labels.entered
	spec := `{containers: [{name: c, image: "r.test/a:1"}, {name: d, image: "r.test/a:1"},
		{name: e, image: "r.test/a:1"}]}`
	for padding, want := range map[int]string{0: `"allowed":true`, 100 << 10: "it is large, and was not changed in time"} {
		body := pod(spec, "padding: "+strings.Repeat("x", padding)).body(t)
		if answer := send(t, w, webhook.MutatePath, string(body)); !strings.Contains(answer, want) {
			t.Errorf("%d bytes: %s; want %s", padding, answer, want)
		}
	}
	close(labels.release)
	<-judged
	if _, _, r := w.mutated(t, pod(spec, "padding: "+strings.Repeat("x", 100<<10))); !r.Allowed {
		t.Errorf("alone: %q", message(r))
	}
}

// A pod with many values has its turn again when it is changed: it is small, and its values are large.
func TestPatchesOfManyValuesWait(t *testing.T) {
	labels := waiting{make(chan struct{}), make(chan struct{})}
	o := patcherOptions(t, nil, patching("a", "Fail", merging("{metadata: {labels: {a: b}}}")))
	o.Chain, o.Labels = chain(t, noHostNetwork), labels.Labels
	changes, judged := o.Changes, make(chan string)
	var w *world
	large := strings.Replace(string(pod("{containers: [{name: c, image: a}]}").body(t)),
		`"object":{`, `"object":{"x":"`+strings.Repeat("x", 300<<10)+`",`, 1)
	o.Changes = func(ctx context.Context, namespace string, elements []verify.Element) (
		[]*verify.Change, verify.Refusals,
	) {
		go func() { judged <- send(t, w, webhook.ValidatePath, large) }()
		<-labels.entered
		return changes(ctx, namespace, elements)
	}
	w = newWorld(t, o)
	keys := ""
	for i := range 4000 {
		keys += fmt.Sprintf("k%d: a, ", i)
	}
	body := pod(`{containers: [{name: c, image: "r.test/a:1"}], nodeSelector: {` + keys + "}}").body(t)
	if answer := send(t, w, webhook.MutatePath, string(body)); !strings.Contains(answer, "was not changed in time") {
		t.Error(answer)
	}
	close(labels.release)
	<-judged
}
