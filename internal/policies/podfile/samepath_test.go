package podfile_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/criview"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
)

// As allowedHostPaths of a PodSecurityPolicy: hostPath only below /var/log and read-only, and the usual volumes.
const readOnlyHostPaths = `
apiVersion: policy.pullgate.dev/v1alpha1
kind: PodRestriction
metadata: {name: hostpaths}
spec: {spec: {volumes: [
  {volumeType: {whitelist: [hostPath]}, hostPath: {path: {whitelist: [/var/log]}}, mount: {readOnly: {require: true}}},
  {volumeType: {whitelist: [configMap, secret, emptyDir, persistentVolumeClaim, projected, image]}}]}}
`

// A tenant mounts two volumes at one place, such as "/data" and "data", which the API server takes for different paths.
// The harmless one says nothing about the other one, in containers of each list. The node without the pod source, the
// node with it, and the webhook agree.
func TestMountsAtOnePathAreNotMistakenForEachOther(t *testing.T) {
	set, err := restriction.Load([]restriction.File{{Name: "p.yaml", Data: []byte(readOnlyHostPaths)}})
	testkit.Must(t, err)
	claimed := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	emptyDir := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	const uid, root = "8f6e0a6e-0000-4000-8000-000000000001", "/var/lib/kubelet"
	const own = root + "/pods/" + uid
	csi := &runtimeapi.Mount{ContainerPath: "/data", HostPath: own + "/volumes/kubernetes.io~csi/pvc-1/mount"}
	at := func(path string) *runtimeapi.Mount {
		return &runtimeapi.Mount{ContainerPath: path, HostPath: "/var/log"}
	}
	for name, tc := range map[string]struct {
		other   corev1.VolumeSource
		mounts  []corev1.VolumeMount
		devices []corev1.VolumeDevice
		cri     []*runtimeapi.Mount
		block   []*runtimeapi.Device
		alone   bool // one mount has the path
	}{
		"a hostPath alone": {
			other: emptyDir, mounts: []corev1.VolumeMount{{Name: "host", MountPath: "/data"}},
			cri: []*runtimeapi.Mount{at("/data")}, alone: true,
		},
		"a claim first": {
			other: claimed, mounts: []corev1.VolumeMount{{Name: "other", MountPath: "/data"}, {Name: "host", MountPath: "data"}},
			cri: []*runtimeapi.Mount{csi, at("/data")},
		},
		"a claim last, with a slash at the end": {
			other: claimed, mounts: []corev1.VolumeMount{
				{Name: "host", MountPath: "/data/"},
				{Name: "other", MountPath: "/data"},
			},
			cri: []*runtimeapi.Mount{at("/data/"), csi},
		},
		"an emptyDir first, both with a subPath": {
			other: emptyDir, mounts: []corev1.VolumeMount{
				{Name: "other", MountPath: "/data", SubPath: "a"},
				{Name: "host", MountPath: "data", SubPath: "pods"},
			},
			cri: []*runtimeapi.Mount{
				{ContainerPath: "/data", HostPath: own + "/volume-subpaths/other/c/0"},
				{ContainerPath: "/data", HostPath: own + "/volume-subpaths/host/c/1"},
			},
		},
		"a block device of a claim": {
			other: claimed, mounts: []corev1.VolumeMount{{Name: "host", MountPath: "dev/x"}},
			devices: []corev1.VolumeDevice{{Name: "other", DevicePath: "/dev/x"}},
			cri:     []*runtimeapi.Mount{at("/dev/x")}, block: []*runtimeapi.Device{{
				ContainerPath: "/dev/x",
				HostPath:      own + "/volumeDevices/kubernetes.io~csi/pvc-1", Permissions: "mrw",
			}},
		},
		"an image": {
			other:  corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "data:1"}},
			mounts: []corev1.VolumeMount{{Name: "other", MountPath: "/data"}, {Name: "host", MountPath: "data"}},
			cri: []*runtimeapi.Mount{{
				ContainerPath: "/data",
				Image:         &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "data:1"}, Readonly: true,
			}, at("/data")},
		},
		"a claim, and a hostPath that the API server does not show": {
			other: claimed, mounts: []corev1.VolumeMount{
				{Name: "host", MountPath: "/logs", ReadOnly: true},
				{Name: "other", MountPath: "/data"},
			},
			cri: []*runtimeapi.Mount{{ContainerPath: "/logs", HostPath: "/var/log", Readonly: true}, at("/data")}, alone: true,
		},
	} {
		for list, add := range map[string]func(s *corev1.PodSpec, c corev1.Container){
			"containers":     func(s *corev1.PodSpec, c corev1.Container) { s.Containers = append(s.Containers, c) },
			"initContainers": func(s *corev1.PodSpec, c corev1.Container) { s.InitContainers = append(s.InitContainers, c) },
			"ephemeralContainers": func(s *corev1.PodSpec, c corev1.Container) {
				s.EphemeralContainers = append(s.EphemeralContainers,
					corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon(c)})
			},
		} {
			t.Run(name+", "+list, func(t *testing.T) {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: "team", Name: "p"},
					Spec: corev1.PodSpec{Volumes: []corev1.Volume{
						{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/log"}}},
						{Name: "other", VolumeSource: tc.other},
					}},
				}
				add(&pod.Spec, corev1.Container{Name: "c", Image: "busybox", VolumeMounts: tc.mounts, VolumeDevices: tc.devices})
				api, containers := podfile.ViewOf(pod)
				cri, c := criview.Container(&runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{
					Uid:       uid,
					Namespace: "team", Name: "p",
				}}, &runtimeapi.ContainerConfig{
					Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Mounts: tc.cri, Devices: tc.block,
					Linux: &runtimeapi.LinuxContainerConfig{},
				}, root)
				merged, container, conflicts := admission.Merge(cri, api, &c, &containers[0])
				node := set.Judge(&merged, []admission.Container{*container},
					restriction.Options{From: restriction.NodeWithPodSource})
				alone := set.Judge(&cri, []admission.Container{c}, restriction.Options{From: restriction.Node})
				webhook := set.Judge(&api, containers, restriction.Options{From: restriction.Admission})
				hidden := strings.Contains(name, "does not show")
				if node.Admitted || alone.Admitted || webhook.Admitted != hidden {
					t.Errorf("admitted by the node with the pod source: %v, without: %v, by the webhook: %v; want a writable "+
						"hostPath denied", node.Admitted, alone.Admitted, webhook.Admitted)
				}
				if slices.Contains(conflicts, "volumeType") == tc.alone {
					t.Errorf("conflicts %q; want one in volumeType if several mounts have the path", conflicts)
				}
			})
		}
	}
}
