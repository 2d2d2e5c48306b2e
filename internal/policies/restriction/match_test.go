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

// Each line has a spec, changes of the pod that allowed and container return, and a part of the violation; "" means
// that the pod is admitted.
var matches = map[string]struct {
	spec   string
	change func(w *world)
	want   string
}{
	"an empty spec matches":                  {"{}", nil, ""},
	"a whitelist":                            {"{metadata: {name: {whitelist: [web]}}}", nil, ""},
	"not in the whitelist":                   {"{metadata: {name: {whitelist: [webs]}}}", nil, `policy test: spec.metadata.name: "web" is not allowed; allowed: webs`},
	"in the blacklist":                       {"{metadata: {name: {whitelist: [web], blacklist: [web]}}}", nil, `"web" is not allowed; allowed: web; not web`},
	"a regex matches the whole value":        {"{metadata: {name: {regex: 'w|web'}}}", nil, ""},
	"an empty value is allowed":              {"{metadata: {name: {whitelist: ['']}}}", nil, "allowed: \n"},
	"a regex does not match a part":          {"{metadata: {name: {regex: 'we'}}}", nil, "allowed: matching we"},
	"a regex does not match a line":          {"{metadata: {labels: {values: {app: {regex: 'web'}}}}}", func(w *world) { w.pod.Labels = set(map[string]string{"app": "web\nx"}) }, "spec.metadata.labels.values[app]"},
	"a flag does not unanchor a regex":       {"{metadata: {labels: {values: {app: {regex: '(?m)web$'}}}}}", func(w *world) { w.pod.Labels = set(map[string]string{"app": "web\nx"}) }, "spec.metadata.labels.values[app]"},
	"nil passes":                             {"{spec: {activeDeadlineSeconds: {ranges: [{max: 5}]}}}", nil, ""},
	"forbidNil":                              {"{spec: {activeDeadlineSeconds: {forbidNil: true}}}", nil, "nil is not allowed; allowed: any number, not nil"},
	"allowNil: false":                        {"{spec: {activeDeadlineSeconds: {allowNil: false}}}", nil, "nil is not allowed"},
	"requireNil":                             {"{spec: {dnsPolicy: {requireNil: true}}}", nil, "set is not allowed; allowed: nil"},
	"requireNil of nil":                      {"{spec: {activeDeadlineSeconds: {requireNil: true}}}", nil, ""},
	"one range is enough":                    {"{spec: {terminationGracePeriodSeconds: {ranges: [{max: 5}, {min: 30, max: 30}]}}}", nil, ""},
	"a bound above":                          {"{spec: {terminationGracePeriodSeconds: {ranges: [{max: 29}]}}}", nil, "30 is not allowed; allowed: at most 29"},
	"a bound below":                          {"{spec: {terminationGracePeriodSeconds: {ranges: [{min: 31}]}}}", nil, "30 is not allowed; allowed: at least 31"},
	"no range has it":                        {"{spec: {terminationGracePeriodSeconds: {ranges: [{max: 29}, {min: 31, max: 40}]}}}", nil, "allowed: at most 29, 31 to 40"},
	"a boolean":                              {"{spec: {securityContext: {hostNetwork: {require: false}}}}", func(w *world) { w.pod.HostNetwork = set(true) }, "spec.spec.securityContext.hostNetwork: true is not allowed; allowed: false"},
	"a nil boolean passes":                   {"{spec: {containers: [{securityContext: {readOnlyRootFilesystem: {require: true}}}]}}", nil, ""},
	"a nil boolean that is forbidden":        {"{spec: {containers: [{securityContext: {readOnlyRootFilesystem: {require: true, forbidNil: true}}}]}}", nil, "nil is not allowed"},
	"nil privilege escalation counts":        {"{spec: {containers: [{securityContext: {allowPrivilegeEscalation: {require: false}}}]}}", func(w *world) { w.container.AllowPrivilegeEscalation = admission.AbsentAs(true) }, "true is not allowed"},
	"required keys":                          {"{metadata: {labels: {requiredKeys: [app, tier]}}}", nil, "without the key tier is not allowed; allowed: with the keys app, tier"},
	"a key whitelist":                        {"{metadata: {labels: {keyWhitelist: [app]}}}", nil, `"team" is not allowed; allowed: only the keys app`},
	"a key blacklist":                        {"{metadata: {labels: {keyBlacklist: [team]}}}", nil, "the key team is not allowed"},
	"values of keys that are absent":         {"{metadata: {labels: {values: {tier: {whitelist: [a]}}}}}", nil, ""},
	"values of keys that must be there":      {"{metadata: {labels: {values: {tier: {forbidNil: true}}}}}", nil, "spec.metadata.labels.values[tier]: nil is not allowed"},
	"values of keys":                         {"{metadata: {labels: {values: {app: {whitelist: [api]}}}}}", nil, `spec.metadata.labels.values[app]: "web" is not allowed; allowed: api`},
	"a mapping that must be empty":           {"{metadata: {labels: {requireEmpty: true}}}", nil, "not empty is not allowed; allowed: empty"},
	"a mapping that must not be empty":       {"{spec: {nodeSelector: {forbidEmpty: true}}}", nil, "empty is not allowed; allowed: not empty"},
	"required capabilities":                  {"{spec: {containers: [{securityContext: {capabilities: {drop: {requiredValues: [NET_RAW]}}}}]}}", nil, "without NET_RAW is not allowed; allowed: with NET_RAW"},
	"allowed capabilities":                   {"{spec: {containers: [{securityContext: {capabilities: {add: {values: {whitelist: [CHOWN]}}}}}]}}", func(w *world) { w.container.CapabilitiesAdd = set([]string{"CHOWN", "SYS_ADMIN"}) }, `capabilities.add.values: "SYS_ADMIN" is not allowed; allowed: CHOWN`},
	"a capability in lower case":             {"{spec: {containers: [{securityContext: {capabilities: {add: {values: {blacklist: [SYS_ADMIN]}}}}}]}}", func(w *world) { w.container.CapabilitiesAdd = set([]string{"sys_admin"}) }, `"sys_admin" is not allowed`},
	"a capability with a prefix":             {"{spec: {containers: [{securityContext: {capabilities: {add: {values: {blacklist: [SYS_ADMIN]}}}}}]}}", func(w *world) { w.container.CapabilitiesAdd = set([]string{"CAP_SYS_ADMIN"}) }, `"CAP_SYS_ADMIN" is not allowed`},
	"ALL adds a denied capability":           {"{spec: {containers: [{securityContext: {capabilities: {add: {values: {blacklist: [SYS_ADMIN]}}}}}]}}", func(w *world) { w.container.CapabilitiesAdd = set([]string{"all"}) }, `"all" is not allowed; allowed: not SYS_ADMIN`},
	"a dropped capability with a prefix":     {"{spec: {containers: [{securityContext: {capabilities: {drop: {requiredValues: [ALL]}}}}]}}", func(w *world) { w.container.CapabilitiesDrop = set([]string{"CAP_ALL"}) }, "without ALL"},
	"empty capabilities are nil":             {"{spec: {containers: [{securityContext: {capabilities: {forbidNil: true}}}]}}", func(w *world) { w.container.CapabilitiesDrop = set([]string{}) }, "nil is not allowed"},
	"privileged beside dropped capabilities": {"{spec: {containers: [{securityContext: {privileged: {require: false}, capabilities: {drop: {requiredValues: [ALL]}}}}]}}", func(w *world) { w.container.Privileged = set(true) }, "privileged: true is not allowed"},
	"SELinux options":                        {"{spec: {containers: [{securityContext: {seLinuxOptions: {user: {requireNil: true}, type: {whitelist: [container_t]}}}}]}}", func(w *world) { w.container.SELinux = set(admission.SELinux{Type: "spc_t"}) }, `seLinuxOptions.type: "spc_t" is not allowed`},
	"no SELinux options":                     {"{spec: {containers: [{securityContext: {seLinuxOptions: {forbidNil: true}}}]}}", nil, "nil is not allowed"},
	"a group":                                {"{spec: {securityContext: {supplementalGroups: {ranges: [{min: 1}]}}}}", func(w *world) { w.pod.SupplementalGroups = set([]int64{5, 0}) }, "supplementalGroups: 0 is not allowed; allowed: at least 1"},
	"fsGroup":                                {"{spec: {securityContext: {fsGroup: {ranges: [{min: 1}]}}}}", func(w *world) { w.pod.FSGroup = set[int64](0) }, "fsGroup: 0 is not allowed"},

	"a registry":                         {"{spec: {containers: [{image: [{registry: {whitelist: [docker.io]}}]}]}}", nil, `container "web": spec.spec.containers[0].image[0].registry: "registry.test" is not allowed; allowed: docker.io`},
	"a registry in upper case":           {"{spec: {containers: [{image: [{registry: {blacklist: [Registry.test]}}]}]}}", func(w *world) { w.container.Image = set("REGISTRY.test/web:1") }, `registry: "registry.test" is not allowed`},
	"a registry with the default port":   {"{spec: {containers: [{image: [{registry: {blacklist: [registry.test]}}]}]}}", func(w *world) { w.container.Image = set("registry.test:443/web:1") }, `registry: "registry.test" is not allowed`},
	"another name of Docker Hub":         {"{spec: {containers: [{image: [{registry: {blacklist: [docker.io]}}]}]}}", func(w *world) { w.container.Image = set("registry-1.docker.io/library/web:1") }, `registry: "docker.io" is not allowed`},
	"another name in the policy":         {"{spec: {containers: [{image: [{registry: {blacklist: [INDEX.docker.io]}}]}]}}", func(w *world) { w.container.Image = set("web:1") }, `registry: "docker.io" is not allowed`},
	"a registry with another port":       {"{spec: {containers: [{image: [{registry: {whitelist: [registry.test]}}]}]}}", func(w *world) { w.container.Image = set("registry.test:444/web:1") }, `registry: "registry.test:444" is not allowed`},
	"a short name":                       {"{spec: {containers: [{image: [{registry: {whitelist: [docker.io]}, image: {whitelist: [library/busybox]}, tag: {whitelist: [latest]}}]}]}}", func(w *world) { w.container.Image = set("busybox") }, ""},
	"a digest is not a tag":              {"{spec: {containers: [{image: [{tag: {whitelist: ['1']}}]}]}}", func(w *world) { w.container.Image = set("registry.test/web:1@sha256:" + strings.Repeat("a", 64)) }, `"sha256:aaa`},
	"digests can be required":            {"{spec: {containers: [{image: [{tag: {regex: 'sha256:.*'}}]}]}}", nil, `tag: "1" is not allowed`},
	"one image entry is enough":          {"{spec: {containers: [{image: [{registry: {whitelist: [docker.io]}}, {image: {regex: 'team-a/.*'}}]}]}}", nil, ""},
	"one container entry is enough":      {"{spec: {containers: [{securityContext: {runAsUser: {requireNil: true}}}, {securityContext: {runAsUser: {ranges: [{min: 1}]}}}]}}", nil, ""},
	"no container entry":                 {"{spec: {containers: [{securityContext: {runAsUser: {requireNil: true}}}, {securityContext: {runAsUser: {ranges: [{min: 2000}]}}}]}}", nil, "spec.spec.containers[0].securityContext.runAsUser"},
	"an image ID is not a name":          {"{spec: {containers: [{image: [{registry: {whitelist: [docker.io]}}]}]}}", func(w *world) { w.container.Image = set("sha256:7692") }, "spec.spec.containers[0].image: the value is not known"},
	"initContainers default":             {"{spec: {containers: [{securityContext: {runAsUser: {requireNil: true}}}]}}", func(w *world) { w.container.Kind = set(admission.KindInit) }, "spec.spec.containers[0]"},
	"initContainers":                     {"{spec: {initContainers: [{securityContext: {runAsUser: {requireNil: true}}}]}}", func(w *world) { w.container.Kind = set(admission.KindInit) }, "spec.spec.initContainers[0]"},
	"initContainers restrict no others":  {"{spec: {initContainers: [{securityContext: {runAsUser: {requireNil: true}}}]}}", nil, ""},
	"ephemeral containers":               {"{spec: {containers: [{securityContext: {runAsUser: {requireNil: true}}}]}}", func(w *world) { w.container.Kind = set(admission.KindEphemeral) }, "spec.spec.containers[0]"},
	"an unknown kind matches both lists": {"{spec: {containers: [{}], initContainers: [{securityContext: {runAsUser: {requireNil: true}}}]}}", func(w *world) { w.container.Kind = admission.Value[admission.Kind]{} }, "spec.spec.initContainers[0]"},

	"a volume type":                {"{spec: {volumes: [{volumeType: {whitelist: [secret]}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{mount("/a", "emptyDir")}) }, `mount "/a": spec.spec.volumes[0].volumeType: "emptyDir" is not allowed; allowed: secret`},
	"a volume that is not mounted": {"{spec: {volumes: [{volumeType: {whitelist: [secret]}}]}}", func(w *world) { w.pod.Volumes = set([]admission.Volume{mount("", "nfs").Volume}) }, `policy test: spec.spec.volumes[0].volumeType: "nfs" is not allowed`},
	"each volume has one entry": {"{spec: {volumes: [{volumeType: {whitelist: [secret]}}, {volumeType: {whitelist: [emptyDir]}, mount: {readOnly: {require: false}}}]}}", func(w *world) {
		w.container.Mounts = set([]admission.Mount{mount("/a", "emptyDir"), mount("/b", "secret")})
	}, ""},
	"an unknown list of volumes": {"{spec: {volumes: [{volumeType: {whitelist: [secret]}}]}}", func(w *world) { w.pod.Volumes = admission.Value[[]admission.Volume]{} }, "spec.spec.volumes[0]: the value is not known; allowed: volumes that match the list"},
	"unknown mounts":             {"{spec: {volumes: [{volumeType: {whitelist: [secret]}}]}}", func(w *world) { w.container.Mounts = admission.Value[[]admission.Mount]{} }, `container "web": spec.spec.volumes[0]: the value is not known`},
	"a mount restriction":        {"{spec: {volumes: [{mount: {readOnly: {require: true}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{mount("/a", "emptyDir")}) }, "volumes[0].mount.readOnly: false is not allowed"},
	"mount propagation": {"{spec: {volumes: [{mount: {mountPropagation: {blacklist: [Bidirectional]}}}]}}", func(w *world) {
		m := mount("/a", "emptyDir")
		m.Propagation = set("Bidirectional")
		w.container.Mounts = set([]admission.Mount{m})
	}, `mountPropagation: "Bidirectional" is not allowed`},
	"no volumes":                     {"{spec: {volumes: [{requireEmpty: true}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{mount("/a", "emptyDir")}) }, "spec.spec.volumes[0]: not empty is not allowed; allowed: empty"},
	"no volumes, and there are none": {"{spec: {volumes: [{requireEmpty: true}]}}", nil, ""},
	"volumes are required":           {"{spec: {volumes: [{forbidEmpty: true}]}}", nil, "spec.spec.volumes[0]: empty is not allowed"},
	"a hostPath":                     {"{spec: {volumes: [{hostPath: {path: {whitelist: [/var/log]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/var/log/pods")}) }, ""},
	"the folder itself":              {"{spec: {volumes: [{hostPath: {path: {whitelist: [/var/log/]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/var/log")}) }, ""},
	"a similar name":                 {"{spec: {volumes: [{hostPath: {path: {whitelist: [/var/log]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/var/logs")}) }, `hostPath.path: "/var/logs" is not allowed; allowed: /var/log`},
	"hostPath with ..":               {"{spec: {volumes: [{hostPath: {path: {whitelist: [/var/log]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/var/log/../log/pods")}) }, "/var/log/../log/pods"},
	"a denied hostPath with ..":      {"{spec: {volumes: [{hostPath: {path: {blacklist: [/etc]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/var/../var/log")}) }, "/var/../var/log"},
	"a regex of paths with ..":       {"{spec: {volumes: [{hostPath: {path: {regex: '.*'}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/var/..")}) }, "/var/.."},
	"a hostPath through a process": {"{spec: {volumes: [{hostPath: {path: {blacklist: [/run/containerd]}}}]}}", func(w *world) {
		w.container.Mounts = set([]admission.Mount{hostPath("//proc/1/./root/run/containerd")})
	}, "/root/run/containerd"},
	"a hostPath through this process": {"{spec: {volumes: [{hostPath: {path: {whitelist: [/proc]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/proc/self/cwd")}) }, "/proc/self/cwd"},
	"a hostPath of another proc file": {"{spec: {volumes: [{hostPath: {path: {whitelist: [/proc]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/proc/sys/net")}) }, ""},
	"a name with dots":                {"{spec: {volumes: [{hostPath: {path: {whitelist: [/var]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/var/..data/a")}) }, ""},
	"a relative hostPath":             {"{spec: {volumes: [{hostPath: {path: {blacklist: [/etc]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("etc")}) }, `"etc" is not allowed`},
	"doubled slashes":                 {"{spec: {volumes: [{hostPath: {path: {blacklist: [/etc]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("//etc//kubernetes/./a/")}) }, "is not allowed; allowed: not /etc"},
	"a folder above a denied one":     {"{spec: {volumes: [{hostPath: {path: {blacklist: [/run/containerd]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/run")}) }, `"/run" is not allowed`},
	"the root of the node":            {"{spec: {volumes: [{hostPath: {path: {blacklist: [/run/containerd]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/")}) }, `"/" is not allowed`},
	"a folder beside a denied one":    {"{spec: {volumes: [{hostPath: {path: {blacklist: [/run/containerd]}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{hostPath("/run/containerd-fuse")}) }, ""},
	"no hostPath":                     {"{spec: {volumes: [{hostPath: {path: {requireNil: true}}}]}}", func(w *world) { w.container.Mounts = set([]admission.Mount{mount("/a", "secret"), hostPath("/a")}) }, `mount "/host": spec.spec.volumes[0].hostPath.path: set is not allowed`},
	"the type of a hostPath": {"{spec: {volumes: [{hostPath: {type: {forbidNil: true}}}]}}", func(w *world) {
		m := hostPath("/a")
		m.HostPathType = set("Socket")
		w.container.Mounts = set([]admission.Mount{m})
	}, ""},
	"a subPath at the node": {"{spec: {volumes: [{volumeType: {blacklist: [hostPath]}}]}}", func(w *world) {
		w.options.From = restriction.Node
		m := mount("/a", "")
		m.Volume = admission.Volume{}
		w.container.Mounts = set([]admission.Mount{m})
	}, `mount "/a": spec.spec.volumes[0].volumeType: the value is not known; allowed: not hostPath`},
	"a long value is shortened": {"{metadata: {annotations: {values: {a: {whitelist: [b]}}}}}", func(w *world) { w.pod.Annotations = set(map[string]string{"a": strings.Repeat("x", 256<<10)}) }, strings.Repeat("x", 128) + `"… is not allowed`},
}

func TestMatches(t *testing.T) {
	for name, tc := range matches {
		t.Run(name, func(t *testing.T) {
			w := world{pod: allowed(), container: container("web")}
			if tc.change != nil {
				tc.change(&w)
			}
			d := policy(t, tc.spec).Judge(&w.pod, []admission.Container{w.container}, w.options)
			switch {
			case tc.want == "" && (!d.Admitted || len(d.Violations) > 0):
				t.Errorf("Judge = %+v; want the pod admitted", d)
			case tc.want != "" && (d.Admitted || len(d.Violations) != 1 || !strings.Contains(d.Violations[0].String()+"\n", tc.want)):
				t.Errorf("Judge = %v, %q; want one violation with %q", d.Admitted, d.Violations, tc.want)
			}
		})
	}
}

// A CRI carries some fields never, and some without the difference of nil and default.
func TestUnknownFields(t *testing.T) {
	node := func(w *world) {
		w.options.From = restriction.Node
		w.pod.RestartPolicy, w.pod.Volumes = admission.Value[string]{}, admission.Value[[]admission.Volume]{}
		w.container.Privileged = admission.Effective(false)
		w.container.RunAsNonRoot = admission.Effective(true)
		w.container.ImagePullPolicy = admission.Value[string]{}
		w.pod.FSGroup, w.pod.SupplementalGroups = admission.Value[int64]{}, admission.Value[[]int64]{}
		w.pod.Groups = set([]int64{7, 2000})
	}
	privileged := "{spec: {containers: [{securityContext: {privileged: %s}}]}}"
	groups := "{spec: {securityContext: {supplementalGroups: {ranges: [{max: 9}]}, fsGroup: {ranges: [{min: 2000}]}}}}"
	for name, tc := range map[string]struct {
		spec   string
		mode   string
		change func(w *world)
		from   restriction.Source
		refuse bool
		admit  bool
	}{
		"never carried, ignored":               {"{spec: {restartPolicy: {whitelist: [Never]}}}", "Drop", nil, restriction.Node, false, true},
		"never carried, refused":               {"{spec: {restartPolicy: {whitelist: [Always]}}}", "Drop", nil, restriction.Node, true, false},
		"carried by the pod source":            {"{spec: {restartPolicy: {whitelist: [Never]}}}", "Drop", nil, restriction.NodeWithPodSource, false, false},
		"never carried of a container":         {"{spec: {containers: [{imagePullPolicy: {whitelist: [Always]}}]}}", "Drop", nil, restriction.Node, false, true},
		"a default, required":                  {fmt.Sprintf(privileged, "{require: false}"), "Drop", nil, restriction.Node, true, true},
		"a default, nil or not is ignored":     {fmt.Sprintf(privileged, "{require: false, forbidNil: true}"), "Drop", nil, restriction.Node, false, true},
		"a default, nil or not is refused":     {fmt.Sprintf(privileged, "{require: false, forbidNil: true}"), "Drop", nil, restriction.Node, true, false},
		"a default that differs":               {fmt.Sprintf(privileged, "{require: true}"), "Drop", nil, restriction.Node, false, false},
		"a default, not in the pod source":     {fmt.Sprintf(privileged, "{forbidNil: true}"), "Drop", nil, restriction.NodeWithPodSource, false, false},
		"what is never carried accepts no pod": {"{spec: {restartPolicy: {whitelist: [Always]}}}", "Accept", nil, restriction.Node, false, false},
		"a user given by name":                 {"{spec: {containers: [{securityContext: {runAsUser: {ranges: [{min: 1}]}}}]}}", "Drop", func(w *world) { w.container.RunAsUser = admission.Value[int64]{} }, restriction.Node, false, false},
		"an image name that is missing":        {"{spec: {containers: [{image: [{registry: {blacklist: [x]}}]}]}}", "Drop", func(w *world) { w.container.Image = admission.Value[string]{} }, restriction.Node, false, false},
		"each group fits one range":            {groups, "Drop", nil, restriction.Node, false, true},
		"a group that fits none":               {groups, "Drop", func(w *world) { w.pod.Groups = set([]int64{10}) }, restriction.Node, false, false},
		"only one of the ranges is given":      {"{spec: {securityContext: {fsGroup: {ranges: [{min: 1}]}}}}", "Drop", func(w *world) { w.pod.Groups = set([]int64{0}) }, restriction.Node, false, false},
		"groups where both must be nil":        {"{spec: {securityContext: {supplementalGroups: {requireNil: true}, fsGroup: {requireNil: true}}}}", "Drop", nil, restriction.Node, false, false},
		"a group that only one may have":       {"{spec: {securityContext: {supplementalGroups: {requireNil: true}, fsGroup: {ranges: [{min: 1}]}}}}", "Drop", nil, restriction.Node, false, true},
		"no group at all":                      {"{spec: {securityContext: {fsGroup: {forbidNil: true}}}}", "Drop", func(w *world) { w.pod.Groups = set([]int64(nil)) }, restriction.Node, false, false},
		"volumes that are not mounted":         {"{spec: {volumes: [{forbidEmpty: true}]}}", "Drop", nil, restriction.Node, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := world{pod: allowed(), container: container("web")}
			node(&w)
			if tc.change != nil {
				tc.change(&w)
			}
			files := []restriction.File{file("test", "{mode: "+tc.mode+"}", tc.spec)}
			if tc.mode == "Accept" {
				files = append(files, file("deny", "", "{metadata: {name: {blacklist: [web]}}}"))
			}
			d := load(t, files...).Judge(&w.pod, []admission.Container{w.container}, restriction.Options{From: tc.from, Refuse: tc.refuse})
			if d.Admitted != tc.admit {
				t.Errorf("Judge = %+v; want admitted %v", d, tc.admit)
			}
		})
	}
}

// What the CRI carries with containers is judged with containers, and not with the sandbox.
func TestSandboxHasNoContainers(t *testing.T) {
	s := policy(t, "{spec: {terminationGracePeriodSeconds: {ranges: [{max: 5}]}, automountServiceAccountToken: {require: false}, volumes: [{requireEmpty: true, forbidEmpty: false}], "+
		"containers: [{securityContext: {privileged: {require: false}}}], securityContext: {hostPID: {require: false}}}}")
	pod := allowed()
	pod.TerminationGracePeriodSeconds, pod.AutomountServiceAccountToken, pod.Volumes = admission.Value[int64]{}, admission.Value[bool]{}, admission.Value[[]admission.Volume]{}
	for _, from := range []restriction.Source{restriction.Node, restriction.NodeWithPodSource} {
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
