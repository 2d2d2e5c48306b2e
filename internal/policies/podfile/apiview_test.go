package podfile_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
)

func diff(want, got any) string {
	return cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true }))
}

// No field of the view is unknown, whatever the pod leaves out.
func TestEmptyPod(t *testing.T) {
	p, containers := podfile.ViewOf(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}})
	for _, v := range []any{p, containers[0]} {
		rv := reflect.ValueOf(v)
		for i := range rv.NumField() {
			name := rv.Type().Field(i).Name
			// only other sources have them
			if rv.Field(i).Kind() != reflect.Struct || name == "Groups" || name == "NamespaceLabels" {
				continue
			}
			if rv.Field(i).FieldByName("state").Uint() == uint64(admission.StateUnknown) {
				t.Errorf("%s is unknown", name)
			}
		}
	}
	if _, set := containers[0].AllowPrivilegeEscalation.Get(); set != admission.StateAbsent {
		t.Error("allowPrivilegeEscalation is not absent")
	}
	if v, ok := containers[0].AllowPrivilegeEscalation.Effective(); !ok || !v {
		t.Error("nil allowPrivilegeEscalation does not count as true")
	}
}

func TestContainersHaveTheValuesOfThePod(t *testing.T) {
	_, containers := podfile.ViewOf(&corev1.Pod{Spec: corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{
			RunAsUser: new(int64(1)), RunAsNonRoot: new(true),
			SELinuxOptions: &corev1.SELinuxOptions{Type: "a_t"},
		},
		InitContainers: []corev1.Container{{Name: "init"}},
		Containers: []corev1.Container{{Name: "web", SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(int64(2)), RunAsNonRoot: new(false), SELinuxOptions: &corev1.SELinuxOptions{User: "u"},
			Privileged:   new(false),
			Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"CHOWN"}},
		}}},
		EphemeralContainers: []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "busybox"},
		}},
	}})
	type summary struct {
		Name    string
		Kind    admission.Kind
		User    int64
		NonRoot bool
		SELinux admission.SELinux
	}
	var got []summary
	for _, c := range containers {
		s := summary{Name: c.Name}
		s.Kind, _ = c.Kind.Get()
		s.User, _ = c.RunAsUser.Get()
		s.NonRoot, _ = c.RunAsNonRoot.Get()
		s.SELinux, _ = c.SELinux.Get()
		got = append(got, s)
	}
	want := []summary{
		{"init", admission.KindInit, 1, true, admission.SELinux{Type: "a_t"}},
		{"web", admission.KindContainer, 2, false, admission.SELinux{User: "u"}},
		{"debug", admission.KindEphemeral, 1, true, admission.SELinux{Type: "a_t"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("containers (-want +got):\n%s", d)
	}
	if containers[1].Privileged != admission.Set(false) || containers[0].Privileged != admission.Absent[bool]() {
		t.Error("an explicit false is not distinguished from nil")
	}
	if list, _ := containers[1].CapabilitiesAdd.Get(); len(list) != 1 || list[0] != "CHOWN" {
		t.Errorf("added capabilities %v; want CHOWN", list)
	}
}

func TestVolumes(t *testing.T) {
	hostPath := admission.Set("hostPath")
	absent := admission.Absent[string]()
	claim := &corev1.PersistentVolumeClaimVolumeSource{ReadOnly: true}
	p, containers := podfile.ViewOf(&corev1.Pod{Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{
			{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
			{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: "//var/log",
				Type: new(corev1.HostPathDirectory),
			}}},
			{Name: "h-nil", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}},
			{Name: "h-empty", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: "/",
				Type: new(corev1.HostPathUnset),
			}}},
			{Name: "c", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}},
			{Name: "i", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{ReadOnly: new(true)}}},
			{Name: "none"},
			{Name: "image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "data:1"}}},
			{Name: "no-image", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}},
		},
		Containers: []corev1.Container{{
			VolumeMounts: []corev1.VolumeMount{
				{Name: "s", MountPath: "secret"},
				{Name: "h", MountPath: "/h", ReadOnly: true, MountPropagation: new(corev1.MountPropagationBidirectional)},
				{Name: "i", MountPath: "/i"},
				{Name: "none", MountPath: "/n"},
				{Name: "absent", MountPath: "/a"},
				{Name: "image", MountPath: "/image", SubPath: "sub"},
				{Name: "no-image", MountPath: "/no-image"},
			},
			VolumeDevices: []corev1.VolumeDevice{{Name: "c", DevicePath: "/dev/c"}},
		}},
	}})
	volume := func(name string) admission.Volume {
		return admission.Volume{Type: admission.Set(name), HostPath: absent, HostPathType: absent}
	}
	unchecked := admission.Volume{Type: hostPath, HostPath: admission.Set("/"), HostPathType: admission.AbsentAs("")}
	host := unchecked
	host.HostPath, host.HostPathType = admission.Set("//var/log"), admission.Set("Directory")
	none := admission.Volume{HostPath: absent, HostPathType: absent}
	volumes, _ := p.Volumes.Get()
	if d := diff([]admission.Volume{
		volume("secret"), host, unchecked, unchecked, volume("persistentVolumeClaim"),
		volume("csi"), none, volume("image"), volume("image"),
	}, volumes); d != "" {
		t.Errorf("volumes (-want +got):\n%s", d)
	}
	mounts, _ := containers[0].Mounts.Get()
	want := []admission.Mount{
		{Volume: volume("secret"), Path: "/secret", ReadOnly: admission.Set(true), Propagation: absent, Image: absent},
		{Volume: host, Path: "/h", ReadOnly: admission.Set(true), Propagation: admission.Set("Bidirectional"), Image: absent},
		{Volume: volume("csi"), Path: "/i", ReadOnly: admission.Set(true), Propagation: absent, Image: absent},
		{Volume: none, Path: "/n", ReadOnly: admission.Set(false), Propagation: absent},
		{Path: "/a", ReadOnly: admission.Set(false), Propagation: absent},
		{
			Volume: volume("image"), Path: "/image", ReadOnly: admission.Set(true), Propagation: absent,
			Image: admission.Set("data:1"),
		},
		{Volume: volume("image"), Path: "/no-image", ReadOnly: admission.Set(true), Propagation: absent},
		{
			Volume: volume("persistentVolumeClaim"), Path: "/dev/c", ReadOnly: admission.Set(true),
			Propagation: absent, Image: absent,
		},
	}
	if d := diff(want, mounts); d != "" {
		t.Errorf("mounts (-want +got):\n%s", d)
	}
}

// Labels and annotations that a kubelet writes are not the tenant's, and a mirror pod is a copy of a static one.
func TestWhatTheKubeletWrites(t *testing.T) {
	p, _ := podfile.ViewOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{"app": "web", "io.kubernetes.pod.namespace": "kube-system"},
		Annotations: map[string]string{
			"note": "x", "kubernetes.io/config.mirror": "1",
			"kubernetes.io/config.source": "file",
		},
	}})
	if labels, _ := p.Labels.Get(); len(labels) != 1 || labels["app"] != "web" {
		t.Errorf("labels %v; want app", labels)
	}
	if annotations, _ := p.Annotations.Get(); len(annotations) != 1 || annotations["note"] != "x" || !p.Static {
		t.Errorf("annotations %v, static %v; want note, true", annotations, p.Static)
	}
	// A tenant can write any annotation on a pod of the API server. A kubelet runs no pod with the one of mirror pods.
	p, _ = podfile.ViewOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{"kubernetes.io/config.source": "file"},
	}})
	if p.Static {
		t.Error("a pod with the annotation of a source is static")
	}
}
