package criview_test

import (
	stdcmp "cmp"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/criview"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
)

const (
	root  = "/var/lib/kubelet"
	uid   = "8f6e0a6e-0000-4000-8000-000000000001"
	other = "8f6e0a6e-0000-4000-8000-000000000002"
)

func sandbox() *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid, Namespace: "team-a", Name: "web"},
		Labels: map[string]string{
			"app": "web", "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "team-a", "io.kubernetes.pod.uid": uid,
		},
		Annotations: map[string]string{
			"note": "x", "a.image-policy.k8s.io/b": "c",
			"kubernetes.io/config.seen": "2026-01-02T03:04:05.6Z", "kubernetes.io/config.source": "api",
		},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{
				Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER,
			},
			SupplementalGroups: []int64{2000, 5},
		}},
	}
}

// containerWith returns the configuration of a container that uses every default, with mounts.
func containerWith(mounts ...*runtimeapi.Mount) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "web"},
		Image:    &runtimeapi.ImageSpec{Image: "sha256:12", UserSpecifiedImage: "registry.test/web:1"},
		Mounts:   mounts,
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{
				Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER,
			},
			RunAsUser: &runtimeapi.Int64Value{Value: 0},
		}},
	}
}

func diff(want, got any) string {
	return cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true }))
}

// Shows: 003-22, 003-26
func TestSandbox(t *testing.T) {
	want := admission.Pod{
		UID: uid, Namespace: "team-a", Name: "web", Labels: admission.Set(map[string]string{"app": "web"}),
		Annotations:       admission.Set(map[string]string{"note": "x", "a.image-policy.k8s.io/b": "c"}),
		ReviewAnnotations: admission.Set(map[string]string{"a.image-policy.k8s.io/b": "c"}),
		HostNetwork:       admission.Set(true), HostPID: admission.Set(false), HostIPC: admission.Set(false),
		ShareProcessNamespace: admission.Effective(false), Groups: admission.Set([]int64{2000, 5}),
	}
	if d := diff(want, criview.Sandbox(sandbox())); d != "" {
		t.Errorf("Sandbox (-want +got):\n%s", d)
	}
	file := sandbox()
	file.Annotations["kubernetes.io/config.source"] = "file"
	if !criview.Sandbox(file).Static {
		t.Error("a pod from a file is not static")
	}
}

func TestContainerWithDefaults(t *testing.T) {
	p, c := criview.Container(sandbox(), containerWith(), root)
	want := admission.Container{
		Name: "web", Image: admission.Set("registry.test/web:1"), Privileged: admission.Effective(false),
		ReadOnlyRootFilesystem: admission.Effective(false), AllowPrivilegeEscalation: admission.Effective(true),
		RunAsUser: admission.Set[int64](0), RunAsNonRoot: admission.Effective(false), RunAsGroup: admission.Absent[int64](),
		CapabilitiesAdd: admission.Absent[[]string](), CapabilitiesDrop: admission.Absent[[]string](),
		SELinux: admission.Absent[admission.SELinux](), Mounts: admission.Set([]admission.Mount{}),
	}
	if d := diff(want, c); d != "" {
		t.Errorf("Container (-want +got):\n%s", d)
	}
	if got := p.TerminationGracePeriodSeconds; got != admission.Absent[int64]() {
		t.Errorf("termination grace %+v without the annotation; want it absent", got)
	}
	if got := p.AutomountServiceAccountToken; got != admission.Effective(false) {
		t.Errorf("a token %+v without a mount; want false", got)
	}
}

// Shows: 003-25
func TestContainerWithEverything(t *testing.T) {
	config := containerWith(&runtimeapi.Mount{
		ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount/",
		HostPath:      root + "/pods/" + uid + "/volumes/kubernetes.io~projected/token", Readonly: true,
	})
	config.Annotations = map[string]string{"io.kubernetes.pod.terminationGracePeriod": "30"}
	sc := config.Linux.SecurityContext
	sc.Privileged, sc.ReadonlyRootfs, sc.NoNewPrivs = true, true, true
	sc.RunAsUser, sc.RunAsGroup = &runtimeapi.Int64Value{Value: 1000}, &runtimeapi.Int64Value{Value: 7}
	sc.SelinuxOptions = &runtimeapi.SELinuxOption{Type: "spc_t"}
	sc.Capabilities = &runtimeapi.Capability{
		AddCapabilities: []string{"CHOWN"}, AddAmbientCapabilities: []string{"KILL"}, DropCapabilities: []string{"ALL"},
	}
	sc.SupplementalGroups = []int64{9}
	sc.NamespaceOptions = &runtimeapi.NamespaceOption{
		Pid: runtimeapi.NamespaceMode_POD, Ipc: runtimeapi.NamespaceMode_NODE,
	}
	p, c := criview.Container(sandbox(), config, root)
	want := admission.Container{
		Name: "web", Image: admission.Set("registry.test/web:1"),
		Privileged: admission.Set(true), ReadOnlyRootFilesystem: admission.Set(true),
		AllowPrivilegeEscalation: admission.Set(false),
		RunAsUser:                admission.Set[int64](1000), RunAsNonRoot: admission.Effective(true),
		RunAsGroup:      admission.Set[int64](7),
		CapabilitiesAdd: admission.Set([]string{"CHOWN", "KILL"}), CapabilitiesDrop: admission.Set([]string{"ALL"}),
		SELinux: admission.Set(admission.SELinux{Type: "spc_t"}),
		Mounts: admission.Set([]admission.Mount{{
			Volume: admission.Volume{
				Type: admission.Set("projected"), HostPath: admission.Absent[string](), HostPathType: admission.Absent[string](),
			},
			Path: "/var/run/secrets/kubernetes.io/serviceaccount/", ReadOnly: admission.Set(true),
			Propagation: admission.Effective("None"), Image: admission.Absent[string](),
		}}),
	}
	if d := diff(want, c); d != "" {
		t.Errorf("Container (-want +got):\n%s", d)
	}
	if p.HostNetwork != admission.Set(true) || p.HostIPC != admission.Set(true) ||
		p.ShareProcessNamespace != admission.Set(true) {
		t.Errorf("namespaces %+v, %+v, %+v; want those of the sandbox and of the container", p.HostNetwork, p.HostIPC,
			p.ShareProcessNamespace)
	}
	if p.TerminationGracePeriodSeconds != admission.Set[int64](30) ||
		p.AutomountServiceAccountToken != admission.Effective(true) {
		t.Errorf("termination grace %+v, token %+v; want 30 and true", p.TerminationGracePeriodSeconds,
			p.AutomountServiceAccountToken)
	}
	if g, _ := p.Groups.Effective(); len(g) != 1 || g[0] != 9 {
		t.Errorf("groups %v; want those of the container", g)
	}
}

func TestUnknownForThisPod(t *testing.T) {
	config := containerWith()
	config.Image.UserSpecifiedImage = "" // a client that is not a kubelet
	config.Annotations = map[string]string{"io.kubernetes.pod.terminationGracePeriod": "soon"}
	sc := config.Linux.SecurityContext
	sc.RunAsUser, sc.RunAsUsername = nil, "web"
	sc.NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET}
	box := sandbox()
	box.Linux = nil
	p, c := criview.Container(box, config, root)
	if c.Image != (admission.Value[string]{}) || c.RunAsUser != (admission.Value[int64]{}) ||
		c.RunAsNonRoot != (admission.Value[bool]{}) || c.Kind != (admission.Value[admission.Kind]{}) {
		t.Errorf("image %+v, user %+v, non-root %+v, kind %+v; want all unknown", c.Image, c.RunAsUser, c.RunAsNonRoot,
			c.Kind)
	}
	if p.TerminationGracePeriodSeconds != (admission.Value[int64]{}) ||
		p.ShareProcessNamespace != (admission.Value[bool]{}) {
		t.Errorf("termination grace %+v, shared processes %+v; want both unknown", p.TerminationGracePeriodSeconds,
			p.ShareProcessNamespace)
	}
}

// Volume types come from the folder of this pod and from no path that only looks like it.
// Shows: 003-28
func TestVolumes(t *testing.T) {
	const own = root + "/pods/" + uid
	host := func(p string) admission.Volume {
		return admission.Volume{Type: admission.Set("hostPath"), HostPath: admission.Set(p)}
	}
	volume := func(name string) admission.Volume {
		return admission.Volume{
			Type: admission.Set(name), HostPath: admission.Absent[string](), HostPathType: admission.Absent[string](),
		}
	}
	volumes := map[string]admission.Volume{
		own + "/volumes/kubernetes.io~secret/s":          volume("secret"),
		own + "/volumes/kubernetes.io~empty-dir/e":       volume("emptyDir"),
		own + "/volumes/kubernetes.io~configmap/c":       volume("configMap"),
		own + "/volumes/kubernetes.io~csi/pv-1/mount":    volume("csi"),
		own + "/volumes/kubernetes.io~local-volume/pv-1": volume("persistentVolumeClaim"),
		own + "/volumes/example.com~driver/v":            volume("flexVolume"),
		own + "/volume-subpaths/v/web/0":                 {},
	}
	for _, path := range []string{
		"", "/var/log/pods", "//var//log", own,
		root + "/pods/" + other + "/volumes/kubernetes.io~secret/s", root + "/pods/" + other + "/volume-subpaths/v/web/0",
		own + "/volumes/../../" + other + "/volumes/kubernetes.io~a/b", own + "/volumes/kubernetes.io~secret/../../../x",
		own + "//volumes/kubernetes.io~secret/s", own + "/volumes/kubernetes.io~secret/s/",
		own + "/volumes/kubernetes.io~secret/s/deeper", own + "/volumes/kubernetes.io~secret",
		own + "/volumes/kubernetes.io~secret/s/mount", own + "x/volumes/kubernetes.io~secret/s",
		own + "/volumesx/kubernetes.io~secret/s", "/tmp" + own + "/volumes/kubernetes.io~secret/s",
		"/var/lib/kubelet2/pods/" + uid + "/volumes/kubernetes.io~secret/s",
	} {
		volumes[path] = host(path)
	}
	for path, want := range volumes {
		_, c := criview.Container(sandbox(), containerWith(&runtimeapi.Mount{ContainerPath: "/v", HostPath: path}), root)
		mounts, _ := c.Mounts.Effective()
		if len(mounts) != 1 || mounts[0].Volume != want {
			t.Errorf("%s is %+v; want %+v", path, mounts, want)
		}
	}
	_, c := criview.Container(sandbox(), containerWith(&runtimeapi.Mount{HostPath: own + "/volumes/plugin/v"},
		&runtimeapi.Mount{HostPath: own + "/volumes/kubernetes.io~new/v"}), root)
	mounts, _ := c.Mounts.Effective()
	for _, m := range mounts {
		if m.Type != (admission.Value[string]{}) {
			t.Errorf("a plugin that is not known has the type %+v; want it unknown", m.Type)
		}
	}
}

// A UID in a message can be anything; only a name of a folder makes a folder of the pod.
func TestUIDThatIsAPath(t *testing.T) {
	for _, uid := range []string{"", ".", "..", "../pods/" + other, "a/b", "/"} {
		box := sandbox()
		box.Metadata.Uid = uid
		path := root + "/pods/" + other + "/volumes/kubernetes.io~secret/s"
		_, c := criview.Container(box, containerWith(&runtimeapi.Mount{HostPath: path},
			&runtimeapi.Mount{HostPath: root + "/pods/volumes/kubernetes.io~secret/s"}), root)
		mounts, _ := c.Mounts.Effective()
		for _, m := range mounts {
			if m.Type != admission.Set("hostPath") {
				t.Errorf("UID %q: %+v; want a hostPath", uid, m)
			}
		}
	}
}

func TestFilesOfTheKubeletAreNotVolumes(t *testing.T) {
	const own = root + "/pods/" + uid
	_, c := criview.Container(sandbox(), containerWith(
		&runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: own + "/etc-hosts"},
		&runtimeapi.Mount{ContainerPath: "/dev/termination-log", HostPath: own + "/containers/web/1a2b3c4d"},
	), root)
	if mounts, _ := c.Mounts.Effective(); len(mounts) != 0 {
		t.Errorf("mounts %+v; want none", mounts)
	}
	_, c = criview.Container(sandbox(), containerWith(
		&runtimeapi.Mount{ContainerPath: "/x", HostPath: own + "/etc-hosts"},
		&runtimeapi.Mount{ContainerPath: "/y", HostPath: own + "/containers/other/1a2b3c4d"},
		&runtimeapi.Mount{ContainerPath: "/z", HostPath: own + "/containers/web/a/b"},
	), root)
	if mounts, _ := c.Mounts.Effective(); len(mounts) != 3 {
		t.Errorf("mounts %+v; want the three that a kubelet does not send", mounts)
	}
}

func TestImageVolumesAndBlockDevices(t *testing.T) {
	config := containerWith(&runtimeapi.Mount{
		ContainerPath: "/i", Image: &runtimeapi.ImageSpec{Image: "sha256:1"}, Readonly: true,
	},
		&runtimeapi.Mount{ContainerPath: "/both", Image: &runtimeapi.ImageSpec{}, HostPath: "/etc"},
		&runtimeapi.Mount{ContainerPath: "/named", Image: &runtimeapi.ImageSpec{
			Image: "sha256:1", UserSpecifiedImage: "data:1",
		}, ImageSubPath: "sub"},
		&runtimeapi.Mount{
			ContainerPath: "/etc/hosts", Image: &runtimeapi.ImageSpec{Image: "data:2"},
			HostPath: root + "/pods/" + uid + "/etc-hosts",
		},
		&runtimeapi.Mount{ContainerPath: "/hex", Image: &runtimeapi.ImageSpec{Image: "abcdef"}})
	config.Devices = []*runtimeapi.Device{
		{
			ContainerPath: "/dev/block", HostPath: root + "/pods/" + uid + "/volumeDevices/kubernetes.io~csi/pv-1",
			Permissions: "r",
		},
		{ContainerPath: "/dev/gpu", HostPath: "/dev/gpu0", Permissions: "mrw"},
	}
	_, c := criview.Container(sandbox(), config, root)
	mounts, _ := c.Mounts.Effective()
	var types []string
	var images []admission.Value[string]
	for _, m := range mounts {
		name, _ := m.Type.Get()
		types, images = append(types, name), append(images, m.Image)
	}
	testkit.Equal(t, "types", types, []string{"image", "hostPath", "image", "hostPath", "image", "csi"})
	// An image ID does not count as the name in the pod.
	unknown := admission.Value[string]{}
	if d := diff([]admission.Value[string]{
		unknown, unknown, admission.Set("data:1"), admission.Set("data:2"), unknown,
		admission.Absent[string](),
	}, images); d != "" {
		t.Errorf("names of images (-want +got):\n%s", d)
	}
}

// restricted returns the preset of the level Restricted.
func restricted(tb testing.TB) *restriction.Set {
	tb.Helper()
	preset := testkit.Value(restriction.Preset("restricted"))(tb)
	return testkit.Value(restriction.Load([]restriction.File{{Name: "restricted", Data: preset}}))(tb)
}

// What a kubelet sends for a pod of the level Restricted is admitted by the preset, and with one privilege it is not.
func TestPresetRestrictedAtTheNode(t *testing.T) {
	set := restricted(t)
	type security = runtimeapi.LinuxContainerSecurityContext
	for name, tc := range map[string]struct {
		change func(sc *security) // nil: none
		path   string             // of the first mount, if it is another one
		want   string
	}{
		"the pod":              {nil, "", ""},
		"privileged":           {func(sc *security) { sc.Privileged = true }, "", "securityContext.privileged"},
		"the user of an image": {func(sc *security) { sc.RunAsUser.Value = 0 }, "", "securityContext.runAs"},
		"a user by name": {
			func(sc *security) { sc.RunAsUser, sc.RunAsUsername = nil, "web" }, "", "the value is not known",
		},
		"the network of the node": {
			func(sc *security) { sc.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE }, "",
			"securityContext.hostNetwork",
		},
		"a Secret of another pod": {nil, other + "/volumes/kubernetes.io~secret/s", `"hostPath" is not allowed`},
		"a subPath":               {nil, uid + "/volume-subpaths/s/web/0", "volumeType: the value is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			box := sandbox()
			box.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_POD
			path := stdcmp.Or(tc.path, uid+"/volumes/kubernetes.io~secret/s")
			config := containerWith(&runtimeapi.Mount{ContainerPath: "/s", HostPath: root + "/pods/" + path},
				&runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: root + "/pods/" + uid + "/etc-hosts"})
			sc := config.Linux.SecurityContext
			sc.NamespaceOptions.Network, sc.RunAsUser.Value, sc.NoNewPrivs = runtimeapi.NamespaceMode_POD, 1000, true
			sc.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}
			if tc.change != nil {
				tc.change(sc)
			}
			p, c := criview.Container(box, config, root)
			d := set.Judge(&p, []admission.Container{c}, restriction.Options{From: restriction.Node})
			if d.Admitted != (tc.want == "") || !d.Admitted && !strings.Contains(d.Violations[0].String(), tc.want) {
				t.Errorf("Judge = %v, %v; want a violation with %q", d.Admitted, d.Violations, tc.want)
			}
		})
	}
}

// Any message gives a view that can be judged, and a container of a message without content is denied by the preset
// restricted.
func FuzzCRIMessages(f *testing.F) {
	for _, c := range []*runtimeapi.ContainerConfig{containerWith(&runtimeapi.Mount{HostPath: "/etc"}), {}} {
		raw := testkit.Value(proto.Marshal(&runtimeapi.CreateContainerRequest{SandboxConfig: sandbox(), Config: c}))(f)
		f.Add(raw)
	}
	set := restricted(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var req runtimeapi.CreateContainerRequest
		if proto.Unmarshal(raw, &req) != nil {
			return
		}
		p, c := criview.Container(req.GetSandboxConfig(), req.GetConfig(), root)
		d := set.Judge(&p, []admission.Container{c}, restriction.Options{From: restriction.Node})
		if d.Admitted && (req.GetConfig().GetLinux().GetSecurityContext().GetPrivileged() ||
			!req.GetConfig().GetLinux().GetSecurityContext().GetNoNewPrivs()) {
			t.Errorf("a container that can gain privileges is admitted: %v", &req)
		}
	})
}
