package podfile_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/testkit"
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

// viewOf returns the view of a pod whose spec is in YAML.
func viewOf(t *testing.T, spec string) (admission.Pod, []admission.Container) {
	t.Helper()
	var p corev1.Pod
	testkit.Must(t, yaml.UnmarshalStrict([]byte(spec), &p.Spec))
	return podfile.ViewOf(&p)
}

func TestContainersHaveTheValuesOfThePod(t *testing.T) {
	_, containers := viewOf(t, `
securityContext: {runAsUser: 1, runAsNonRoot: true, seLinuxOptions: {type: a_t}}
initContainers: [{name: init}]
containers:
- name: web
  securityContext:
    {runAsUser: 2, runAsNonRoot: false, seLinuxOptions: {user: u}, privileged: false, capabilities: {add: [CHOWN]}}
ephemeralContainers: [{name: debug, image: busybox}]`)
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
	testkit.Equal(t, "containers", got, want)
	if containers[1].Privileged != admission.Set(false) || containers[0].Privileged != admission.Absent[bool]() {
		t.Error("an explicit false is not distinguished from nil")
	}
	if list, _ := containers[1].CapabilitiesAdd.Get(); len(list) != 1 || list[0] != "CHOWN" {
		t.Errorf("added capabilities %v; want CHOWN", list)
	}
}

func TestVolumes(t *testing.T) {
	absent := admission.Absent[string]()
	p, containers := viewOf(t, `
volumes:
- {name: s, secret: {}}
- {name: h, hostPath: {path: //var/log, type: Directory}}
- {name: h-nil, hostPath: {path: /}}
- {name: h-empty, hostPath: {path: /, type: ""}}
- {name: c, persistentVolumeClaim: {claimName: c, readOnly: true}}
- {name: i, csi: {driver: d, readOnly: true}}
- {name: none}
- {name: image, image: {reference: "data:1"}}
- {name: no-image, image: {}}
containers:
- name: web
  volumeMounts:
  - {name: s, mountPath: secret}
  - {name: h, mountPath: /h, readOnly: true, mountPropagation: Bidirectional}
  - {name: i, mountPath: /i}
  - {name: none, mountPath: /n}
  - {name: absent, mountPath: /a}
  - {name: image, mountPath: /image, subPath: sub}
  - {name: no-image, mountPath: /no-image}
  volumeDevices: [{name: c, devicePath: /dev/c}]`)
	volume := func(name string) admission.Volume {
		return admission.Volume{Type: admission.Set(name), HostPath: absent, HostPathType: absent}
	}
	unchecked := volume("hostPath")
	unchecked.HostPath, unchecked.HostPathType = admission.Set("/"), admission.AbsentAs("")
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
	at := func(path string, v admission.Volume, image admission.Value[string]) admission.Mount {
		return admission.Mount{Volume: v, Path: path, ReadOnly: admission.Set(true), Propagation: absent, Image: image}
	}
	var unknown admission.Value[string]
	want := []admission.Mount{
		at("/secret", volume("secret"), absent), at("/h", host, absent), at("/i", volume("csi"), absent),
		at("/n", none, unknown), at("/a", admission.Volume{}, unknown),
		at("/image", volume("image"), admission.Set("data:1")),
		at("/no-image", volume("image"), unknown), at("/dev/c", volume("persistentVolumeClaim"), absent),
	}
	want[1].Propagation = admission.Set("Bidirectional")
	want[3].ReadOnly, want[4].ReadOnly = admission.Set(false), admission.Set(false)
	if d := diff(want, mounts); d != "" {
		t.Errorf("mounts (-want +got):\n%s", d)
	}
}

// Labels and annotations that a kubelet writes are not the tenant's, and a mirror pod is a copy of a static one.
func TestWhatTheKubeletWrites(t *testing.T) {
	p, _ := podfile.ViewOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{"app": "web", "io.kubernetes.pod.namespace": "kube-system"},
		Annotations: map[string]string{
			"note": "x", "kubernetes.io/config.mirror": "1", "kubernetes.io/config.source": "file",
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
