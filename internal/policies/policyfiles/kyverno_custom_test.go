package policyfiles_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const verifyAll = ", verifyImages: [{imageReferences: ['*'], verifyDigest: true}]"

func task() requirement.Kind {
	return requirement.Kind{Group: "tekton.dev", Version: "v1", Kind: "Task"}
}

// A rule is for the kinds and namespaces that it names, and for pods only if Pod is among the kinds.
func TestKindsOfCustomResources(t *testing.T) {
	const paths, exclude = ", imagePaths: [{path: '{{ spec.steps[*] }}'}]", ", exclude: "
	kinds := map[string]requirement.Kind{
		"T": task(), "R": {Group: "tekton.dev", Version: "v1beta1", Kind: "TaskRun"},
		"O": {Group: "other.io", Version: "v1", Kind: "Task"}, "C": {Version: "v1", Kind: "ConfigMap"},
	}
	of := func(kinds string) string { return "match: {resources: {kinds: [" + kinds + "]}}" }
	for match, want := range map[string]string{ // pods, and the objects in the namespaces a and b
		of("tekton.dev/v1/Task"):                "T/a T/b",
		of("tekton.dev/v1beta1/Task"):           "T/a T/b",
		of("tekton.dev/*/Task"):                 "T/a T/b",
		of("'*/*/Task'"):                        "T/a T/b O/a O/b",
		of("v1/Task"):                           "T/a T/b O/a O/b",
		of("Task"):                              "T/a T/b O/a O/b",
		of("tekton.dev/v1/Task*"):               "T/a T/b R/a R/b",
		of("'tekton.dev/*/*'"):                  "T/a T/b R/a R/b",
		of("'*.dev/*/Task'"):                    "T/a T/b",
		of("tekton.dev/v1/Task.status"):         "",
		of("Pod"):                               "pods",
		of("'*'"):                               "pods",
		of("Pod, tekton.dev/v1/Task"):           "pods T/a T/b",
		of("Deployment, tekton.dev/v1/TaskRun"): "R/a R/b",
		"match: {any: [{resources: {kinds: [Pod], namespaces: [a]}}, {resources: {kinds: [tekton.dev/v1/Task], " +
			"namespaces: ['b*']}}]}": "pods T/b",
		"match: {all: [{resources: {kinds: ['*'], namespaces: [a]}}, {resources: {kinds: [Task]}}]}": "" +
			"T/a O/a",
		"match: {all: [{resources: {kinds: [Pod]}}, {resources: {kinds: [Task]}}]}":                   "",
		of("Pod, Task") + exclude + "{resources: {namespaces: [a]}}":                                  "pods T/b O/b",
		of("Pod, Task") + exclude + "{resources: {kinds: [Pod], namespaces: [a]}}":                    "pods T/a T/b O/a O/b",
		of("Task") + exclude + "{resources: {kinds: [tekton.dev/*/Task]}}":                            "O/a O/b",
		of("Task") + exclude + "{any: [{resources: {kinds: ['*'], namespaces: [a]}}]}":                "T/b O/b",
		of("Task") + exclude + "{all: [{resources: {kinds: [Pod]}}, {resources: {namespaces: [a]}}]}": "T/a T/b O/a O/b",
	} {
		p, err := kyverno.Load(kyvernoPolicy(match + paths + verifyAll))
		if err != nil {
			t.Errorf("%s: %v", match, err)
			continue
		}
		var got []string
		if len(requirement.NewSet("", p).For("", imageref.New("a:1")).Rules) > 0 {
			got = append(got, "pods")
		}
		for name, kind := range kinds {
			for _, namespace := range []string{"a", "b"} {
				if len(requirement.NewCustomSet("", p).ForObject(kind, namespace)) > 0 {
					got = append(got, name+"/"+namespace)
				}
			}
		}
		wanted := strings.Fields(want)
		slices.Sort(got)
		slices.Sort(wanted)
		if !slices.Equal(got, wanted) {
			t.Errorf("%s is for %q; want %q", match, got, wanted)
		}
	}
}

// The image paths of all places count, and extractors are paths.
// Shows: 002-12
func TestPlacesOfImagePaths(t *testing.T) {
	const match = "match: {resources: {kinds: [tekton.dev/v1/Task]}}, "
	for rule, want := range map[string]string{
		"context: [{imagePaths: [{path: a}]}, {imagePaths: [{path: b, keyField: k, valueField: v}]}]" + verifyAll: "" +
			"a(name,image) b(k,v)",
		"imagePaths: [{path: a}], imageVerify: {images: ['*'], verifyDigest: true, imagePaths: [{path: b}]}": "" +
			"a(name,image) b(name,image)",
		"imageVerify: {images: ['*'], digestVerify: true, imagePaths: [{path: '{{ spec.tasks[*] }}'}]}": "" +
			"{{ spec.tasks[*] }}(name,image)",
		"imageExtractors: {Task: [{path: /spec/steps/*, value: image, key: name, name: steps}, " +
			"{path: /spec/*/stepTemplate/image}, {path: /spec/a-b, value: bundle}, {path: /spec/all/*/}, " +
			"{path: /spec/a/*/b/*}]}" + verifyAll: "" +
			"spec.steps[](name,image) spec[].stepTemplate.image(name,image) " +
			`spec."a-b".bundle(name,bundle) spec.all[](name,image) spec.a[].b[](name,image)`,
	} {
		p := kyverno.Valid(t, kyvernoPolicy(match+rule))
		var got []string
		for _, path := range p.Custom[0].Custom.Paths {
			got = append(got, fmt.Sprintf("%s(%s,%s)", path.Path, path.Key, path.Value))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: paths %q; want %q", rule, got, want)
		}
	}
}

// Defaults of rules for pods and of those for custom resources can differ: their images are judged apart.
func TestDefaultsOfCustomResourcesAreApart(t *testing.T) {
	kyverno.Valid(t,
		kyvernoPolicy("match: {resources: {kinds: [Pod]}}, imageVerify: {images: [a], digestVerify: true, "+
			"default: allow}"),
		strings.Replace(kyvernoPolicy("match: {resources: {kinds: [a.io/v1/Task]}}, imagePaths: [{path: a}], "+
			"imageVerify: {images: [a], digestVerify: true, default: deny}"), "name: p", "name: q", 1))
}
