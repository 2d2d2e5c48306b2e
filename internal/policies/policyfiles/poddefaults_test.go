package policyfiles_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

func defaultsFile(name, rest string) string {
	return "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodDefaults\nmetadata: {name: " + name + "}\n" + rest + "\n"
}

func loadDefaults(texts ...string) ([]policyfiles.PodDefaults, []string, error) {
	var files []policyfiles.File
	for i, text := range texts {
		files = append(files, policyfiles.File{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(text)})
	}
	return policyfiles.LoadDefaults(files)
}

func complete(t *testing.T, template, pod string) (string, error) {
	t.Helper()
	d, _, err := loadDefaults(defaultsFile("d", "template: "+template))
	if err != nil {
		t.Fatalf("%s: %v", template, err)
	}
	got, err := d[0].Complete([]byte(pod))
	return string(got), err
}

// Shows: 004-20
func TestDefaultsAddWhatAPodLacks(t *testing.T) {
	for _, tc := range []struct{ name, template, pod, want string }{
		{
			"labels and annotations", `{metadata: {labels: {a: "1", b: "2"}, annotations: {c: x}}}`,
			`{"metadata":{"labels":{"a":"0"}}}`, `{"metadata":{"labels":{"a":"0","b":"2"},"annotations":{"c":"x"}}}`,
		},
		{
			"a field", `{spec: {hostUsers: true, runtimeClassName: kata}}`, `{"spec":{"hostUsers":false}}`,
			`{"spec":{"hostUsers":false,"runtimeClassName":"kata"}}`,
		},
		{
			"null is absent", `{metadata: {labels: {a: b}}, spec: {imagePullSecrets: [{name: r}]}}`,
			`{"metadata":{"labels":null},"spec":{"imagePullSecrets":null}}`,
			`{"metadata":{"labels":{"a":"b"}},"spec":{"imagePullSecrets":[{"name":"r"}]}}`,
		},
		{
			"a list by its key, in order", `{spec: {imagePullSecrets: [{name: a}, {name: b}, {name: c}]}}`,
			`{"spec":{"imagePullSecrets":[{"name":"z"},{"name":"b"}]}}`,
			`{"spec":{"imagePullSecrets":[{"name":"z"},{"name":"b"},{"name":"a"},{"name":"c"}]}}`,
		},
		{
			"a list without a key", `{spec: {tolerations: [{key: a}], readinessGates: [{conditionType: x}]}}`,
			`{"spec":{"tolerations":[{"key":"b"}],"readinessGates":[]}}`,
			`{"spec":{"tolerations":[{"key":"b"}],"readinessGates":[{"conditionType":"x"}]}}`,
		},
		{
			"an element that the pod has is one of several kinds", `{spec: {volumes: [{name: v, emptyDir: {}}]}}`,
			`{"spec":{"volumes":[{"name":"v","hostPath":{"path":"/"}}]}}`,
			`{"spec":{"volumes":[{"name":"v","hostPath":{"path":"/"}}]}}`,
		},
		{
			"containers", `{spec: {containers: [{name: a, env: [{name: X, value: "1"}, {name: Z, value: "1"}],
			volumeMounts: [{name: v, mountPath: /v}], resources: {limits: {cpu: 1, memory: 1Gi}}}, {name: none, env: []},
			{name: side, image: side:1, imagePullPolicy: Always}]}}`,
			`{"spec":{"containers":[{"name":"a","image":"a:1","env":[{"name":"Z","valueFrom":{}}],
			"resources":{"limits":{"cpu":"2"}}}]}}`,
			`{"spec":{"containers":[{"name":"a","image":"a:1","env":[{"name":"Z","valueFrom":{}},{"name":"X","value":"1"}],
			"resources":{"limits":{"cpu":"2","memory":"1Gi"}},"volumeMounts":[{"name":"v","mountPath":"/v"}]},
			{"name":"side","image":"side:1","imagePullPolicy":"Always"}]}}`,
		},
		{
			"security contexts", `{spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: Localhost,
			localhostProfile: p}, fsGroup: 5}, containers: [{name: a, securityContext: {capabilities: {drop: [ALL],
			add: [X]}}}]}}`,
			`{"spec":{"securityContext":{"runAsNonRoot":false,"seccompProfile":{"type":"RuntimeDefault"}},
			"containers":[{"name":"a","securityContext":{"capabilities":{"add":["NET_ADMIN"]}}}]}}`,
			`{"spec":{"securityContext":{"runAsNonRoot":false,"seccompProfile":{"type":"RuntimeDefault"},"fsGroup":5},
			"containers":[{"name":"a","securityContext":{"capabilities":{"add":["NET_ADMIN"]}}}]}}`,
		},
		{
			"a container with an image completes no other", `{spec: {containers: [{name: agent, image: agent:1, env: [{name: X}],
			securityContext: {privileged: true}}], initContainers: [{name: agent, image: agent:1, stdin: true}]}}`,
			`{"spec":{"containers":[{"name":"agent","image":"evil:1"}],
			"initContainers":[{"name":"agent","image":"agent:1","command":["sh"]}]}}`,
			`{"spec":{"containers":[{"name":"agent","image":"evil:1"}],
			"initContainers":[{"name":"agent","image":"agent:1","command":["sh"]}]}}`,
		},
		{
			"command and args together", `{spec: {containers: [{name: a, command: [x], args: [w]}, {name: b, command: [x],
			args: [w]}, {name: c, command: [x], args: [w]}]}}`,
			`{"spec":{"containers":[{"name":"a","args":["z"]},{"name":"b","command":["z"]},{"name":"c"}]}}`,
			`{"spec":{"containers":[{"name":"a","args":["z"]},{"name":"b","command":["z"]},{"name":"c","command":["x"],
			"args":["w"]}]}}`,
		},
		{
			"a probe is added as a whole", `{spec: {containers: [{name: a, livenessProbe: {exec: {command: [x]}},
			readinessProbe: {exec: {command: [x]}}}]}}`,
			`{"spec":{"containers":[{"name":"a","livenessProbe":{"httpGet":{"port":1}}}]}}`,
			`{"spec":{"containers":[{"name":"a","livenessProbe":{"httpGet":{"port":1}},
			"readinessProbe":{"exec":{"command":["x"]}}}]}}`,
		},
		{
			"numbers are keys", `{spec: {containers: [{name: a, ports: [{containerPort: 80}, {containerPort: 81}]}]}}`,
			`{"spec":{"containers":[{"name":"a","ports":[{"containerPort":80,"protocol":"UDP"}]}]}}`,
			`{"spec":{"containers":[{"name":"a","ports":[{"containerPort":80,"protocol":"UDP"},{"containerPort":81}]}]}}`,
		},
		{
			"a gate", `{spec: {schedulingGates: [{name: example.com/quota}]}}`, `{"spec":{"schedulerName":"s"}}`,
			`{"spec":{"schedulerName":"s","schedulingGates":[{"name":"example.com/quota"}]}}`,
		},
		{
			"directives are not interpreted", `{metadata: {labels: {a: b}}, spec: {imagePullSecrets: [{name: r}]}}`,
			`{"metadata":{"$patch":"delete","labels":{"$patch":"replace"}},
			"spec":{"$retainKeys":["x"],"imagePullSecrets":[{"$patch":"replace"},{"name":"r","$patch":"delete"}]}}`,
			`{"metadata":{"$patch":"delete","labels":{"$patch":"replace","a":"b"}},
			"spec":{"$retainKeys":["x"],"imagePullSecrets":[{"$patch":"replace"},{"name":"r","$patch":"delete"}]}}`,
		},
		{
			"another type stays", `{metadata: {labels: {a: b}}, spec: {imagePullSecrets: [{name: r}],
			affinity: {nodeAffinity: {}}}}`,
			`{"metadata":{"labels":"x"},"spec":{"imagePullSecrets":"y","affinity":[1]}}`,
			`{"metadata":{"labels":"x"},"spec":{"imagePullSecrets":"y","affinity":[1]}}`,
		},
		{
			"keys of another type", `{spec: {imagePullSecrets: [{name: r}]}}`,
			`{"spec":{"imagePullSecrets":[{"name":{"a":1}},{"name":[1]},null,7]}}`,
			`{"spec":{"imagePullSecrets":[{"name":{"a":1}},{"name":[1]},null,7,{"name":"r"}]}}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := complete(t, tc.template, tc.pod)
			if want := canonical(t, tc.want); err != nil || got != want {
				t.Errorf("Complete() = %s, %v; want\n%s", got, err, want)
			}
		})
	}
	for _, pod := range []string{"", "null", "[]", "{"} {
		if got, err := complete(t, "{metadata: {labels: {a: b}}}", pod); err == nil {
			t.Errorf("Complete(%q) = %s; want an error", pod, got)
		}
	}
}

func canonical(t *testing.T, text string) string {
	t.Helper()
	var v any
	testkit.Must(t, json.Unmarshal([]byte(text), &v))
	return string(testkit.Value(json.Marshal(v))(t))
}

func TestDefaultsErrors(t *testing.T) {
	large := "template: {metadata: {annotations: {a: " + strings.Repeat("x", 64<<10) + "}}}"
	for want, rest := range map[string]string{
		"template: Required value":                   "binding: {namespaces: [a]}",
		"binding.mode: unknown field":                "binding: {mode: Drop}\ntemplate: {spec: {runtimeClassName: a}}",
		"binding.namespaces[0]: Invalid value":       "binding: {namespaces: [A]}\ntemplate: {spec: {runtimeClassName: a}}",
		"must have either namespaces or":             "binding: {}\ntemplate: {spec: {hostUsers: true}}",
		"namespaceSelector: Invalid value":           "binding: {namespaceSelector: {}}\ntemplate: {spec: {hostUsers: true}}",
		"must have either names":                     "binding: {namespaces: [a], namespaceSelector: {}}\ntemplate: {}",
		"binding.namespaces: Invalid value":          "binding: {namespaces: []}\ntemplate: {spec: {runtimeClassName: a}}",
		`template: unknown field "metadata.name"`:    "template: {metadata: {name: a}}",
		`template: unknown field "status"`:           "template: {status: {}}",
		`unknown field "spec.image"`:                 "template: {spec: {image: a}}",
		"template: must be a part of a Pod":          "template: {spec: {hostNetwork: 7}}",
		"spec.restartPolicy: Invalid value":          "template: {spec: {restartPolicy: Never}}",
		"spec.priority: Invalid value: 5: every pod": "template: {spec: {priority: 5}}",
		"template.spec.serviceAccountName":           "template: {spec: {serviceAccountName: a}}",
		"spec.hostNetwork: Invalid value: true: a":   "template: {spec: {hostNetwork: true}}",
		"spec.hostPID: Invalid value: true: a":       "template: {spec: {hostPID: true}}",
		"spec.hostIPC: Invalid value: true: a":       "template: {spec: {hostIPC: true}}",
		"template.spec.priorityClassName: Invalid":   "template: {spec: {priorityClassName: a}}",
		"template.spec.ephemeralContainers":          "template: {spec: {ephemeralContainers: [{name: a}]}}",
		"spec.containers[0].imagePullPolicy":         "template: {spec: {containers: [{name: a, imagePullPolicy: Always}]}}",
		"spec.containers[0].name: Required":          "template: {spec: {containers: [{image: a}]}}",
		"spec.volumes[1].name: Duplicate value":      "template: {spec: {volumes: [{name: a}, {name: a}]}}",
		"spec.hostNetwork: Invalid value: \"null\"":  "template: {spec: {hostNetwork: null}}",
		"spec.imagePullSecrets[0]: Invalid":          "template: {spec: {imagePullSecrets: [null]}}",
		"must not set this annotation":               "template: {metadata: {annotations: {policy.pullgate.dev/x: a}}}",
		"kubernetes.io/config.mirror":                "template: {metadata: {annotations: {kubernetes.io/config.mirror: a}}}",
		"metadata.labels[a b]: Invalid value":        "template: {metadata: {labels: {a b: c}}}",
		"template: Too long":                         large,
		"spec: unknown field":                        "spec: {}\ntemplate: {spec: {runtimeClassName: a}}",
		`$patch`:                                     "template: {spec: {$patch: delete}}",
	} {
		if d, _, err := loadDefaults(defaultsFile("d", rest)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s: %+v, %v; want %s", rest, d, err, want)
		}
	}
	one := defaultsFile("d", "template: {metadata: {labels: {a: b}}}")
	if _, _, err := loadDefaults(one, one); err == nil || !strings.Contains(err.Error(), "metadata.name: Duplicate") {
		t.Errorf("two files of one name: %v", err)
	}
	annotated := strings.Replace(one, "name: d", "name: d, annotations: {policy.pullgate.dev/mode: Audit}", 1)
	if _, _, err := loadDefaults(
		annotated,
	); err == nil ||
		!strings.Contains(err.Error(), "no annotation with this prefix") {
		t.Errorf("a mode: %v", err)
	}
	d, notes, err := loadDefaults(defaultsFile("b", "template: {spec: {tolerations: [{key: a}]}}"),
		defaultsFile("a", "template: {spec: {automountServiceAccountToken: false}}"))
	if err != nil || len(d) != 2 || d[0].Name != "a" || len(notes) != 2 ||
		!strings.Contains(notes[0], "0.yaml: template.spec."+
			"tolerations: no effect") ||
		!strings.Contains(notes[1], "1.yaml: template.spec.automountServiceAccountToken") {
		t.Errorf("two files: %+v, %q, %v; want them by name, with notes", d, notes, err)
	}
}

func TestDefaultsAreBound(t *testing.T) {
	in := func(ns string, labels admission.Value[map[string]string]) *admission.Pod {
		return &admission.Pod{Namespace: ns, NamespaceLabels: labels}
	}
	var unknown admission.Value[map[string]string]
	dev := admission.Set(map[string]string{"tier": "dev"})
	for binding, want := range map[string]string{
		"":                           "+ + +",
		"binding: {namespaces: [a]}": "+ - -",
		"binding: {namespaceSelector: {matchLabels: {tier: dev}}}": "? + -",
	} {
		d, _, err := loadDefaults(defaultsFile("d", binding+"\ntemplate: {spec: {runtimeClassName: a}}"))
		testkit.Must(t, err)
		var got []string
		for _, p := range []*admission.Pod{in("a", unknown), in("b", dev), in("c", admission.Set(map[string]string{}))} {
			included, known := d[0].Includes(p)
			got = append(
				got,
				map[[2]bool]string{{true, true}: "+", {false, true}: "-", {false, false}: "?"}[[2]bool{included, known}],
			)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s; want %s", binding, got, want)
		}
	}
}

// TestDefaultsKeepWhatAPodHas compares random pods and templates: a second pass changes nothing, and
// the result has all that the pod had.
func TestDefaultsKeepWhatAPodHas(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	rounds := 3000
	if testkit.Raced { // make race runs the test with all of them without the detector
		rounds = 300
	}
	for range rounds {
		template := randomPart(r, true)
		d, _, err := loadDefaults(defaultsFile("d", "template: "+template))
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, template, err)
		}
		pod := randomPart(r, false)
		once, err := d[0].Complete([]byte(pod))
		testkit.Must(t, err)
		twice, err := d[0].Complete(once)
		if err != nil || string(twice) != string(once) {
			t.Fatalf("seed %d: template %s\npod %s\nonce %s\ntwice %s, %v", seed, template, pod, once, twice, err)
		}
		var before, after any
		testkit.Must(t, kjson.UnmarshalCaseSensitivePreserveInts([]byte(pod), &before),
			kjson.UnmarshalCaseSensitivePreserveInts(once, &after))
		if !has(after, before) {
			t.Fatalf("seed %d: template %s\npod %s\nhas lost something: %s", seed, template, pod, once)
		}
	}
}

// has reports whether a value has all of another one: lists begin with the same elements.
func has(v, all any) bool {
	switch all := all.(type) {
	case map[string]any:
		m, ok := v.(map[string]any)
		for key := range all {
			ok = ok && (all[key] == nil || has(m[key], all[key]))
		}
		return ok
	case []any:
		l, ok := v.([]any)
		if !ok || len(l) < len(all) {
			return false
		}
		for i := range all {
			ok = ok && has(l[i], all[i])
		}
		return ok
	}
	return reflect.DeepEqual(v, all)
}

// randomPart returns a part of a pod, or a template.
func randomPart(r *rand.Rand, template bool) string {
	maybe := func(fields ...string) string {
		fields = slices.DeleteFunc(fields, func(string) bool { return r.IntN(2) == 0 })
		return "{" + strings.Join(fields, ",") + "}"
	}
	names := func(element func(name string) string) string {
		list := slices.DeleteFunc([]string{"a", "b", "c"}, func(string) bool { return r.IntN(2) == 0 })
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for i := range list {
			list[i] = element(list[i])
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	value := func() string { return fmt.Sprintf("%q", string(rune('0'+r.IntN(3)))) }
	with := func(key string, fields ...func() string) func(string) string {
		return func(name string) string {
			all := []string{fmt.Sprintf("%q:%q", key, name)}
			for _, f := range fields {
				if r.IntN(2) == 0 {
					all = append(all, f())
				}
			}
			return "{" + strings.Join(all, ",") + "}"
		}
	}
	env := with("name", func() string { return `"value":` + value() })
	mounts := with("mountPath", func() string { return `"name":` + value() })
	container := with("name",
		func() string { return `"image":` + value() },
		func() string { return `"env":` + names(env) },
		func() string { return `"volumeMounts":` + names(mounts) },
		func() string { return `"args":[` + value() + `]` },
		func() string {
			return `"securityContext":` + maybe(`"privileged":false`, `"capabilities":`+maybe(`"add":["A"]`, `"drop":["B"]`))
		},
		func() string { return `"resources":` + maybe(`"limits":`+maybe(`"cpu":`+value(), `"memory":`+value())) })
	spec := maybe(`"imagePullSecrets":`+names(with("name")), `"containers":`+names(container),
		`"initContainers":`+names(container), `"hostAliases":`+names(with("ip")), `"runtimeClassName":"a"`,
		`"tolerations":[{"key":`+value()+`}]`, `"nodeSelector":`+maybe(`"a":`+value(), `"b":`+value()),
		`"volumes":`+names(with("name", func() string { return `"emptyDir":{}` })),
		`"affinity":`+maybe(`"nodeAffinity":{}`, `"podAffinity":{}`), `"schedulingGates":`+names(with("name")))
	metadata := maybe(`"labels":`+maybe(`"a":`+value(), `"b":`+value()), `"annotations":`+maybe(`"a":`+value()))
	part := `{"metadata":` + metadata + `,"spec":` + spec + `}`
	if template {
		return part
	}
	return strings.Replace(part, `"metadata"`, `"kind":"Pod","metadata"`, 1)
}
