package podfile_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/criview"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
)

// The views of a file are those of the messages that a kubelet sends for it.
func TestViewsAreThoseOfMessages(t *testing.T) {
	const uid, root = "8f6e0a6e-0000-4000-8000-000000000001", "/var/lib/kubelet"
	starts := read(t, `
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: team, uid: `+uid+`, labels: {app: web}, annotations: {note: x}}
spec:
  hostPID: true
  terminationGracePeriodSeconds: 7
  securityContext: {fsGroup: 5, supplementalGroups: [6], seLinuxOptions: {type: t}}
  volumes:
  - {name: host, hostPath: {path: /var/log, type: Directory}}
  - {name: scratch, emptyDir: {}}
  - {name: claim, persistentVolumeClaim: {claimName: c}}
  containers:
  - name: web
    image: busybox:1
    securityContext:
      runAsUser: 1000
      runAsGroup: 2000
      privileged: true
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: true
      capabilities: {add: [CHOWN], drop: [ALL]}
    volumeMounts:
    - {name: host, mountPath: /host, mountPropagation: HostToContainer}
    - {name: scratch, mountPath: /scratch, readOnly: true}
    - {name: scratch, mountPath: /part, subPath: x}
    - {name: claim, mountPath: /claim}
`).AtNode(podfile.Node{})
	options := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_NODE}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Uid: uid, Namespace: "team", Name: "a"},
		Labels:      map[string]string{"app": "web", "io.kubernetes.pod.name": "a"},
		Annotations: map[string]string{"note": "x", "kubernetes.io/config.source": "api"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: options, SupplementalGroups: []int64{5, 6},
		}},
	}
	volumes := root + "/pods/" + uid + "/volumes/"
	container := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: "web"},
		Image:       &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "busybox:1"},
		Annotations: map[string]string{"io.kubernetes.pod.terminationGracePeriod": "7"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: options, SupplementalGroups: []int64{5, 6}, Privileged: true, ReadonlyRootfs: true,
			RunAsUser: &runtimeapi.Int64Value{Value: 1000}, RunAsGroup: &runtimeapi.Int64Value{Value: 2000},
			SelinuxOptions: &runtimeapi.SELinuxOption{Type: "t"},
			Capabilities:   &runtimeapi.Capability{AddCapabilities: []string{"CHOWN"}, DropCapabilities: []string{"ALL"}},
		}},
		Mounts: []*runtimeapi.Mount{
			{
				HostPath: "/var/log", ContainerPath: "/host",
				Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
			},
			{HostPath: volumes + "kubernetes.io~empty-dir/scratch", ContainerPath: "/scratch", Readonly: true},
			{HostPath: root + "/pods/" + uid + "/volume-subpaths/scratch/web/2", ContainerPath: "/part"},
			{HostPath: volumes + "kubernetes.io~csi/pvc-1/mount", ContainerPath: "/claim"},
			{
				HostPath: volumes + "kubernetes.io~projected/kube-api-access-x", ContainerPath: admission.ServiceAccountPath,
				Readonly: true,
			},
			{HostPath: root + "/pods/" + uid + "/etc-hosts", ContainerPath: "/etc/hosts"},
		},
	}
	export := cmp.Exporter(func(reflect.Type) bool { return true })
	if d := cmp.Diff(criview.Sandbox(sandbox), starts[0].Pod, export); d != "" {
		t.Errorf("sandbox (-message +file):\n%s", d)
	}
	pod, web := criview.Container(sandbox, container, root)
	if d := cmp.Diff(pod, starts[1].Pod, export); d != "" {
		t.Errorf("pod of the container (-message +file):\n%s", d)
	}
	if d := cmp.Diff(web, *starts[1].Container, export); d != "" {
		t.Errorf("container (-message +file):\n%s", d)
	}
}
