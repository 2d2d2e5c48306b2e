package restriction_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// Pods that are the same in what policies restrict get the same answer, whatever else is different.
func TestSamePodsHaveTheSameAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	same, changed := 0, 0
	for seed := range rounds(2400) {
		r := newRandom(seed)
		var files []restriction.File
		for i := range 1 + r.IntN(2) {
			files = append(files, r.file(string(rune('a'+i)), pick(r, "Drop", "Drop", "Accept")))
		}
		set := load(t, files...)
		a, containersOfA := r.pod()
		b, containersOfB := a, slices.Clone(containersOfA)
		other, _ := r.pod()
		r.replace(reflect.ValueOf(&b).Elem(), reflect.ValueOf(other))
		for i := range containersOfB {
			if _, others := r.pod(); len(others) > 0 {
				r.replace(reflect.ValueOf(&containersOfB[i]).Elem(), reflect.ValueOf(others[0]))
			}
		}
		if reflect.DeepEqual(a, b) && reflect.DeepEqual(containersOfA, containersOfB) {
			if !set.Same(&a, &b, containersOfA, containersOfB) {
				t.Fatalf("seed %d: equal pods are not the same", seed)
			}
			continue
		}
		changed++
		if !set.Same(&a, &b, containersOfA, containersOfB) {
			continue
		}
		same++
		for _, scope := range []admission.Stage{
			admission.StageAdmission, admission.StageTemplate,
			admission.StageImageReview,
		} {
			options := options{Stage: scope}
			if x, y := set.Judge(&a, containersOfA, options), set.Judge(&b, containersOfB, options); x.Admitted != y.Admitted ||
				x.AcceptedBy != y.AcceptedBy || len(x.Violations) != len(y.Violations) {
				t.Fatalf("seed %d: the same pods get the answers %+v and %+v", seed, x, y)
			}
		}
	}
	if same < changed/20 || same > changed*19/20 {
		t.Errorf("%d of %d changed pods are the same; want some and not all", same, changed)
	}
}

// replace takes some fields from another pod or container.
func (r random) replace(to, from reflect.Value) {
	for i := range to.NumField() {
		if to.Field(i).Kind() == reflect.Struct && r.IntN(12) == 0 {
			to.Field(i).Set(from.Field(i))
		}
	}
}

func TestSame(t *testing.T) {
	set := load(t, file("images", "", "{spec: {containers: [{image: [{registry: {whitelist: [a.test]}}]}]}}"),
		file("volumes", "", "{spec: {volumes: [{requireEmpty: true}]}}"),
		file("elsewhere", "{namespaces: [other]}", "{metadata: {labels: {requireKeys: [x]}}}"))
	base, c := allowed(), container("web")
	for _, tc := range []struct {
		name   string
		change func(p *admission.Pod, c *admission.Container)
		want   bool
	}{
		{"nothing", func(*admission.Pod, *admission.Container) {}, true},
		{"labels", func(p *admission.Pod, _ *admission.Container) {
			p.Labels = admission.Set(map[string]string{"new": "x"})
		}, true},
		{"host network", func(p *admission.Pod, _ *admission.Container) { p.HostNetwork = admission.Set(true) }, true},
		{"name of container", func(_ *admission.Pod, c *admission.Container) { c.Name = "other" }, true},
		{"privileged", func(_ *admission.Pod, c *admission.Container) { c.Privileged = admission.Set(true) }, true},
		{"image", func(_ *admission.Pod, c *admission.Container) { c.Image = admission.Set("b.test/x:1") }, false},
		{"unknown image", func(_ *admission.Pod, c *admission.Container) { c.Image = admission.Value[string]{} }, false},
		{"kind", func(_ *admission.Pod, c *admission.Container) { c.Kind = admission.Set(admission.KindInit) }, false},
		{"volu" +
			"mes", func(p *admission.Pod, _ *admission.Container) { p.Volumes = admission.Set([]admission.Volume{{}}) }, false},
		{"mounts", func(_ *admission.Pod, c *admission.Container) {
			c.Mounts = admission.Set([]admission.Mount{{Path: "/x"}})
		}, false},
		{"namespace", func(p *admission.Pod, _ *admission.Container) { p.Namespace = "other" }, false},
	} {
		pod, changed := base, c
		tc.change(&pod, &changed)
		if got := set.Same(&base, &pod, list{c}, list{changed}); got != tc.want {
			t.Errorf("%s: Same = %v; want %v", tc.name, got, tc.want)
		}
	}
	if set.Same(&base, &base, list{c}, list{c, c}) {
		t.Error("one more container is the same")
	}
	if !(*restriction.Set)(nil).Same(&base, &base, nil, list{c}) {
		t.Error("without policies a pod is not the same")
	}
}

// Every field that a policy can restrict makes pods differ that differ in it: a new field that Same forgets fails here.
func TestSameKnowsEveryField(t *testing.T) {
	for _, f := range restriction.Fields() {
		path, ok := strings.CutPrefix(f.Path, "spec.")
		if !ok { // the binding
			continue
		}
		spec, parts := "{}", strings.Split(path, ".")
		for _, part := range slices.Backward(parts) {
			name, list := strings.CutSuffix(part, "[]")
			if list {
				spec = "[" + spec + "]"
			}
			spec = "{" + name + ": " + spec + "}"
		}
		unknown := admission.Pod{Namespace: "team-a"}
		known, web := allowed(), container("web")
		known.AutomountServiceAccountToken, known.ActiveDeadlineSeconds = admission.Set(true), admission.Set[int64](1)
		if policy(t, spec).Same(&unknown, &known, list{{}}, list{web}) {
			t.Errorf("%s: a pod with all fields is the same as one without", f.Path)
		}
	}
}

func TestScope(t *testing.T) {
	named := "{metadata: {name: {whitelist: [web]}}, spec: {containers: [{image: [{registry: {whitelist: [a.test]}}]}]}}"
	template, web := allowed(), container("web")
	template.Name = ""
	for name, tc := range map[string]struct {
		binding string
		scope   admission.Stage
		image   string
		want    bool
	}{
		"a template has no name": {"", admission.StageTemplate, "a.test/x:1", true},
		"a pod without a name":   {"", admission.StageAdmission, "a.test/x:1", false},
		"image of a template":    {"", admission.StageTemplate, "b.test/x:1", false},
		"accepted template":      {"{mode: Accept}", admission.StageTemplate, "a.test/x:1", true},
		"image that is allowed":  {"", admission.StageImageReview, "a.test/x:1", true},
		"image that is denied":   {"", admission.StageImageReview, "b.test/x:1", false},
		"an image ID names no registry": {"", admission.StageImageReview, "sha256:01234567890123456789012345678901234567890" +
			"12345678901234567890123", false},
		"an invalid image name names no registry":  {"", admission.StageImageReview, "a.test/x:1:2", false},
		"no image name is no allowed image":        {"", admission.StageImageReview, "", false},
		"an image that an Accept policy can match": {"{mode: Accept}", admission.StageImageReview, "a.test/x:1", true},
	} {
		c := web
		c.Image = admission.Set(tc.image)
		if tc.image == "" {
			c.Image = admission.Absent[string]()
		}
		pod, containers := template, list{c}
		if tc.scope == admission.StageImageReview {
			pod, containers = admission.Pod{Namespace: "team-a"}, list{{Name: "web", Image: c.Image}}
		}
		files := []restriction.File{file("test", tc.binding, named)}
		if tc.binding != "" {
			files = append(files, file("none", "", "{metadata: {labels: {requireEmpty: true}}, spec: {containers: [{image: "+
				"[{registry: {whitelist: [none.test]}}]}]}}"))
		}
		if d := load(t, files...).Judge(&pod, containers, options{Stage: tc.scope}); d.Admitted != tc.want {
			t.Errorf("%s: admitted %v, %v; want %v", name, d.Admitted, d.Violations, tc.want)
		}
	}
	either := policy(t, "{spec: {containers: [{image: [{registry: {whitelist: [a.test]}}]}], initContainers: [{image: "+
		"[{registry: {whitelist: [b.test]}}]}]}}")
	for image, want := range map[string]bool{"a.test/x": true, "b.test/x": true, "c.test/x": false} {
		pod := admission.Pod{Namespace: "team-a"}
		if d := either.Judge(&pod, list{{Image: admission.Set(image)}},
			options{Stage: admission.StageImageReview}); d.Admitted != want {
			t.Errorf("image %s in one of two lists: admitted %v; want %v", image, d.Admitted, want)
		}
	}
}
