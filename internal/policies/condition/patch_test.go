package condition_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
)

// mutation returns the mutation of a patch in YAML: a list of operations, or a strategic merge.
func mutation(tb testing.TB, text string) *requirement.Mutation {
	tb.Helper()
	m := &requirement.Mutation{
		At: "mutate", ImageReads: []string{"image.digest", "image.config", "attestations"},
		PodReads: []string{"request.object", "element.name"},
	}
	if strings.HasPrefix(text, "[") {
		testkit.Must(tb, yaml.Unmarshal([]byte(text), &m.Operations))
	} else {
		testkit.Must(tb, yaml.Unmarshal([]byte(text), &m.Merge))
	}
	return m
}

func TestPatchesThatAreRefused(t *testing.T) {
	label := func(value string) string { return "{metadata: {labels: {a: " + value + "}}}" }
	operation := func(op string) string { return "[{op: " + op + "}]" }
	const noPart, anywhere = "must be a part of a Pod", "must be a place in /spec"
	const tooMany = "must not add or remove a position"
	many := ""
	for i := range 51 {
		many += fmt.Sprintf("l%d: '{{ image.digest }}%d', ", i, i)
	}
	for _, tc := range [][2]string{
		{"{spec: {$patch: replace}}", `mutate.patchStrategicMerge.spec: Invalid value: "$patch": directives, anchors`},
		{
			"{spec: {containers: [{name: a, $patch: delete}]}}",
			`patchStrategicMerge.spec.containers[0]: Invalid value: "$patch"`,
		},
		{"{spec: {$retainKeys: [a]}}", `"$retainKeys": directives`},
		{"{spec: {containers: [{(name): '*', tty: true}]}}", `"(name)": directives, anchors`},
		{"{metadata: {labels: {'+(a)': b}}}", `"+(a)": directives, anchors`},
		{"{metadata: {labels: {'{{ image.digest }}': a}}}", `"{{ image.digest }}": directives, anchors and expr`},
		{"{metadata: {name: a}}", `unknown field "metadata.name"`},
		{"{status: {phase: Running}}", `unknown field "status"`},
		{"{apiVersion: v1}", `unknown field "apiVersion"`},
		{
			"{metadata: {annotations: {policy.pullgate.dev/a: b}}}",
			`"policy.pullgate.dev/a": must not set this annotation`,
		},
		{"{metadata: {annotations: {kubernetes.io/config.mirror: null}}}", `must not set this annotation`},
		{"{spec: {imagePullPolicy: Never}}", `unknown field "spec.imagePullPolicy"`},
		{"{spec: {HostNetwork: true}}", `unknown field "spec.HostNetwork"`},
		{"{spec: {hostNetwork: 'yes'}}", noPart},
		{"{spec: []}", noPart},
		{"{metadata: a}", noPart},
		{label("'{{ image.digest'"), `.metadata.labels.a: Invalid value: "{{ image.digest": {{ has no }}`},
		{label("'{{ upper(image.digest) }}'"), "there is no function upper; use one of"},
		{label("'{{ image.labels }}'"), "there is no variable image.labels here; use one of image.digest"},
		{label("'{{ @ }}'"), "there is no variable @ here"},
		{label("'{{ image.digest }}{{ request.object.kind }}'"), "about the image and about the pod; write two fields"},
		{label("\"{{ time_since('', attestations[0].at, '') }}\""), "must not read the clock"},
		{label("\"{{ time_now_utc() }}\""), "must not read the clock"},
		{label(strings.Repeat("x", 65<<10)), "Too long: may not be more than 65536 bytes"},
		{"[]", "must have from 1 to 50 operations"},
		{"[" + strings.Repeat("{op: remove, path: /spec/a},", 51) + "]", "51: must have from 1 to 50 operations"},
		{operation("copy, path: /spec/a, value: b"), `[0].op: Unsupported value: "copy"`},
		{operation("test, path: /spec/a, value: b"), `Unsupported value: "test"`},
		{operation("add, path: /metadata/name, value: b"), anywhere},
		{operation("add, path: /spec, value: {}"), anywhere},
		{operation("add, path: '', value: {}"), anywhere},
		{operation("add, path: /status/a, value: b"), anywhere},
		{operation("add, path: /spec/a~2, value: b"), anywhere},
		{operation("add, path: /spec//a, value: b"), anywhere},
		{operation("add, path: /spec/a/, value: b"), anywhere},
		{operation("move, from: /spec/, path: /spec/a, value: b"), `[0].op: Unsupported value: "move"`},
		{operation("add, path: '/metadata/labels/{{ image.digest }}', value: b"), anywhere},
		{operation("add, path: /spec/containers/-, value: {name: a}"), anywhere},
		{operation("replace, path: /spec/containers/-1, value: {name: a}"), anywhere},
		{operation("add, path: /spec/containers/0, value: {name: a}"), tooMany},
		{operation("remove, path: /spec/volumes/1"), tooMany},
		{operation("add, path: /spec/nodeName"), "must not be absent or null otherwise"},
		{operation("remove, path: /spec/nodeName, value: a"), "must be absent for remove"},
		{
			operation("add, path: /metadata/annotations/policy.pullgate.dev~1a, value: b"),
			`"policy.pullgate.dev/a": must not set`,
		},
		{operation("add, path: /spec/nodeName, value: {$patch: a}"), `[0].value: Invalid value: "$patch"`},
		{
			"{spec: {containers: [{name: '{{ image.config.name }}', tty: true}]}}",
			`containers[0].name: Invalid value: "{{ image.config.name }}": must not be about the image`,
		},
		{
			operation("add, path: /spec/volumes, value: [{name: '{{ image.digest }}', emptyDir: {}}]"),
			`[0].value[0].name: Invalid value: "{{ image.digest }}": must not be about the image`,
		},
		{"{metadata: {labels: {" + many + "}}}", "mutate: Too many: 51: must have at most 50 items"},
	} {
		text, want := tc[0], tc[1]
		p, errs := condition.CompilePatch(mutation(t, text))
		if p != nil || errs == nil || !strings.Contains(errs.ToAggregate().Error(), want) {
			t.Errorf("%.200s: %v; want %s", text, errs, want)
		}
	}
	rule := requirement.Rule{File: "a.yaml", Mutation: mutation(t, "{status: {}}")}
	err := condition.Check([]requirement.Rule{rule})
	if err == nil || !strings.HasPrefix(err.Error(), "a.yaml: mutate.") {
		t.Errorf("Check: %v; want the file and the field", err)
	}
}

const imageDocument = `{"image": {"digest": "sha256:1", "config": {"n": 3, "on": true, "none": null}}, "attestations": [
  {"predicate": {"object": {"$patch": "replace"}, "directive": "$patch", "braces": "{{ image.digest }}", "list": ["a"],
   "lines": "a\n$patch: replace\n", "quote": "\", \"$patch\": \"replace", "expanded": "x$(SECRET)"}}]}`

const patchedPod = `{"element": {"name": "main"}, "request": {"object": {"spec": {"n": 2, "none": null}}}}`

// Values are values: none of them adds a field, an element or an expression.
func TestPatchesHaveValues(t *testing.T) {
	for text, want := range map[string]string{
		"image.digest":                        `"sha256:1"`,
		"image.config.n":                      `3`,
		"image.config.on":                     `true`,
		"attestations[0].predicate.directive": `"$patch"`,
		"attestations[0].predicate.braces":    `"{{ image.digest }}"`,
		"attestations[0].predicate.lines":     `"a\n$patch: replace\n"`,
		"attestations[0].predicate.quote":     `"\", \"$patch\": \"replace"`,
		"element.name":                        `"main"`,
		"request.object.spec.n":               `2`,
		"attestations[0].predicate.object":    "is not a text, number or boolean",
		"attestations[0].predicate.list":      "is not a text, number or boolean",
		"attestations[0].predicate.expanded":  "has $(, which a kubelet expands",
		"attestations[7].predicate":           "has no value",
		"image.config.none":                   "has no value",
		"request.object.spec.none":            "has no value",
		"attestations[0].predicate.large":     "has more than 4096 bytes",
	} {
		data := strings.Replace(imageDocument, `"lines"`, `"large": "`+strings.Repeat("x", 1<<20)+`", "lines"`, 1)
		for form, filled := range map[string]string{
			"{metadata: {labels: {a: '%s'}}}":         `[{"metadata":{"labels":{"a":%s}}},null]`,
			"[{op: add, path: /spec/a, value: '%s'}]": `[null,[{"op":"add","path":"/spec/a","value":%s}]]`,
		} {
			p, errs := condition.CompilePatch(mutation(t, fmt.Sprintf(form, "{{ "+text+" }}")))
			if errs != nil {
				t.Fatal(errs)
			}
			var got string
			values, err := p.ImageValues(document(t, data))
			if err == nil {
				var merge map[string]any
				var operations []requirement.PatchOperation
				merge, operations, err = p.Fill(values, document(t, patchedPod))
				got = string(testkit.Value(json.Marshal([]any{merge, operations}))(t))
			}
			switch {
			case err != nil:
				if !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
					t.Errorf("%s: %v; want %s", text, err, want)
				}
			case got != fmt.Sprintf(filled, want):
				t.Errorf("%s: %s; want %s", text, got, fmt.Sprintf(filled, want))
			}
		}
	}
}

// The values of a patch are bounded together, those that are kept and those that are filled in.
func TestValuesOfPatchesAreBounded(t *testing.T) {
	labels := func(n int, value string) *requirement.Mutation {
		all := map[string]any{}
		for i := range n {
			all[fmt.Sprint(i)] = strings.ReplaceAll(value, "N", fmt.Sprint(i))
		}
		m := mutation(t, "{}")
		m.Merge = map[string]any{"metadata": map[string]any{"labels": all}}
		return m
	}
	data := document(t, `{"image": {"digest": "`+strings.Repeat("x", 4000)+`"}}`)
	p, _ := condition.CompilePatch(labels(5, "{{ image.digest }}N"))
	if _, err := p.ImageValues(data); err == nil || err.Error() != "the values have more than 16384 bytes" {
		t.Errorf("kept: %v", err)
	}
	p, _ = condition.CompilePatch(labels(50, "{{ image.digest }}"))
	values, err := p.ImageValues(data)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Fill(values, nil); err == nil || err.Error() != "the values have more than 65536 bytes" {
		t.Errorf("filled in: %v", err)
	}
	if _, _, err := p.Fill(nil, data); err == nil || err.Error() != "the value of {{ image.digest }} is not known" {
		t.Errorf("of the image, and not known: %v", err)
	}
}

// Patches that read the same of an image share its values, and others do not.
func TestKeysOfPatches(t *testing.T) {
	key := func(text string) string {
		p, errs := condition.CompilePatch(mutation(t, text))
		if errs != nil {
			t.Fatal(errs)
		}
		return p.Key()
	}
	a := key("{metadata: {labels: {a: '{{ image.digest }}', b: '{{ element.name }}', c: x}}}")
	if a == "" || a != key("[{op: add, path: /metadata/labels/d, value: '{{ image.digest }}'}]") ||
		a == key("{metadata: {labels: {a: '{{ image.digest }}-'}}}") ||
		key(`{metadata: {labels: {a: "{{ image.config }}\n{{ image.digest }}"}}}`) ==
			key("{metadata: {labels: {a: '{{ image.digest }}', b: '{{ image.config }}'}}}") {
		t.Error("keys are not those of the texts on the image")
	}
	var none *condition.Patch
	if none.Key() != "" || none.Reads("image") {
		t.Error("no patch has a key")
	}
}
