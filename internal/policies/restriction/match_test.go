package restriction_test

import (
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
func spec(s string) string     { return "{spec: {" + s + "}}" }
func context(s string) string  { return spec("securityContext: {" + s + "}") }
func path(s string) string     { return volumes("{hostPath: {path: {" + s + "}}}") }
func registry(s string) string { return images("{registry: {" + s + "}}") }
func add(s string) string      { return security("capabilities: {add: {values: {" + s + "}}}") }
func labels(s string) string   { return meta("labels: {" + s + "}") }

// Changes of a container.
func mounts(m ...admission.Mount) func(*world) { return func(w *world) { w.container.Mounts = set(m) } }

func atNodeMounts(m admission.Mount) func(*world) {
	return func(w *world) { w.options.From, w.container.Mounts = atNode, set([]admission.Mount{m}) }
}
func image(s string) func(*world)        { return func(w *world) { w.container.Image = set(s) } }
func adds(s ...string) func(*world)      { return func(w *world) { w.container.CapabilitiesAdd = set(s) } }
func groups(g ...int64) func(*world)     { return func(w *world) { w.pod.Groups = set(g) } }
func kind(k admission.Kind) func(*world) { return func(w *world) { w.container.Kind = set(k) } }

const secrets = "{spec: {volumes: [{volumeType: {whitelist: [secret]}}]}}"

var noUser, noInitUser = security("runAsUser: {requireNil: true}"),
	spec("initContainers: [{securityContext: {runAsUser: {requireNil: true}}}]")

func twoLines(w *world)        { w.pod.Labels = set(map[string]string{"app": "web\nx"}) }
func privileged(w *world)      { w.container.Privileged = set(true) }
func superPrivileged(w *world) { w.container.SELinux = set(admission.SELinux{Type: "spc_t"}) }
func anyKind(w *world)         { w.container.Kind = admission.Value[admission.Kind]{} }
func unknownVolumes(w *world)  { w.pod.Volumes = admission.Value[[]admission.Volume]{} }
func unknownMounts(w *world)   { w.container.Mounts = admission.Value[[]admission.Mount]{} }
func unknownUser(w *world)     { w.container.RunAsUser = admission.Value[int64]{} }
func unknownImage(w *world)    { w.container.Image = admission.Value[string]{} }
func unmounted(w *world)       { w.pod.Volumes = set([]admission.Volume{mount("", "nfs").Volume}) }
func longValue(w *world) {
	w.pod.Annotations = set(map[string]string{"a": strings.Repeat("x", 256<<10)})
}

// Each line has a name, a spec, changes of the pod that allowed and container return, and a part of the violation, with
// ≠ for "is not allowed", and for "; allowed:" if a text follows; "" means that the pod is admitted.
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
	{"a regex does not match a line", labels("values: {app: {regex: " +
		"'web'}}"), twoLines, "spec.metadata.labels.values[app]"},
	{"a flag does not unanchor a regex", labels("values: {app: {regex: " +
		"'(?m)web$'}}"), twoLines, "spec.metadata.labels.values[app]"},
	{"nil passes", spec("activeDeadlineSeconds: {ranges: [{max: 5}]}"), nil, ""},
	{"forbidNil", spec("activeDeadlineSeconds: {forbidNil: true}"), nil, "nil ≠ any number, not nil"},
	{"allowNil: false", spec("activeDeadlineSeconds: {allowNil: false}"), nil, "nil ≠"},
	{"requireNil", spec("dnsPolicy: {requireNil: true}"), nil, "set ≠ nil"},
	{"requireNil of nil", spec("activeDeadlineSeconds: {requireNil: true}"), nil, ""},
	{"one range is enough", spec("terminationGracePeriodSeconds: {ranges: [{max: 5}, {min: 30, max: 30}]}"), nil, ""},
	{"a bound above", spec("terminationGracePeriodSeconds: {ranges: [{max: 29}]}"), nil, "30 ≠ at most 29"},
	{"a bound below", spec("terminationGracePeriodSeconds: {ranges: [{min: 31}]}"), nil, "30 ≠ at least 31"},
	{"no range", spec("terminationGracePeriodSeconds: {ranges: [{max: 29}, {min: 31, max: 40}]}"), nil, "at most 29, " +
		"31 to 40"},
	{"a boolean", context("hostNetwork: {require: " +
		"false}"), func(w *world) { w.pod.HostNetwork = set(true) }, "hostNetwork: true ≠ false"},
	{"a nil boolean passes", security("readOnlyRootFilesystem: {require: true}"), nil, ""},
	{"a nil boolean that is forbidden", security("readOnlyRootFilesystem: {require: true, forbidNil: " +
		"true}"), nil, "nil ≠"},
	{"nil privilege escalation counts", security("allowPrivilegeEscalation: {require: " +
		"false}"), func(w *world) { w.container.AllowPrivilegeEscalation = admission.AbsentAs(true) }, "true ≠"},
	{"required keys", labels("requiredKeys: [app, tier]"), nil, "the key tier ≠ with the keys app, tier"},
	{"a key whitelist", labels("keyWhitelist: [app]"), nil, `"team" ≠ only the keys app`},
	{"a key blacklist", labels("keyBlacklist: [team]"), nil, "the key team ≠"},
	{"values of keys that are absent", labels("values: {tier: {whitelist: [a]}}"), nil, ""},
	{"values of keys that must be there", labels("values: {tier: {forbidNil: " +
		"true}}"), nil, "spec.metadata.labels.values[tier]: nil ≠"},
	{"values of keys", labels("values: {app: {whitelist: [api]}}"), nil, `metadata.labels.values[app]: "web" ≠ api`},
	{"a mapping that must be empty", labels("requireEmpty: true"), nil, "not empty ≠ empty"},
	{"a mapping that must not be empty", spec("nodeSelector: {forbidEmpty: true}"), nil, "empty ≠ not empty"},
	{"required capabilities", security("capabilities: {drop: {requiredValues: [NET_RAW]}}"), nil, "without NET_RAW ≠ " +
		"with NET_RAW"},
	{"allowed capabilities", add("whitelist: " +
		"[CHOWN]"), adds("CHOWN", "SYS_ADMIN"), `capabilities.add.values: "SYS_ADMIN" ≠ CHOWN`},
	{"a capability in lower case", add("blacklist: [SYS_ADMIN]"), adds("sys_admin"), `"sys_admin" ≠`},
	{"a capability with a prefix", add("blacklist: [SYS_ADMIN]"), adds("CAP_SYS_ADMIN"), `"CAP_SYS_ADMIN" ≠`},
	{"ALL adds a denied capability", add("blacklist: [SYS_ADMIN]"), adds("all"), `"all" ≠ not SYS_ADMIN`},
	{"a dropped capability with a prefix", security("capabilities: {drop: {requiredValues: " +
		"[ALL]}}"), func(w *world) { w.container.CapabilitiesDrop = set([]string{"CAP_ALL"}) }, "without ALL"},
	{"empty capabilities are nil", security("capabilities: {forbidNil: " +
		"true}"), func(w *world) { w.container.CapabilitiesDrop = set([]string{}) }, "nil ≠"},
	{"privileged beside dropped capabilities", security("privileged: {require: false}, capabilities: {drop: " +
		"{requiredValues: [ALL]}}"), privileged, "privileged: true ≠"},
	{"SELinux options", security("seLinuxOptions: {user: {requireNil: true}, type: {whitelist: " +
		"[container_t]}}"), superPrivileged, `seLinuxOptions.type: "spc_t" ≠`},
	{"no SELinux options", security("seLinuxOptions: {forbidNil: true}"), nil, "nil ≠"},
	{"a group", context("supplementalGroups: {ranges: [{min: " +
		"1}]}"), func(w *world) { w.pod.SupplementalGroups = set([]int64{5, 0}) }, "supplementalGroups: 0 ≠ at least 1"},
	{"fsGroup", context("fsGroup: {ranges: [{min: 1}]}"), func(w *world) { w.pod.FSGroup = set[int64](0) }, "fsGroup: " +
		"0 ≠"},

	{"a registry", registry("whitelist: " +
		"[docker.io]"), nil, `"web": spec.spec.containers[0].image[0].registry: "registry.test" ≠ docker.io`},
	{"a registry in upper case", registry("blacklist: " +
		"[Registry.test]"), image("REGISTRY.test/web:1"), `registry: "registry.test" ≠`},
	{"a registry with the default port", registry("blacklist: " +
		"[registry.test]"), image("registry.test:443/web:1"), `registry: "registry.test" ≠`},
	{"another name of Docker Hub", registry("blacklist: " +
		"[docker.io]"), image("registry-1.docker.io/library/web:1"), `registry: "docker.io" ≠`},
	{"another name in the policy", registry("blacklist: [INDEX.docker.io]"), image("web:1"), `registry: "docker.io" ≠`},
	{"a registry with another port", registry("whitelist: " +
		"[registry.test]"), image("registry.test:444/web:1"), `registry: "registry.test:444" ≠`},
	{"a short name", images("{registry: {whitelist: [docker.io]}, image: {whitelist: [library/busybox]}, tag: " +
		"{whitelist: [latest]}}"), image("busybox"), ""},
	{"a digest is not a tag", images("{tag: {whitelist: " +
		"['1']}}"), image("registry.test/web:1@sha256:" + strings.Repeat("a", 64)), `"sha256:aaa`},
	{"digests can be required", images("{tag: {regex: 'sha256:.*'}}"), nil, `tag: "1" ≠`},
	{"one image entry is enough", images("{registry: {whitelist: [docker.io]}}, {image: {regex: 'team-a/.*'}}"), nil, ""},
	{"one container entry is enough", security("runAsUser: {requireNil: true}}}, {securityContext: {runAsUser: " +
		"{ranges: [{min: 1}]}"), nil, ""},
	{"no container entry", security("runAsUser: {requireNil: true}}}, {securityContext: {runAsUser: {ranges: [{min: " +
		"2000}]}"), nil, "spec.spec.containers[0].securityContext.runAsUser"},
	{"an image ID is not a name", registry("whitelist: " +
		"[docker.io]"), image("sha256:7692"), "spec.spec.containers[0].image: the value is not known"},
	{"initContainers default", noUser, kind(admission.KindInit), "spec.spec.containers[0]"},
	{"initContainers", noInitUser, kind(admission.KindInit), "spec.spec.initContainers[0]"},
	{"initContainers restrict no others", noInitUser, nil, ""},
	{"ephemeral containers", noUser, kind(admission.KindEphemeral), "spec.spec.containers[0]"},
	{"an unknown kind matches both lists", spec("containers: [{}], initContainers: [{securityContext: {runAsUser: " +
		"{requireNil: true}}}]"), anyKind, "spec.spec.initContainers[0]"},

	{"a volume type", secrets, mounts(mount("/a", "emptyDir")), `mount "/a": spec.spec.volumes[0].volumeType: "empty`},
	{"a volume that is not mounted", secrets, unmounted, `policy test: spec.spec.volumes[0].volumeType: "nfs" ≠`},
	{"each volume has one entry", volumes("{volumeType: {whitelist: [secret]}}, {volumeType: {whitelist: [emptyDir]}, " +
		"mount: {readOnly: {require: false}}}"), mounts(mount("/a", "emptyDir"), mount("/b", "secret")), ""},
	{"an unknown list of volumes", secrets, unknownVolumes, "spec.spec.volumes[0]: the value is not known; allowed: " +
		"volumes that match the list"},
	{"unknown mounts", secrets, unknownMounts, `container "web": spec.spec.volumes[0]: the value is not known`},
	{"a mount restriction", volumes("{mount: {readOnly: {require: " +
		"true}}}"), mounts(mount("/a", "emptyDir")), "volumes[0].mount.readOnly: false ≠"},
	{"mount propagation", volumes("{mount: {mountPropagation: {blacklist: [Bidirectional]}}}"), func(w *world) {
		m := mount("/a", "emptyDir")
		m.Propagation = set("Bidirectional")
		w.container.Mounts = set([]admission.Mount{m})
	}, `mountPropagation: "Bidirectional" ≠`},
	{"no volumes", volumes("{requireEmpty: true}"), mounts(mount("/a", "emptyDir")), "spec.spec.volumes[0]: not empty " +
		"≠ empty"},
	{"no volumes, and there are none", volumes("{requireEmpty: true}"), nil, ""},
	{"volumes are required", volumes("{forbidEmpty: true}"), nil, "spec.spec.volumes[0]: empty ≠"},
	{"a hostPath", path("whitelist: [/var/log]"), mounts(hostPath("/var/log/pods")), ""},
	{"the folder itself", path("whitelist: [/var/log/]"), mounts(hostPath("/var/log")), ""},
	{"a similar name", path("whitelist: " +
		"[/var/log]"), mounts(hostPath("/var/logs")), `hostPath.path: "/var/logs" ≠ /var/log`},
	{"hostPath with ..", path("whitelist: [/var/log]"), mounts(hostPath("/var/log/../log/pods")), "/var/log/../log/pods"},
	{"a denied hostPath with ..", path("blacklist: [/etc]"), mounts(hostPath("/var/../var/log")), "/var/../var/log"},
	{"a regex of paths with ..", path("regex: '.*'"), mounts(hostPath("/var/..")), "/var/.."},
	{"a hostPath through a process", path("blacklist: " +
		"[/run/containerd]"), mounts(hostPath("//proc/1/./root/run/containerd")), "/root/run/containerd"},
	{"a hostPath through this process", path("whitelist: [/proc]"), mounts(hostPath("/proc/self/cwd")), "/proc/self/cwd"},
	{"a hostPath of another proc file", path("whitelist: [/proc]"), mounts(hostPath("/proc/sys/net")), ""},
	{"a name with dots", path("whitelist: [/var]"), mounts(hostPath("/var/..data/a")), ""},
	{"a relative hostPath", path("blacklist: [/etc]"), mounts(hostPath("etc")), `"etc" ≠`},
	{"doubled slashes", path("blacklist: [/etc]"), mounts(hostPath("//etc//kubernetes/./a/")), "is not allowed; " +
		"allowed: not /etc"},
	{"a folder above a denied one", path("blacklist: [/run/containerd]"), mounts(hostPath("/run")), `"/run" ≠`},
	{"the root of the node", path("blacklist: [/run/containerd]"), mounts(hostPath("/")), `"/" ≠`},
	{"a folder beside a denied one", path("blacklist: [/run/containerd]"), mounts(hostPath("/run/containerd-fuse")), ""},
	{"no hostPath", path("requireNil: " +
		"true"), mounts(mount("/a", "secret"), hostPath("/a")), `mount "/host": spec.spec.volumes[0].hostPath.path: set ≠`},
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
	{"a long value is shortened", meta("annotations: {values: {a: {whitelist: " +
		"[b]}}}"), longValue, strings.Repeat("x", 128) + `"… ≠`},
}

// Shows: 003-11, 003-14, 003-15, 003-16, 003-17, 003-18, 003-19, 003-20, 003-21, 003-22, 003-23, 003-24, 003-25
// Shows: 003-26, 003-27, 003-28, 003-29
func TestMatches(t *testing.T) {
	for _, tc := range matches {
		t.Run(tc.name, func(t *testing.T) {
			want := strings.ReplaceAll(strings.ReplaceAll(tc.want, " ≠ ", " ≠; allowed: "), "≠", "is not allowed")
			w := world{pod: allowed(), container: container("web")}
			if tc.change != nil {
				tc.change(&w)
			}
			d := policy(t, tc.spec).Judge(&w.pod, list{w.container}, w.options)
			switch {
			case tc.want == "" && (!d.Admitted || len(d.Violations) > 0):
				t.Errorf("Judge = %+v; want the pod admitted", d)
			case want != "" && (d.Admitted || len(d.Violations) != 1 || !strings.Contains(d.Violations[0].String()+"\n", want)):
				t.Errorf("Judge = %v, %q; want one violation with %q", d.Admitted, d.Violations, want)
			}
		})
	}
}

// A CRI carries some fields never, and some without the difference of nil and default.
// Shows: 003-26, 003-27, 003-29
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
	both := context("supplementalGroups: {ranges: [{max: 9}]}, fsGroup: {ranges: [{min: 2000}]}")
	const drop, accept = "Drop", "Accept"
	for _, tc := range []struct {
		name   string
		spec   string
		mode   string
		change func(w *world)
		from   restriction.Source
		refuse bool
		admit  bool
	}{
		{"never carried, ignored", spec("restartPolicy: {whitelist: [Never]}"), drop, nil, atNode, false, true},
		{"never carried, refused", spec("restartPolicy: {whitelist: [Always]}"), drop, nil, atNode, true, false},
		{"carried by the pod source", spec("restartPolicy: {whitelist: [Never]}"), drop, nil, withPods, false, false},
		{"never carried of a container", spec("containers: [{imagePullPolicy: {whitelist: " +
			"[Always]}}]"), drop, nil, atNode, false, true},
		{"a default, required", security("privileged: {require: false}"), drop, nil, atNode, true, true},
		{"a default, nil or not is ignored", security("privileged: {require: false, forbidNil: " +
			"true}"), drop, nil, atNode, false, true},
		{"a default, nil or not is refused", security("privileged: {require: false, forbidNil: " +
			"true}"), drop, nil, atNode, true, false},
		{"a default that differs", security("privileged: {require: true}"), drop, nil, atNode, false, false},
		{"a default, not in the pod source", security("privileged: {forbidNil: true}"), drop, nil, withPods, false, false},
		{"what is never carried accepts no pod", spec("restartPolicy: {whitelist: " +
			"[Always]}"), accept, nil, atNode, false, false},
		{"a user given by name", security("runAsUser: {ranges: [{min: 1}]}"), drop, unknownUser, atNode, false, false},
		{"an image name that is missing", registry("blacklist: [x]"), drop, unknownImage, atNode, false, false},
		{"each group fits one range", both, drop, nil, atNode, false, true},
		{"a group that fits none", both, drop, groups(10), atNode, false, false},
		{"only one of the ranges is given", context("fsGroup: {ranges: [{min: 1}]}"), drop, groups(0), atNode, false, false},
		{"groups where both must be nil", context("supplementalGroups: {requireNil: true}, fsGroup: {requireNil: " +
			"true}"), drop, nil, atNode, false, false},
		{"a group that only one may have", context("supplementalGroups: {requireNil: true}, fsGroup: {ranges: [{min: " +
			"1}]}"), drop, nil, atNode, false, true},
		{"no group at all", context("fsGroup: {forbidNil: true}"), drop, groups(), atNode, false, false},
		{"volumes that are not mounted", volumes("{forbidEmpty: true}"), drop, nil, atNode, false, true},
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
			d := load(t, files...).Judge(&w.pod, list{w.container}, options{From: tc.from, Refuse: tc.refuse})
			if d.Admitted != tc.admit {
				t.Errorf("Judge = %+v; want admitted %v", d, tc.admit)
			}
		})
	}
}

// What the CRI carries with containers is judged with containers, and not with the sandbox.
func TestSandboxHasNoContainers(t *testing.T) {
	s := policy(t, spec("terminationGracePeriodSeconds: {ranges: [{max: 5}]}, automountServiceAccountToken: {require: "+
		"false}, volumes: [{requireEmpty: true, forbidEmpty: false}], containers: [{securityContext: {privileged: "+
		"{require: false}}}], securityContext: {hostPID: {require: false}}"))
	pod := allowed()
	pod.TerminationGracePeriodSeconds, pod.AutomountServiceAccountToken, pod.Volumes = admission.Value[int64]{},
		admission.Value[bool]{}, admission.Value[[]admission.Volume]{}
	for _, from := range []restriction.Source{atNode, withPods} {
		options := options{From: from, Refuse: true}
		if d := s.Judge(&pod, nil, options); !d.Admitted {
			t.Errorf("Judge of a sandbox = %v; want it admitted", d.Violations)
		}
		if d := s.Judge(&pod, list{container("web")}, options); d.Admitted {
			t.Error("a container is admitted whose pod has an unknown termination grace")
		}
		host := pod
		host.HostPID = set(true)
		if d := s.Judge(&host, nil, options); d.Admitted {
			t.Error("a sandbox with hostPID is admitted")
		}
	}
}
