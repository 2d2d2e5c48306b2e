package admission_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

const (
	// canary is in the environment, labels and arguments of all pods, and in their pull Secret.
	canary     = "canary-4711"
	secretName = "canary-4711-secret"
	// forbidden is the key of a label that is denied in most namespaces.
	forbidden = "forbidden"
	good      = "good.test/app:1"
)

// labelsRestricted denies the label, and privileged containers.
const labelsRestricted = `apiVersion: policy.pullgate.dev/v1alpha1
kind: PodRestriction
metadata: {name: labels}
binding:
  mode: Drop
  namespaces: [bodies, two-clusters, resources, custom-resources, ephemeral, dry-run, audit-mode, audit-log,
    registration, timeout, service, files, tekton, argo]
spec:
  metadata: {labels: {keyBlacklist: [forbidden]}}
  spec: {containers: [{securityContext: {privileged: {require: false}}}]}
`

// restriction returns a policy that denies pods with a field of the security context, which is a namespace of the node.
func restriction(name, metadata, binding, field string) string {
	return fmt.Sprintf(`apiVersion: policy.pullgate.dev/v1alpha1
kind: PodRestriction
metadata: {name: %s%s}
binding: {mode: Drop, %s}
spec: {spec: {securityContext: {%s: {require: false}}}}
`, name, metadata, binding, field)
}

// policies returns the files of a policy folder. Only the webhook two has those that need an API server.
func policies(t *testing.T, name string) map[string]string {
	t.Helper()
	all := map[string]string{"labels.yaml": labelsRestricted}
	if name == clusterTwo {
		all["network.yaml"] = restriction("network", "", "namespaces: [deployment, unchanged, mirror]", "hostNetwork")
		const audit = ", annotations: {policy.pullgate.dev/mode: Audit}"
		all["processes.yaml"] = restriction("processes", audit, "namespaces: [audit-mode]", "hostPID")
		all["tasks.yaml"] = tasksByDigest
		all["workflows.yaml"] = workflowsByDigest(t)
		all["strict.yaml"] = restriction("strict", "", "namespaceSelector: {matchLabels: {tier: strict}}", "hostIPC")
	}
	return all
}

// podTemplates are the custom resources of the pullgate-policyd.
const podTemplates = "podTemplates: [{group: example.com, resource: workers, path: spec.worker.template}]"

func pod(name, image string, change func(*corev1.Pod)) *corev1.Pod {
	secret := corev1.LocalObjectReference{Name: secretName}
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app": "a", "label": canary},
			Annotations: map[string]string{"annotation": canary, "image-policy.k8s.io/nothing-before": canary},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "main", Image: image, Args: []string{canary}, Env: []corev1.EnvVar{{Name: "PASSWORD", Value: canary}},
				EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: secret}}},
			}},
			ImagePullSecrets:             []corev1.LocalObjectReference{secret},
			AutomountServiceAccountToken: new(false),
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

func (r *row) createPod(p *corev1.Pod) error {
	_, err := r.core.Pods(r.namespace).Create(r.Context(), p, metav1.CreateOptions{})
	return err
}

func (r *row) probe() error {
	p := pod("probe", good, func(p *corev1.Pod) {
		p.Labels[forbidden] = "yes"
		p.Spec.HostNetwork, p.Spec.HostIPC = true, true
	})
	_, err := r.core.Pods(r.namespace).Create(r.Context(), p, dryRunOnly)
	return err
}

type kind struct {
	resource schema.GroupVersionResource
	path     []string // of the pod template; none for a pod
	object   string   // in YAML, with %s where the pod template is
}

func kinds() map[string]kind {
	in := func(group, resource, kindOf, object string, path ...string) kind {
		version := schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
		return kind{version, path, "apiVersion: " + version.GroupVersion().String() + "\nkind: " + kindOf + "\n" + object}
	}
	at := []string{"spec", "template"}
	const selector = "selector: {matchLabels: {app: a}}"
	all := map[string]kind{}
	for _, k := range []kind{
		in("", "pods", "Pod", "%s"),
		in("", "podtemplates", "PodTemplate", "template: %s", "template"),
		in("", "replicationcontrollers", "ReplicationController",
			"spec: {replicas: 0, selector: {app: a}, template: %s}", at...),
		in("apps", "replicasets", "ReplicaSet", "spec: {replicas: 0, "+selector+", template: %s}", at...),
		in("apps", "daemonsets", "DaemonSet", "spec: {"+selector+", template: %s}", at...),
		in("apps", "statefulsets", "StatefulSet", "spec: {replicas: 0, serviceName: s, "+selector+", template: %s}", at...),
		in("apps", "deployments", "Deployment", "spec: {replicas: 0, "+selector+", template: %s}", at...),
		// suspended, so that its template can be changed
		in("batch", "jobs", "Job", "spec: {suspend: true, template: %s}", at...),
		in("batch", "cronjobs", "CronJob", "spec: {schedule: '0 0 * * *', jobTemplate: {spec: {template: %s}}}",
			"spec", "jobTemplate", "spec", "template"),
	} {
		all[k.resource.Resource] = k
	}
	return all
}

// worker is the custom resource that podTemplates names.
func workerKind() kind {
	return kind{
		schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "workers"},
		[]string{"spec", "worker", "template"},
		"apiVersion: example.com/v1\nkind: Worker\nspec: {worker: {template: %s}}",
	}
}

// with returns an object with the metadata and the spec of a pod.
func (k kind) with(t *testing.T, p *corev1.Pod) *unstructured.Unstructured {
	t.Helper()
	template := p.DeepCopy()
	if k.resource.Group == "batch" {
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	template.Name = ""
	text := testkit.Value(json.Marshal(map[string]any{"metadata": template.ObjectMeta, "spec": template.Spec}))(t)
	if len(k.path) == 0 {
		text = fmt.Appendf(nil, "metadata: %s\nspec: %s", mustJSON(t, template.ObjectMeta), mustJSON(t, template.Spec))
	}
	object := parse(t, fmt.Sprintf(k.object, text))
	object.SetName(p.Name)
	return object
}

// labelPatch returns a patch that sets a label of the pod template.
func (k kind) labelPatch(t *testing.T, key string) string {
	t.Helper()
	patch := any(map[string]any{"metadata": map[string]any{"labels": map[string]any{key: "yes"}}})
	for _, field := range slices.Backward(k.path) {
		patch = map[string]any{field: patch}
	}
	return string(mustJSON(t, patch))
}

func mustJSON(t *testing.T, value any) []byte {
	t.Helper()
	return testkit.Value(json.Marshal(value))(t)
}

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatalf("%v in\n%s", err, strings.TrimSpace(text))
	}
	return object
}
