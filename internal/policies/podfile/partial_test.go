package podfile_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/testkit"
)

const richPod = `
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: team
  labels: {app: web}
  annotations: {policy.pullgate.dev/unknown-fields: forged, policy.pullgate.dev/container: forged, a: b}
  ownerReferences: [{apiVersion: v1, kind: Node, name: no-1, uid: u}]
spec:
  hostNetwork: true
  serviceAccountName: builder
  nodeSelector: {a: b}
  priorityClassName: high
  tolerations: [{operator: Exists}]
  securityContext: {runAsUser: 7, fsGroup: 5, supplementalGroups: [6], seccompProfile: {type: Unconfined},
  	sysctls: [{name: a, value: b}]}
  initContainers:
  - {name: init, image: "init:1", command: [a]}
  containers:
  - name: app
    image: app:1
    imagePullPolicy: Always
    args: [a]
    env: [{name: PASSWORD, value: SECRET}]
    envFrom: [{secretRef: {name: s}}]
    resources: {limits: {cpu: "1"}}
    livenessProbe: {exec: {command: [a]}}
    securityContext: {privileged: true, runAsGroup: 3, procMount: Unmasked, capabilities: {add: [NET_ADMIN]}}
    volumeMounts: [{name: host, mountPath: /host, subPath: x}, {name: config, mountPath: /etc/c}]
  - {name: other, image: "other:1"}
  volumes:
  - {name: host, hostPath: {path: /etc, type: Directory}}
  - {name: config, configMap: {name: c}}
`

func forHook(t *testing.T, s admission.Subject) (raw string, pod *corev1.Pod, unknown []string) {
	t.Helper()
	data, listed, err := podfile.ForHook(&s, "CreateContainer", "node-1")
	testkit.Must(t, err)
	pod = &corev1.Pod{}
	testkit.Must(t, json.Unmarshal(data, pod))
	if text := pod.Annotations[podfile.UnknownAnnotation]; text != strings.Join(listed, ",") {
		t.Errorf("the annotation is %q; want %q", text, listed)
	}
	return string(data), pod, listed
}

func subjects(t *testing.T) (all []admission.Subject) {
	t.Helper()
	for _, start := range testkit.Value(podfile.Read([]byte(richPod)))(t)[0].AtNode(podfile.Node{}) {
		stage := admission.StageContainer
		if start.Container == nil {
			stage = admission.StageSandbox
		}
		all = append(all, admission.Subject{Stage: stage, Pod: start.Pod, Container: start.Container})
	}
	return all
}

func subjectOf(t *testing.T, container string) admission.Subject {
	t.Helper()
	all := subjects(t)
	i := slices.IndexFunc(all, func(s admission.Subject) bool {
		return s.Container != nil &&
			s.Container.Name == container
	})
	return all[i]
}

func TestPartialPodHasWhatIsKnown(t *testing.T) {
	raw, pod, unknown := forHook(t, subjectOf(t, "app"))
	if pod.Kind != "Pod" || pod.APIVersion != "v1" || pod.Name != "web" || pod.Namespace != "team" ||
		pod.Labels["app"] != "web" || !pod.Spec.HostNetwork || pod.Spec.NodeName != "node-1" {
		t.Errorf("the pod is %s", raw)
	}
	c := pod.Spec.Containers[0]
	if len(pod.Spec.Containers) != 1 || c.Image != "app:1" || !*c.SecurityContext.Privileged ||
		*c.SecurityContext.RunAsGroup != 3 || c.SecurityContext.Capabilities.Add[0] != "NET_ADMIN" {
		t.Errorf("the container is %+v", c)
	}
	hostPath := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil })
	if !hostPath || len(c.VolumeMounts) != len(pod.Spec.Volumes) {
		t.Errorf("volumes %+v, mounts %+v", pod.Spec.Volumes, c.VolumeMounts)
	}
	a := pod.Annotations
	if a["a"] != "b" || a[podfile.ContainerAnnotation] != "app" || a[podfile.StageAnnotation] != "CreateContainer" {
		t.Errorf("annotations %q", a)
	}
	if strings.Contains(raw, "forged") || strings.Contains(raw, "SECRET") {
		t.Errorf("the pod has what a tenant wrote, or the environment: %s", raw)
	}
	for _, path := range []string{
		"spec.containers", "spec.containers[*].env", "spec.containers[*].command", "spec.initContainers", "spec.volumes",
		"spec.nodeSelector", "spec.containers[*].volumeMounts", "spec.containers[*].securityContext.seccompProfile",
		"metadata.ownerReferences", "status", "spec.securityContext.fsGroup",
	} {
		if !slices.Contains(unknown, path) {
			t.Errorf("%s is not listed as unknown", path)
		}
	}
	for _, path := range []string{
		"spec.hostNetwork", "spec.containers[*].image", "spec.containers[*].securityContext.privileged", "metadata.labels",
		"spec.hostPID", "spec.nodeName", "spec.containers[*].securityContext.capabilities",
	} {
		if slices.Contains(unknown, path) {
			t.Errorf("%s is listed as unknown", path)
		}
	}
	if !slices.IsSorted(unknown) {
		t.Error("the list is not sorted")
	}
}

func TestPartialPodOfASandbox(t *testing.T) {
	s := subjects(t)[0]
	if s.Container != nil {
		t.Fatal("the first subject is not the sandbox")
	}
	data, _, err := podfile.ForHook(&s, "RunPodSandbox", "n")
	testkit.Must(t, err)
	var pod corev1.Pod
	testkit.Must(t, json.Unmarshal(data, &pod))
	_, forged := pod.Annotations[podfile.ContainerAnnotation]
	if len(pod.Spec.Containers) != 0 || forged || pod.Annotations[podfile.StageAnnotation] != "RunPodSandbox" {
		t.Errorf("the pod is %s", data)
	}
	unknown := strings.Split(pod.Annotations[podfile.UnknownAnnotation], ",")
	if !slices.Contains(unknown, "spec.containers") || slices.Contains(unknown, "spec.containers[*].env") {
		t.Errorf("unknown fields %q", unknown)
	}
}

func TestPartialPodOfAnUnknownContainer(t *testing.T) {
	s := admission.Subject{Pod: admission.Pod{Namespace: "n", Name: "p"}, Container: &admission.Container{Name: "c"}}
	if _, _, err := podfile.ForHook(&s, "CreateContainer", "n"); err == nil {
		t.Error("a container of which neither labels nor image are known is sent")
	}
	s.Container.Image = admission.Set("i")
	_, pod, unknown := forHook(t, s)
	if len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Name != "c" {
		t.Errorf("containers %+v", pod.Spec.Containers)
	}
	for _, path := range []string{"metadata.labels", "spec.hostNetwork", "spec.containers[*].env", "metadata.uid"} {
		if !slices.Contains(unknown, path) {
			t.Errorf("%s is not listed as unknown", path)
		}
	}
}

func TestPartialPodOfAnInitContainer(t *testing.T) {
	s := subjectOf(t, "init")
	s.Container.Kind = admission.Set(admission.KindEphemeral)
	raw, pod, unknown := forHook(t, s)
	if len(pod.Spec.EphemeralContainers) != 1 || !slices.Contains(unknown, "spec.ephemeralContainers[*].env") ||
		!slices.Contains(unknown, "spec.ephemeralContainers[*].targetContainerName") ||
		slices.Contains(unknown, "spec.ephemeralContainers[*].image") {
		t.Errorf("%+v, unknown %q", pod.Spec, unknown)
	}
	if strings.Contains(raw, `ontainers":null`) ||
		strings.Contains(raw, `"resources"`) || strings.Contains(raw, `"status":`) {
		t.Errorf("what is not known is sent as absent: %s", raw)
	}
	s.Container.Kind = admission.Set(admission.KindInit)
	_, pod, unknown = forHook(t, s)
	if len(pod.Spec.InitContainers) != 1 || len(pod.Spec.Containers) != 0 ||
		!slices.Contains(unknown, "spec.initContainers[*].env") || !slices.Contains(unknown, "spec.containers") {
		t.Errorf("%+v, unknown %q", pod.Spec, unknown)
	}
}

// Unknown is never sent as absent: every field that the pod has is sent, or it or a part of its path is listed.
func TestPartialPodListsWhatItLeavesOut(t *testing.T) {
	var whole map[string]any
	api := testkit.Value(podfile.Read([]byte(richPod)))(t)[0]
	testkit.Must(t, json.Unmarshal(testkit.Value(json.Marshal(podfile.Object(api)))(t), &whole))
	metadata, _ := whole["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	delete(annotations, podfile.ContainerAnnotation) // it is forged
	for _, s := range subjects(t) {
		raw, _, unknown := forHook(t, s)
		var sent map[string]any
		testkit.Must(t, json.Unmarshal([]byte(raw), &sent))
		has := map[string]bool{}
		paths("", sent, func(path string) { has[path] = true })
		paths("", whole, func(path string) {
			listed := slices.ContainsFunc(unknown, func(u string) bool {
				return path == u || strings.HasPrefix(path, u+".") || strings.HasPrefix(path, u+"[")
			})
			if !has[path] && !listed {
				t.Errorf("%s of the pod is neither sent nor listed, container %v", path, s.Container != nil)
			}
		})
	}
}

// paths calls f with the path of each value that is not empty.
func paths(at string, v any, f func(path string)) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			paths(strings.TrimPrefix(at+"."+name, "."), value, f)
		}
	case []any:
		for _, value := range v {
			paths(at+"[*]", value, f)
		}
	case nil:
	default:
		if fmt.Sprint(v) != "false" {
			f(at)
		}
	}
}

func TestWholePodIsSent(t *testing.T) {
	object := podfile.Object(testkit.Value(podfile.Read([]byte(richPod)))(t)[0])
	s := subjectOf(t, "app")
	s.Pod.Object = object
	raw, pod, unknown := forHook(t, s)
	if len(unknown) != 0 || len(pod.Spec.Containers) != 2 || pod.Spec.ServiceAccountName != "builder" {
		t.Errorf("unknown %q, the pod is %s", unknown, raw)
	}
	if strings.Contains(raw, "forged") || pod.Annotations[podfile.ContainerAnnotation] != "app" {
		t.Errorf("annotations %q", pod.Annotations)
	}
	// A user can have edited these since the kubelet has the pod.
	s.Pod.Labels = admission.Set(map[string]string{"app": "edited"})
	s.Pod.Annotations = admission.Set(map[string]string{})
	for name, image := range map[string]func(*corev1.Pod) string{
		"app":  func(p *corev1.Pod) string { return p.Spec.Containers[0].Image },
		"init": func(p *corev1.Pod) string { return p.Spec.InitContainers[0].Image },
		"debug": func(p *corev1.Pod) string {
			return p.Spec.EphemeralContainers[0].Image
		},
	} {
		object.Spec.EphemeralContainers = []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "debug:1"}},
		}
		s.Container = &admission.Container{Name: name, Image: admission.Effective("edited:1")}
		_, pod, _ = forHook(t, s)
		if image(pod) != "edited:1" || pod.Labels["app"] != "edited" || pod.Annotations["a"] != "" {
			t.Errorf("%s: image %s, labels %q, annotations %q; want what runs", name, image(pod), pod.Labels, pod.Annotations)
		}
		if image(object) == "edited:1" {
			t.Error("the object of the pod source was changed")
		}
	}
	if object.Annotations[podfile.UnknownAnnotation] != "forged" || object.Labels["app"] != "web" {
		t.Error("the object of the pod source was changed")
	}
	s.Pod.Object = errors.New("too large")
	if _, _, err := podfile.ForHook(&s, "CreateContainer", "n"); err == nil || err.Error() != "too large" {
		t.Errorf("without a usable object: %v", err)
	}
}
