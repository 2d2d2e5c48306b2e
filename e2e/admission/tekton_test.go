package admission_test

import (
	"fmt"
	"strings"

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

// tekton creates and updates Tasks, whose images are in lists without a pod template.
func tekton(r *row) {
	crds := schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
	const fields = "schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}, " +
		"subresources: {status: {}}"
	crd := parse(r.T, strings.ReplaceAll(taskCRD, "SCHEMA", fields))
	testkit.Value(r.objects.Resource(crds).Create(r.Context(), crd, metav1.CreateOptions{}))(r)
	tasks := map[string]dynamic.ResourceInterface{}
	for _, version := range []string{"v1", "v1beta1"} {
		resource := schema.GroupVersionResource{Group: "tekton.dev", Version: version, Resource: "tasks"}
		tasks[version] = r.objects.Resource(resource).Namespace(r.namespace)
		r.until("the API server serves Tasks", func() error {
			_, err := tasks[version].List(r.Context(), metav1.ListOptions{})
			return err
		})
	}
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
	const byTag, byDigest = "task.test/step:1", "task.test/step@sha256:" +
		"0000000000000000000000000000000000000000000000000000000000000000"
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
