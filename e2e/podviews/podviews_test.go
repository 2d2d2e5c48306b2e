package podviews

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// compareOne compares a pod with one container and what a kubelet sends about it, after change.
func compareOne(t *testing.T, change func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig)) []string {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "team", UID: "uid", Labels: map[string]string{"a": "b"}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(30)),
			SecurityContext: &corev1.PodSecurityContext{FSGroup: new(int64(2000))},
			Volumes:         []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Containers: []corev1.Container{{
				Name: "main", Image: image, SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(0))}, VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}},
			}},
		},
	}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "app", Namespace: "team", Uid: "uid"}, Labels: map[string]string{"a": "b"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}, SupplementalGroups: []int64{2000},
		}},
	}
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{UserSpecifiedImage: image},
		Annotations: map[string]string{"io.kubernetes.pod.terminationGracePeriod": "30"},
		Mounts:      []*runtimeapi.Mount{{ContainerPath: "/v", HostPath: "/kubelet/pods/uid/volumes/kubernetes.io~empty-dir/v"}},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			RunAsUser: &runtimeapi.Int64Value{}, SupplementalGroups: []int64{2000}, NamespaceOptions: sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	change(sandbox, config)
	r := &Runtime{pods: map[string]*sent{"uid": {sandbox, map[string]*runtimeapi.CreateContainerRequest{"main": {SandboxConfig: sandbox, Config: config}}}}}
	c := Comparison{KubeletRoot: "/kubelet"}
	c.Pod(pod, r)
	return c.differences
}

func TestComparisonFindsDifferences(t *testing.T) {
	if got := compareOne(t, func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {}); len(got) > 0 {
		t.Errorf("views that agree differ: %q", got)
	}
	for field, change := range map[string]func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig){
		"privileged": func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.Privileged = true
		},
		"runAsUser": func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.RunAsUser.Value = 1
		},
		"a mount at /v": func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) { c.Mounts = nil },
		"volumeType":    func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) { c.Mounts[0].HostPath = "/v" },
		"readOnly":      func(_ *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) { c.Mounts[0].Readonly = true },
	} {
		if got := compareOne(t, change); !strings.Contains(strings.Join(got, "\n"), field) {
			t.Errorf("the differences are %q; want one in %s", got, field)
		}
	}
}
