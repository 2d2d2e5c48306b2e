package podfile_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

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
	const uid, root = "8f6e0a6e-0000-4000-8000-000000000001", "/var/lib/kubelet"
	const own = root + "/pods/" + uid
	csi := &runtimeapi.Mount{ContainerPath: "/data", HostPath: own + "/volumes/kubernetes.io~csi/pvc-1/mount"}
	at := func(path string) *runtimeapi.Mount {
		return &runtimeapi.Mount{ContainerPath: path, HostPath: "/var/log"}
	}
	subPath := func(of string) *runtimeapi.Mount {
		return &runtimeapi.Mount{ContainerPath: "/data", HostPath: own + "/volume-subpaths/" + of}
	}
	device := &runtimeapi.Device{
		ContainerPath: "/dev/x", HostPath: own + "/volumeDevices/kubernetes.io~csi/pvc-1", Permissions: "mrw",
	}
	imageMount := &runtimeapi.Mount{
		ContainerPath: "/data", Image: &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "data:1"}, Readonly: true,
	}
	const claim, emptyDir = "persistentVolumeClaim: {claimName: c}", "emptyDir: {}"
	type mounts = []*runtimeapi.Mount
	for name, tc := range map[string]struct {
		other     string // the second volume, in YAML, and the mounts of the container
		container string
		cri       mounts
	}{
		"a hostPath alone": {emptyDir, "volumeMounts: [{name: host, mountPath: /data}]", mounts{at("/data")}},
		"a claim first": {
			claim, "volumeMounts: [{name: other, mountPath: /data}, {name: host, mountPath: data}]",
			mounts{csi, at("/data")},
		},
		"a claim last, with a slash at the end": {
			claim, "volumeMounts: [{name: host, mountPath: /data/}, {name: other, mountPath: /data}]",
			mounts{at("/data/"), csi},
		},
		"an emptyDir first, both with a subPath": {
			emptyDir, "volumeMounts: [{name: other, mountPath: /data, subPath: a}, {name: host, mountPath: data, subPath: p}]",
			mounts{subPath("other/c/0"), subPath("host/c/1")},
		},
		"a block device of a claim": {
			claim, "{volumeMounts: [{name: host, mountPath: dev/x}], volumeDevices: [{name: other, devicePath: /dev/x}]}",
			mounts{at("/dev/x")},
		},
		"an image": {
			"image: {reference: 'data:1'}", "volumeMounts: [{name: other, mountPath: /data}, {name: host, mountPath: data}]",
			mounts{imageMount, at("/data")},
		},
		"a claim, and a hostPath that the API server does not show": {
			claim, "volumeMounts: [{name: host, mountPath: /logs, readOnly: true}, {name: other, mountPath: /data}]",
			mounts{{ContainerPath: "/logs", HostPath: "/var/log", Readonly: true}, at("/data")},
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
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: "team", Name: "p"}}
				pod.Spec.Volumes = []corev1.Volume{
					{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/log"}}},
					{Name: "other"},
				}
				c := corev1.Container{Name: "c", Image: "busybox"}
				testkit.Must(t, yaml.UnmarshalStrict([]byte(tc.other), &pod.Spec.Volumes[1].VolumeSource),
					yaml.UnmarshalStrict([]byte(tc.container), &c))
				add(&pod.Spec, c)
				api, containers := podfile.ViewOf(pod)
				var block []*runtimeapi.Device
				if len(c.VolumeDevices) > 0 {
					block = append(block, device)
				}
				metadata := &runtimeapi.PodSandboxMetadata{Uid: uid, Namespace: "team", Name: "p"}
				cri, created := criview.Container(&runtimeapi.PodSandboxConfig{Metadata: metadata}, &runtimeapi.ContainerConfig{
					Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Mounts: tc.cri, Devices: block,
					Linux: &runtimeapi.LinuxContainerConfig{},
				}, root)
				merged, container, conflicts := admission.Merge(cri, api, &created, &containers[0])
				judge := func(p admission.Pod, all []admission.Container, from restriction.Source) bool {
					return set.Judge(&p, all, restriction.Options{From: from}).Admitted
				}
				node := judge(merged, []admission.Container{*container}, restriction.NodeWithPodSource)
				alone := judge(cri, []admission.Container{created}, restriction.Node)
				webhook := judge(api, containers, restriction.Admission)
				hidden := strings.Contains(name, "does not show")
				onePath := hidden || strings.Contains(name, "alone") // one mount has the path
				if node || alone || webhook != hidden {
					t.Errorf("admitted by the node with the pod source: %v, without: %v, by the webhook: %v; want a writable "+
						"hostPath denied", node, alone, webhook)
				}
				if slices.Contains(conflicts, "volumeType") == onePath {
					t.Errorf("conflicts %q; want one in volumeType if several mounts have the path", conflicts)
				}
			})
		}
	}
}
