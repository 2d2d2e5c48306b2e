package restriction_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// A world is a pod with one container that a test changes.
type world struct {
	pod       admission.Pod
	container admission.Container
	options   restriction.Options
}

func set[T any](v T) admission.Value[T] { return admission.Set(v) }

// Specs of policies, in YAML.
func security(s string) string { return "{spec: {containers: [{securityContext: {" + s + "}}]}}" }
func images(s string) string   { return "{spec: {containers: [{image: [" + s + "]}]}}" }
func volumes(s string) string  { return "{spec: {volumes: [" + s + "]}}" }
func meta(s string) string     { return "{metadata: {" + s + "}}" }

// Changes of a container.
func mounts(m ...admission.Mount) func(*world) { return func(w *world) { w.container.Mounts = set(m) } }

func atNodeMounts(m admission.Mount) func(*world) {
	return func(w *world) { w.options.From, w.container.Mounts = atNode, set([]admission.Mount{m}) }
}
func image(s string) func(*world)        { return func(w *world) { w.container.Image = set(s) } }
func adds(s ...string) func(*world)      { return func(w *world) { w.container.CapabilitiesAdd = set(s) } }
func kind(k admission.Kind) func(*world) { return func(w *world) { w.container.Kind = set(k) } }

// Each line has a name, a spec, changes of the pod that allowed and container return, and a part of the violation, with
// ≠ for "is not allowed; allowed:"; "" means that the pod is admitted.
var matches = []struct {
	name   string
	spec   string
	change func(w *world)
	want   string
}{
	{"an empty spec matches", "{}", nil, ""},
	{"a whitelist", meta("name: {whitelist: [web]}"), nil, ""},
	{"not in the whitelist", meta("name: {whitelist: [webs]}"), nil, `policy test: spec.metadata.name: "web" ≠ webs`},
	{"in the blacklist", meta("name: {whitelist: [web], blacklist: [web]}"), nil, `"web" ≠ web; not web`},
	{"a regex matches the whole value", meta("name: {regex: 'w|web'}"), nil, ""},
	{"an empty value is allowed", meta("name: {whitelist: ['']}"), nil, "allowed: \n"},
	{"a regex does not match a part", meta("name: {regex: 'we'}"), nil, "allowed: matching we"},
	{
		"a regex does not match a line", meta("labels: {values: {app: {regex: 'web'}}}"),
		func(w *world) { w.pod.Labels = set(map[string]string{"app": "web\nx"}) }, "spec.metadata.labels.values[app]",
	},
	{
		"a flag does not unanchor a regex", meta("labels: {values: {app: {regex: '(?m)web$'}}}"),
		func(w *world) { w.pod.Labels = set(map[string]string{"app": "web\nx"}) }, "spec.metadata.labels.values[app]",
	},
	{"nil passes", "{spec: {activeDeadlineSeconds: {ranges: [{max: 5}]}}}", nil, ""},
	{"forbidNil", "{spec: {activeDeadlineSeconds: {forbidNil: true}}}", nil, "nil ≠ any number, not nil"},
	{"allowNil: false", "{spec: {activeDeadlineSeconds: {allowNil: false}}}", nil, "nil is not allowed"},
	{"requireNil", "{spec: {dnsPolicy: {requireNil: true}}}", nil, "set ≠ nil"},
	{"requireNil of nil", "{spec: {activeDeadlineSeconds: {requireNil: true}}}", nil, ""},
	{"one range is enough", "{spec: {terminationGracePeriodSeconds: {ranges: [{max: 5}, {min: 30, max: 30}]}}}", nil, ""},
	{"a bound above", "{spec: {terminationGracePeriodSeconds: {ranges: [{max: 29}]}}}", nil, "30 ≠ at most 29"},
	{"a bound below", "{spec: {terminationGracePeriodSeconds: {ranges: [{min: 31}]}}}", nil, "30 ≠ at least 31"},
	{"no range has it", "{spec: {terminationGracePeriodSeconds: {ranges: [{max: 29}, {min: 31, max: " +
		"40}]}}}", nil, "allowed: at most 29, 31 to 40"},
	{"a boolean", "{spec: {securityContext: {hostNetwork: {require: " +
		"false}}}}", func(w *world) { w.pod.HostNetwork = set(true) }, "securityContext.hostNetwork: true ≠ false"},
	{"a nil boolean passes", security("readOnlyRootFilesystem: {require: true}"), nil, ""},
	{"a nil boolean that is forbidden", security("readOnlyRootFilesystem: {require: true, forbidNil: true}"), nil, "nil " +
		"is not allowed"},
	{"nil privilege escalation counts", security("allowPrivilegeEscalation: {require: " +
		"false}"), func(w *world) { w.container.AllowPrivilegeEscalation = admission.AbsentAs(true) }, "true is not allowed"},
	{"required keys", meta("labels: {requiredKeys: [app, tier]}"), nil, "the key tier ≠ with the keys app, tier"},
	{"a key whitelist", meta("labels: {keyWhitelist: [app]}"), nil, `"team" ≠ only the keys app`},
	{"a key blacklist", meta("labels: {keyBlacklist: [team]}"), nil, "the key team is not allowed"},
	{"values of keys that are absent", meta("labels: {values: {tier: {whitelist: [a]}}}"), nil, ""},
	{"values of keys that must be there", meta("labels: {values: {tier: {forbidNil: " +
		"true}}}"), nil, "spec.metadata.labels.values[tier]: nil is not allowed"},
	{"values of keys", meta("labels: {values: {app: {whitelist: [api]}}}"), nil, `spec.metadata.labels.values[app]: ` +
		`"web" ≠ api`},
	{"a mapping that must be empty", meta("labels: {requireEmpty: true}"), nil, "not empty ≠ empty"},
	{"a mapping that must not be empty", "{spec: {nodeSelector: {forbidEmpty: true}}}", nil, "empty ≠ not empty"},
	{"required capabilities", security("capabilities: {drop: {requiredValues: [NET_RAW]}}"), nil, "without NET_RAW ≠ " +
		"with NET_RAW"},
	{"allowed capabilities", security("capabilities: {add: {values: {whitelist: " +
		"[CHOWN]}}}"), adds("CHOWN", "SYS_ADMIN"), `capabilities.add.values: "SYS_ADMIN" ≠ CHOWN`},
	{"a capability in lower case", security("capabilities: {add: {values: {blacklist: " +
		"[SYS_ADMIN]}}}"), adds("sys_admin"), `"sys_admin" is not allowed`},
	{"a capability with a prefix", security("capabilities: {add: {values: {blacklist: " +
		"[SYS_ADMIN]}}}"), adds("CAP_SYS_ADMIN"), `"CAP_SYS_ADMIN" is not allowed`},
	{"ALL adds a denied capability", security("capabilities: {add: {values: {blacklist: " +
		"[SYS_ADMIN]}}}"), adds("all"), `"all" ≠ not SYS_ADMIN`},
	{"a dropped capability with a prefix", security("capabilities: {drop: {requiredValues: " +
		"[ALL]}}"), func(w *world) { w.container.CapabilitiesDrop = set([]string{"CAP_ALL"}) }, "without ALL"},
	{"empty capabilities are nil", security("capabilities: {forbidNil: " +
		"true}"), func(w *world) { w.container.CapabilitiesDrop = set([]string{}) }, "nil is not allowed"},
	{
		"privileged beside dropped capabilities", security("privileged: {require: false}, capabilities: {drop: " +
			"{requiredValues: [ALL]}}"), func(w *world) { w.container.Privileged = set(true) },
		"privileged: true is not allowed",
	},
	{
		"SELinux options", security("seLinuxOptions: {user: {requireNil: true}, type: {whitelist: [container_t]}}"),
		func(w *world) { w.container.SELinux = set(admission.SELinux{Type: "spc_t"}) },
		`seLinuxOptions.type: "spc_t" is not allowed`,
	},
	{"no SELinux options", security("seLinuxOptions: {forbidNil: true}"), nil, "nil is not allowed"},
	{"a group", "{spec: {securityContext: {supplementalGroups: {ranges: [{min: " +
		"1}]}}}}", func(w *world) { w.pod.SupplementalGroups = set([]int64{5, 0}) }, "supplementalGroups: 0 ≠ at least 1"},
	{"fsGroup", "{spec: {securityContext: {fsGroup: {ranges: [{min: " +
		"1}]}}}}", func(w *world) { w.pod.FSGroup = set[int64](0) }, "fsGroup: 0 is not allowed"},

	{"a registry", images("{registry: {whitelist: [docker.io]}}"), nil, `container "web": ` +
		`spec.spec.containers[0].image[0].registry: "registry.test" ≠ docker.io`},
	{"a registry in upper case", images("{registry: {blacklist: " +
		"[Registry.test]}}"), image("REGISTRY.test/web:1"), `registry: "registry.test" is not allowed`},
	{"a registry with the default port", images("{registry: {blacklist: " +
		"[registry.test]}}"), image("registry.test:443/web:1"), `registry: "registry.test" is not allowed`},
	{"another name of Docker Hub", images("{registry: {blacklist: " +
		"[docker.io]}}"), image("registry-1.docker.io/library/web:1"), `registry: "docker.io" is not allowed`},
	{"another name in the policy", images("{registry: {blacklist: [INDEX.docker.io]}}"), image("web:1"), `registry: ` +
		`"docker.io" is not allowed`},
	{"a registry with another port", images("{registry: {whitelist: " +
		"[registry.test]}}"), image("registry.test:444/web:1"), `registry: "registry.test:444" is not allowed`},
	{"a short name", images("{registry: {whitelist: [docker.io]}, image: {whitelist: [library/busybox]}, tag: " +
		"{whitelist: [latest]}}"), image("busybox"), ""},
	{"a digest is not a tag", images("{tag: {whitelist: " +
		"['1']}}"), image("registry.test/web:1@sha256:" + strings.Repeat("a", 64)), `"sha256:aaa`},
	{"digests can be required", images("{tag: {regex: 'sha256:.*'}}"), nil, `tag: "1" is not allowed`},
	{"one image entry is enough", images("{registry: {whitelist: [docker.io]}}, {image: {regex: 'team-a/.*'}}"), nil, ""},
	{"one container entry is enough", security("runAsUser: {requireNil: true}}}, {securityContext: {runAsUser: {ranges: " +
		"[{min: 1}]}"), nil, ""},
	{"no container entry", security("runAsUser: {requireNil: true}}}, {securityContext: {runAsUser: {ranges: [{min: " +
		"2000}]}"), nil, "spec.spec.containers[0].securityContext.runAsUser"},
	{"an image ID is not a name", images("{registry: {whitelist: " +
		"[docker.io]}}"), image("sha256:7692"), "spec.spec.containers[0].image: the value is not known"},
	{"initContainers default", security("runAsUser: {requireNil: " +
		"true}"), kind(admission.KindInit), "spec.spec.containers[0]"},
	{"initContainers", "{spec: {initContainers: [{securityContext: {runAsUser: {requireNil: " +
		"true}}}]}}", kind(admission.KindInit), "spec.spec.initContainers[0]"},
	{"initContainers restrict no others", "{spec: {initContainers: [{securityContext: {runAsUser: {requireNil: " +
		"true}}}]}}", nil, ""},
	{"ephemeral containers", security("runAsUser: {requireNil: " +
		"true}"), kind(admission.KindEphemeral), "spec.spec.containers[0]"},
	{
		"an unknown kind matches both lists", "{spec: {containers: [{}], initContainers: [{securityContext: {runAsUser: " +
			"{requireNil: true}}}]}}", func(w *world) { w.container.Kind = admission.Value[admission.Kind]{} },
		"spec.spec.initContainers[0]",
	},

	{"a volume type", volumes("{volumeType: {whitelist: [secret]}}"), mounts(mount("/a", "emptyDir")), `mount "/a": ` +
		`spec.spec.volumes[0].volumeType: "emptyDir" ≠ secret`},
	{
		"a volume that is not mounted", volumes("{volumeType: {whitelist: [secret]}}"),
		func(w *world) { w.pod.Volumes = set([]admission.Volume{mount("", "nfs").Volume}) },
		`policy test: spec.spec.volumes[0].volumeType: "nfs" is not allowed`,
	},
	{"each volume has one entry", volumes("{volumeType: {whitelist: [secret]}}, {volumeType: {whitelist: [emptyDir]}, " +
		"mount: {readOnly: {require: false}}}"), mounts(mount("/a", "emptyDir"), mount("/b", "secret")), ""},
	{
		"an unknown list of volumes", volumes("{volumeType: {whitelist: [secret]}}"),
		func(w *world) { w.pod.Volumes = admission.Value[[]admission.Volume]{} },
		"spec.spec.volumes[0]: the value is not known; allowed: volumes that match the list",
	},
	{
		"unknown mounts", volumes("{volumeType: {whitelist: [secret]}}"),
		func(w *world) { w.container.Mounts = admission.Value[[]admission.Mount]{} },
		`container "web": spec.spec.volumes[0]: the value is not known`,
	},
	{"a mount restriction", volumes("{mount: {readOnly: {require: " +
		"true}}}"), mounts(mount("/a", "emptyDir")), "volumes[0].mount.readOnly: false is not allowed"},
	{"mount propagation", volumes("{mount: {mountPropagation: {blacklist: [Bidirectional]}}}"), func(w *world) {
		m := mount("/a", "emptyDir")
		m.Propagation = set("Bidirectional")
		w.container.Mounts = set([]admission.Mount{m})
	}, `mountPropagation: "Bidirectional" is not allowed`},
	{"no volumes", volumes("{requireEmpty: true}"), mounts(mount("/a", "emptyDir")), "spec.spec.volumes[0]: " +
		"not empty ≠ " +
		"empty"},
	{"no volumes, and there are none", volumes("{requireEmpty: true}"), nil, ""},
	{"volumes are required", volumes("{forbidEmpty: true}"), nil, "spec.spec.volumes[0]: empty is not allowed"},
	{"a hostPath", volumes("{hostPath: {path: {whitelist: [/var/log]}}}"), mounts(hostPath("/var/log/pods")), ""},
	{"the folder itself", volumes("{hostPath: {path: {whitelist: [/var/log/]}}}"), mounts(hostPath("/var/log")), ""},
	{"a similar name", volumes("{hostPath: {path: {whitelist: " +
		"[/var/log]}}}"), mounts(hostPath("/var/logs")), `hostPath.path: "/var/logs" ≠ /var/log`},
	{"hostPath with ..", volumes("{hostPath: {path: {whitelist: " +
		"[/var/log]}}}"), mounts(hostPath("/var/log/../log/pods")), "/var/log/../log/pods"},
	{"a denied hostPath with ..", volumes("{hostPath: {path: {blacklist: " +
		"[/etc]}}}"), mounts(hostPath("/var/../var/log")), "/var/../var/log"},
	{"a regex of paths with ..", volumes("{hostPath: {path: {regex: '.*'}}}"), mounts(hostPath("/var/..")), "/var/.."},
	{"a hostPath through a process", volumes("{hostPath: {path: {blacklist: " +
		"[/run/containerd]}}}"), mounts(hostPath("//proc/1/./root/run/containerd")), "/root/run/containerd"},
	{"a hostPath through this process", volumes("{hostPath: {path: {whitelist: " +
		"[/proc]}}}"), mounts(hostPath("/proc/self/cwd")), "/proc/self/cwd"},
	{"a hostPath of another proc file", volumes("{hostPath: {path: {whitelist: " +
		"[/proc]}}}"), mounts(hostPath("/proc/sys/net")), ""},
	{"a name with dots", volumes("{hostPath: {path: {whitelist: [/var]}}}"), mounts(hostPath("/var/..data/a")), ""},
	{"a relative hostPath", volumes("{hostPath: {path: {blacklist: [/etc]}}}"), mounts(hostPath("etc")), `"etc" is not ` +
		`allowed`},
	{"doubled slashes", volumes("{hostPath: {path: {blacklist: " +
		"[/etc]}}}"), mounts(hostPath("//etc//kubernetes/./a/")), "is not allowed; allowed: not /etc"},
	{"a folder above a denied one", volumes("{hostPath: {path: {blacklist: " +
		"[/run/containerd]}}}"), mounts(hostPath("/run")), `"/run" is not allowed`},
	{"the root of the node", volumes("{hostPath: {path: {blacklist: [/run/containerd]}}}"), mounts(hostPath("/")), `"/" ` +
		`is not allowed`},
	{"a folder beside a denied one", volumes("{hostPath: {path: {blacklist: " +
		"[/run/containerd]}}}"), mounts(hostPath("/run/containerd-fuse")), ""},
	{
		"no hostPath", volumes("{hostPath: {path: {requireNil: true}}}"), mounts(mount("/a", "secret"), hostPath("/a")),
		`mount "/host": spec.spec.volumes[0].hostPath.path: set is not allowed`,
	},
	{"the type of a hostPath", volumes("{hostPath: {type: {forbidNil: true}}}"), func(w *world) {
		m := hostPath("/a")
		m.HostPathType = set("Socket")
		w.container.Mounts = set([]admission.Mount{m})
	}, ""},
	{
		"a subPath at the node", volumes("{volumeType: {blacklist: [hostPath]}}"), atNodeMounts(admission.Mount{Path: "/a"}),
		`mount "/a": spec.spec.volumes[0].volumeType: the value is not known; allowed: not hostPath`,
	},
	{"an unknown type", volumes("{volumeType: {whitelist: ['', " +
		"secret]}}"), atNodeMounts(admission.Mount{Path: "/a"}), "volumeType: the value is not known; allowed: secret"},
	{
		"a long value is shortened", meta("annotations: {values: {a: {whitelist: [b]}}}"),
		func(w *world) { w.pod.Annotations = set(map[string]string{"a": strings.Repeat("x", 256<<10)}) },
		strings.Repeat("x", 128) + `"… is not allowed`,
	},
}

func TestMatches(t *testing.T) {
	for _, tc := range matches {
		t.Run(tc.name, func(t *testing.T) {
			want := strings.ReplaceAll(tc.want, " ≠ ", " is not allowed; allowed: ")
			w := world{pod: allowed(), container: container("web")}
			if tc.change != nil {
				tc.change(&w)
			}
			d := policy(t, tc.spec).Judge(&w.pod, []admission.Container{w.container}, w.options)
			switch {
			case tc.want == "" && (!d.Admitted || len(d.Violations) > 0):
				t.Errorf("Judge = %+v; want the pod admitted", d)
			case want != "" && (d.Admitted || len(d.Violations) != 1 ||
				!strings.Contains(d.Violations[0].String()+"\n", want)):
				t.Errorf("Judge = %v, %q; want one violation with %q", d.Admitted, d.Violations, want)
			}
		})
	}
}

// A CRI carries some fields never, and some without the difference of nil and default.
func TestUnknownFields(t *testing.T) {
	node := func(w *world) {
		w.options.From = atNode
		w.pod.RestartPolicy, w.pod.Volumes = admission.Value[string]{}, admission.Value[[]admission.Volume]{}
		w.container.Privileged = admission.Effective(false)
		w.container.RunAsNonRoot = admission.Effective(true)
		w.container.ImagePullPolicy = admission.Value[string]{}
		w.pod.FSGroup, w.pod.SupplementalGroups = admission.Value[int64]{}, admission.Value[[]int64]{}
		w.pod.Groups = set([]int64{7, 2000})
	}
	privileged := security("privileged: %s")
	groups := "{spec: {securityContext: {supplementalGroups: {ranges: [{max: 9}]}, fsGroup: {ranges: [{min: 2000}]}}}}"
	for _, tc := range []struct {
		name   string
		spec   string
		mode   string
		change func(w *world)
		from   restriction.Source
		refuse bool
		admit  bool
	}{
		{"never carried, ignored", "{spec: {restartPolicy: {whitelist: [Never]}}}", "Drop", nil, atNode, false, true},
		{"never carried, refused", "{spec: {restartPolicy: {whitelist: [Always]}}}", "Drop", nil, atNode, true, false},
		{"carried by the pod source", "{spec: {restartPolicy: {whitelist: [Never]}}}", "Drop", nil, withPods, false, false},
		{"never carried of a container", "{spec: {containers: [{imagePullPolicy: {whitelist: " +
			"[Always]}}]}}", "Drop", nil, atNode, false, true},
		{"a default, required", fmt.Sprintf(privileged, "{require: false}"), "Drop", nil, atNode, true, true},
		{"a default, nil or not is ignored", fmt.Sprintf(privileged, "{require: false, forbidNil: "+
			"true}"), "Drop", nil, atNode, false, true},
		{"a default, nil or not is refused", fmt.Sprintf(privileged, "{require: false, forbidNil: "+
			"true}"), "Drop", nil, atNode, true, false},
		{"a default that differs", fmt.Sprintf(privileged, "{require: true}"), "Drop", nil, atNode, false, false},
		{"a default, not in the pod source", fmt.Sprintf(privileged, "{forbidNil: "+
			"true}"), "Drop", nil, withPods, false, false},
		{"what is never carried accepts no pod", "{spec: {restartPolicy: {whitelist: " +
			"[Always]}}}", "Accept", nil, atNode, false, false},
		{"a user given by name", security("runAsUser: {ranges: [{min: " +
			"1}]}"), "Drop", func(w *world) { w.container.RunAsUser = admission.Value[int64]{} }, atNode, false, false},
		{"an image name that is missing", images("{registry: {blacklist: " +
			"[x]}}"), "Drop", func(w *world) { w.container.Image = admission.Value[string]{} }, atNode, false, false},
		{"each group fits one range", groups, "Drop", nil, atNode, false, true},
		{"a group that fits none", groups, "Drop", func(w *world) { w.pod.Groups = set([]int64{10}) }, atNode, false, false},
		{"only one of the ranges is given", "{spec: {securityContext: {fsGroup: {ranges: [{min: " +
			"1}]}}}}", "Drop", func(w *world) { w.pod.Groups = set([]int64{0}) }, atNode, false, false},
		{"groups where both must be nil", "{spec: {securityContext: {supplementalGroups: {requireNil: true}, fsGroup: " +
			"{requireNil: true}}}}", "Drop", nil, atNode, false, false},
		{"a group that only one may have", "{spec: {securityContext: {supplementalGroups: {requireNil: true}, fsGroup: " +
			"{ranges: [{min: 1}]}}}}", "Drop", nil, atNode, false, true},
		{"no group at all", "{spec: {securityContext: {fsGroup: {forbidNil: " +
			"true}}}}", "Drop", func(w *world) { w.pod.Groups = set([]int64(nil)) }, atNode, false, false},
		{"volumes that are not mounted", volumes("{forbidEmpty: true}"), "Drop", nil, atNode, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := world{pod: allowed(), container: container("web")}
			node(&w)
			if tc.change != nil {
				tc.change(&w)
			}
			files := []restriction.File{file("test", "{mode: "+tc.mode+"}", tc.spec)}
			if tc.mode == "Accept" {
				files = append(files, file("deny", "", meta("name: {blacklist: [web]}")))
			}
			d := load(t, files...).Judge(&w.pod, []admission.Container{w.container},
				restriction.Options{From: tc.from, Refuse: tc.refuse})
			if d.Admitted != tc.admit {
				t.Errorf("Judge = %+v; want admitted %v", d, tc.admit)
			}
		})
	}
}

// What the CRI carries with containers is judged with containers, and not with the sandbox.
func TestSandboxHasNoContainers(t *testing.T) {
	s := policy(t, "{spec: {terminationGracePeriodSeconds: {ranges: [{max: 5}]}, automountServiceAccountToken: "+
		"{require: false}, volumes: [{requireEmpty: true, forbidEmpty: false}], "+
		"containers: [{securityContext: {privileged: {require: false}}}], securityContext: {hostPID: {require: false}}}}")
	pod := allowed()
	pod.TerminationGracePeriodSeconds, pod.AutomountServiceAccountToken, pod.Volumes = admission.Value[int64]{},
		admission.Value[bool]{}, admission.Value[[]admission.Volume]{}
	for _, from := range []restriction.Source{atNode, withPods} {
		options := restriction.Options{From: from, Refuse: true}
		if d := s.Judge(&pod, nil, options); !d.Admitted {
			t.Errorf("Judge of a sandbox = %v; want it admitted", d.Violations)
		}
		if d := s.Judge(&pod, []admission.Container{container("web")}, options); d.Admitted {
			t.Error("a container is admitted whose pod has an unknown termination grace")
		}
		host := pod
		host.HostPID = set(true)
		if d := s.Judge(&host, nil, options); d.Admitted {
			t.Error("a sandbox with hostPID is admitted")
		}
	}
}
