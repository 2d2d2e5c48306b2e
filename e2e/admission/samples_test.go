package admission_test

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func maybe[T any](r *rand.Rand, from ...T) *T {
	if i := r.IntN(len(from) + 1); i < len(from) {
		return &from[i]
	}
	return nil
}

// samplePod returns a pod that an API server admits, with its defaults.
func samplePod(r *rand.Rand, namespace string) *corev1.Pod {
	s := corev1.PodSpec{
		HostNetwork: r.IntN(6) == 0, HostPID: r.IntN(6) == 0, NodeSelector: pick(r, nil, map[string]string{"disk": "ssd"}),
		AutomountServiceAccountToken: maybe(r, true, false), ActiveDeadlineSeconds: maybe[int64](r, 60),
		RestartPolicy: pick(r, corev1.RestartPolicyAlways, corev1.RestartPolicyNever),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsUser: maybe[int64](r, 0, 1000), RunAsNonRoot: maybe(r, true), FSGroup: maybe[int64](r, 5),
			SupplementalGroups: pick(r, nil, []int64{5}, []int64{0, 7}),
		},
		Volumes: []corev1.Volume{
			{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
			{Name: "v", VolumeSource: pick(r,
				corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
				corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
				corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: pick(r, "/a", "/a/b", "/etc")}},
				corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}})},
		},
	}
	for i := range 1 + r.IntN(2) {
		s.Containers = append(s.Containers, sampleContainer(r, fmt.Sprintf("c%d", i), &s))
	}
	for i := range r.IntN(2) {
		s.InitContainers = append(s.InitContainers, sampleContainer(r, fmt.Sprintf("i%d", i), &s))
	}
	podfile.SetDefaults(&s)
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Spec: s}
	p.Name, p.Namespace = pick(r, "web", "db"), namespace
	p.Labels = pick(r, nil, map[string]string{"app": "web"}, map[string]string{"app": "db", "tier": "x"})
	return p
}

func sampleContainer(r *rand.Rand, name string, pod *corev1.PodSpec) corev1.Container {
	drop, add := []corev1.Capability{"ALL"}, []corev1.Capability{"CHOWN"}
	c := corev1.Container{
		Name: name, Image: pick(r, "good.test/a:1", "good.test/a:1", "bad.test/b", "busybox"),
		SecurityContext: &corev1.SecurityContext{
			Privileged: maybe(r, true, false, false), RunAsUser: maybe[int64](r, 1, 1000),
			ReadOnlyRootFilesystem: maybe(r, true), AllowPrivilegeEscalation: maybe(r, false, true),
			Capabilities: pick(r, nil, &corev1.Capabilities{Drop: drop}, &corev1.Capabilities{Add: add}),
		},
	}
	if s := c.SecurityContext; s.Privileged != nil && *s.Privileged { // an API server does not admit both
		s.AllowPrivilegeEscalation = nil
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		token := corev1.VolumeMount{Name: "token", ReadOnly: true, MountPath: admission.ServiceAccountPath}
		c.VolumeMounts = append(c.VolumeMounts, token)
	}
	if r.IntN(2) == 0 {
		v := corev1.VolumeMount{Name: "v", MountPath: "/v", ReadOnly: r.IntN(2) == 0, SubPath: pick(r, "", "", "", "x")}
		c.VolumeMounts = append(c.VolumeMounts, v)
	}
	return c
}

// samplePolicy returns a PodRestriction for a namespace, by its name or its label "team", or for another namespace.
func samplePolicy(r *rand.Rand, name, namespace string) []byte {
	some := func(field string, values ...string) string {
		if r.IntN(4) > 0 {
			return ""
		}
		return field + ": " + pick(r, values...) + ", "
	}
	image := func() string {
		return some("image", "[{registry: {whitelist: [good.test]}}]", "[{tag: {blacklist: [latest]}}]",
			"[{registry: {whitelist: [good.test]}}, {registry: {whitelist: [docker.io]}}]")
	}
	container := func() string {
		return "{" + image() + some("imagePullPolicy", "{whitelist: [Always]}") + "securityContext: {" +
			some("privileged", "{require: false}", "{forbidNil: true}") +
			some("runAsUser", "{ranges: [{min: 1}]}", "{forbidNil: true}") +
			some("runAsNonRoot", "{require: true}") + some("readOnlyRootFilesystem", "{require: true}") +
			some("allowPrivilegeEscalation", "{require: false}") +
			some("capabilities", "{drop: {requiredValues: [ALL]}}", "{add: {requireEmpty: true}}") + "}}"
	}
	spec := some("restartPolicy", "{whitelist: [Always]}") + some("activeDeadlineSeconds", "{requireNil: true}") +
		some("nodeSelector", "{requiredKeys: [disk]}") + some("automountServiceAccountToken", "{require: false}") +
		some("terminationGracePeriodSeconds", "{ranges: [{max: 30}]}") +
		some("volumes", "[{volumeType: {blacklist: [hostPath]}}]", "[{hostPath: {path: {whitelist: [/a]}}}]",
			"[{volumeType: {whitelist: [projected, emptyDir, persistentVolumeClaim]}}]",
			"[{mount: {readOnly: {require: true}}}]") +
		"securityContext: {" + some("hostNetwork", "{require: false}") + some("hostPID", "{require: false}") +
		some("fsGroup", "{ranges: [{min: 1}]}") + some("supplementalGroups", "{ranges: [{min: 1, max: 5}]}") + "}, " +
		some("containers", "["+container()+"]", "["+container()+", "+container()+"]") +
		some("initContainers", "["+container()+"]")
	metadata := some("name", "{whitelist: [web]}") + some("labels", "{requiredKeys: [app]}", "{keyBlacklist: [tier]}")
	here := "namespaces: [" + namespace + "]"
	binding := pick(r, "Drop, "+here, "Drop, "+here, "Drop, "+here, "Accept, "+here,
		"Drop, namespaceSelector: {matchLabels: {team: "+namespace+"}}", "Drop, namespaces: [other]")
	return fmt.Appendf(nil, `apiVersion: policy.pullgate.dev/v1alpha1
kind: PodRestriction
metadata: {name: %s}
binding: {mode: %s}
spec: {metadata: {%s}, spec: {%s}}
`, name, binding, metadata, spec)
}

// nodeReason returns why a node denies a pod that admission admits; "" if it must not. accepted says that a policy with
// the mode Accept decided at admission.
func nodeReason(v policyfiles.TestViolation, accepted bool) string {
	volumes := strings.Contains(v.Path, ".volumes[")
	switch {
	case accepted:
		return "an Accept policy restricts what the node sees differently"
	case strings.Contains(v.Path, ".runAsUser") || strings.Contains(v.Path, ".runAsNonRoot"):
		return "the user is that of the image"
	case volumes && v.Unknown:
		return "a subPath hides the volume"
	case volumes && strings.Contains(v.Value, "csi"):
		return "a claim shows the driver behind it"
	case strings.Contains(v.Path, "supplementalGroups") || strings.Contains(v.Path, "fsGroup"):
		return "the CRI has all groups in one list"
	case strings.HasPrefix(v.Path, "spec.spec.containers[") || strings.HasPrefix(v.Path, "spec.spec.initContainers["):
		return "the CRI does not say which containers are init containers"
	case strings.Contains(v.Path, "automountServiceAccountToken"):
		return "the node sees the mount of the token"
	default:
		return ""
	}
}
