package admission_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// tasksByDigest is a policy for Tasks of Tekton.
const tasksByDigest = `apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: tasks}
spec:
  validationFailureAction: Enforce
  rules:
  - name: digests
    match: {any: [{resources: {kinds: [tekton.dev/v1/Task], namespaces: [tekton]}}]}
    verifyImages:
    - imageReferences: ["task.test/*"]
      digestVerify: true
      imagePaths: [{path: "{{ spec.steps[*] }}"}, {path: "{{ spec.stepTemplate.image }}"}]
    - imageReferences: ["127.0.0.1:1/*"]
      attestors:
      - entries:
        - keys:
            publicKeys: |-
              -----BEGIN PUBLIC KEY-----
              MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEQgtkRjcOzE5vGLt6QQho8mRnrXK4
              b1dbi5v0NMQBDdgn3MT5h4oKOiw4KsVoGmxBiPq81/ooVIH+EARKSmRJ/g==
              -----END PUBLIC KEY-----
      imagePaths: [{path: "{{ spec.steps[*] }}"}]
`

// taskCRD has the shape of Tekton's: two versions, one of which is stored, and a status.
const taskCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: tasks.tekton.dev}
spec:
  group: tekton.dev
  names: {kind: Task, plural: tasks, singular: task, categories: [tekton, tekton-pipelines]}
  scope: Namespaced
  preserveUnknownFields: false
  conversion: {strategy: None}
  versions:
  - {name: v1beta1, served: true, storage: false, SCHEMA}
  - {name: v1, served: true, storage: true, SCHEMA}
`

// workflowCRD has the shape of Argo's: one version, and a status that is no subresource.
const workflowCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: workflows.argoproj.io}
spec:
  group: argoproj.io
  names: {kind: Workflow, listKind: WorkflowList, plural: workflows, shortNames: [wf], singular: workflow}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Status, type: string, jsonPath: .status.phase}]
    subresources: {}
    schema:
      openAPIV3Schema:
        type: object
        required: [metadata, spec]
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec: {type: object, x-kubernetes-map-type: atomic, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-map-type: atomic, x-kubernetes-preserve-unknown-fields: true}
`

const (
	byTag    = "task.test/step:1"
	byDigest = "task.test/step@sha256:0000000000000000000000000000000000000000000000000000000000000000"
)

// workflowsByDigest is a policy for Workflows of Argo, with the paths of the page.
func workflowsByDigest(t *testing.T) string {
	t.Helper()
	page := testkit.Value(os.ReadFile("../../docs/verify-custom-resources.md"))(t)
	rule := regexp.MustCompile("(?s)## Workflows of Argo\n.*?\n```yaml\n(.*?)```").FindSubmatch(page)
	if rule == nil {
		t.Fatal("the page has no example for Argo")
	}
	return "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: workflows}\nspec:\n" +
		"  validationFailureAction: Enforce\n  rules:\n  - name: digests\n" + string(rule[1]) +
		"    verifyImages: [{imageReferences: ['task.test/*'], digestVerify: true}]\n"
}

// define creates a custom resource, and returns its objects of each version.
func (r *row) define(crd, group, plural string, versions ...string) map[string]dynamic.ResourceInterface {
	r.Helper()
	crds := schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
	testkit.Value(r.objects.Resource(crds).Create(r.Context(), parse(r.T, crd), metav1.CreateOptions{}))(r)
	all := map[string]dynamic.ResourceInterface{}
	for _, version := range versions {
		resource := schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
		all[version] = r.objects.Resource(resource).Namespace(r.namespace)
		r.until("the API server serves "+plural, func() error {
			_, err := all[version].List(r.Context(), metav1.ListOptions{})
			return err
		})
	}
	return all
}

// argo creates and updates Workflows, whose images are in several places.
// Shows: 002-R2
func argo(r *row) {
	workflows := r.define(workflowCRD, "argoproj.io", "workflows", "v1alpha1")["v1alpha1"]
	workflow := func(name, templates string) *unstructured.Unstructured {
		return parse(r.T, fmt.Sprintf("{apiVersion: argoproj.io/v1alpha1, kind: Workflow, metadata: {name: %s}, "+
			"spec: {entrypoint: a, templates: [%s]}}", name, templates))
	}
	create := func(templates string, options metav1.CreateOptions) error {
		_, err := workflows.Create(r.Context(), workflow("new", templates), options)
		return err
	}
	old := testkit.Value(workflows.Create(r.Context(), workflow("old", "{container: {image: '"+byTag+"'}}"),
		metav1.CreateOptions{}))(r)
	r.judgedBy(r.two)
	const steps = "{name: a, steps: [[{name: b, template: b}]]}, {name: b, suspend: {}}, "
	places := []string{
		"{container: {image: %q}}", "{script: {image: %q, source: x}}", "{initContainers: [{name: a, image: %q}]}",
		"{sidecars: [{name: a, image: %q}]}", "{containerSet: {containers: [{name: a, image: %q}]}}",
	}
	for _, place := range places {
		check(r, denies(create(steps+fmt.Sprintf(place, byTag), dryRunOnly), `pullgate: workflows.argoproj.io argo/new: `+
			`image "`+byTag+`": rule digests of policy workflows requires that the image is named by a digest`))
		testkit.Must(r, create(steps+fmt.Sprintf(place, byDigest), dryRunOnly))
	}
	check(r, denies(create("{container: {image: '{{inputs.parameters.image}}'}}", dryRunOnly), "not a valid name"))
	testkit.Must(r, create(fmt.Sprintf(steps+strings.Join(places, ", "), byDigest, byDigest, byDigest, byDigest, byDigest),
		metav1.CreateOptions{}))
	// The controller changes the status together with what an earlier policy admitted.
	old.Object["status"] = map[string]any{"phase": "Running", "storedTemplates": map[string]any{"a": byTag}}
	old = testkit.Value(workflows.Update(r.Context(), old, metav1.UpdateOptions{}))(r)
	changed := parse(r.T, "{spec: {templates: [{script: {image: '"+byTag+"'}}]}}")
	old.Object["spec"] = changed.Object["spec"]
	_, err := workflows.Update(r.Context(), old, metav1.UpdateOptions{})
	testkit.Must(r, err) // the image is the same
	changed = parse(r.T, "{spec: {templates: [{script: {image: 'task.test/step:2'}}]}}")
	old = testkit.Value(workflows.Get(r.Context(), "old", metav1.GetOptions{}))(r)
	old.Object["spec"] = changed.Object["spec"]
	_, err = workflows.Update(r.Context(), old, metav1.UpdateOptions{})
	check(r, denies(err, "task.test/step:2"))
}

// tekton creates and updates Tasks, whose images are in lists without a pod template.
// Shows: 002-R2
func tekton(r *row) {
	const fields = "schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}, " +
		"subresources: {status: {}}"
	tasks := r.define(strings.ReplaceAll(taskCRD, "SCHEMA", fields), "tekton.dev", "tasks", "v1", "v1beta1")
	task := func(version, name, spec string) *unstructured.Unstructured {
		return parse(r.T, fmt.Sprintf("{apiVersion: tekton.dev/%s, kind: Task, metadata: {name: %s, finalizers: "+
			"[example.com/wait]}, spec: %s}", version, name, spec))
	}
	create := func(version, name, spec string, options metav1.CreateOptions) error {
		_, err := tasks[version].Create(r.Context(), task(version, name, spec), options)
		return err
	}
	patch := func(text string, subresources ...string) error {
		_, err := tasks["v1"].Patch(r.Context(), "old", types.MergePatchType, []byte(text), metav1.PatchOptions{},
			subresources...)
		return err
	}
	testkit.Must(r, create("v1", "old", "{steps: [{name: a, image: '"+byTag+"'}]}", metav1.CreateOptions{}))
	r.judgedBy(r.two)
	const denied = "pullgate: tasks.tekton.dev tekton/new: image \"task.test/step:1\": rule digests[0] of policy tasks " +
		"requires that the image is named by a digest"
	for _, version := range []string{"v1", "v1beta1"} {
		for _, spec := range []string{
			"{steps: [{name: a, image: '" + byDigest + "'}, {name: b, image: '" + byTag + "'}]}",
			"{stepTemplate: {image: '" + byTag + "'}, steps: [{name: a}]}", "{steps: {a: {image: '" + byTag + "'}}}",
		} {
			check(r, denies(create(version, "new", spec, dryRunOnly), denied))
			check(r, denies(create(version, "new", spec, metav1.CreateOptions{}), denied))
		}
		check(r, denies(create(version, "new", "{steps: [{name: a, image: 7}]}", dryRunOnly), "must be a text"))
		check(r, denies(create(version, "new", "{steps: [{name: a, image: '127.0.0.1:1/far:1'}]}", dryRunOnly),
			"pullgate-policyd cannot verify them"))
	}
	testkit.Must(r, create("v1beta1", "new", "{steps: [{name: a, image: '"+byDigest+"'}, {name: b, image: other.test/a}]}",
		metav1.CreateOptions{}))
	// What a task of an earlier policy has stays, and can be removed.
	for _, text := range []string{`{"metadata":{"labels":{"a":"b"}}}`, `{"spec":{"description":"a"}}`} {
		testkit.Must(r, patch(text))
	}
	testkit.Must(r, patch(`{"status":{"image":"`+byTag+`"}}`, "status"))
	check(r, denies(patch(`{"spec":{"steps":[{"name":"a","image":"task.test/step:2"}]}}`), "task.test/step:2"))
	testkit.Must(r, patch(`{"metadata":{"finalizers":null}}`))
	testkit.Must(r, tasks["v1"].Delete(r.Context(), "old", metav1.DeleteOptions{}))
}
