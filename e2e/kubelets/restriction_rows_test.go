package kubelets_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// A restrictionRow is a restriction of one field, in a namespace of its own: a pod that violates it is denied, and a
// pod that satisfies it runs.
type restrictionRow struct {
	name string // of the policy, and of its namespace
	// field is the path in docs/restriction-fields.md, and leaf the rest of the path that a denial names, such as .type.
	field, leaf string
	// spec is that of the policy.
	spec string
	// selector binds the policy by the label "tier" of the namespace, instead of by its name.
	selector bool
	// value is what a denial says of the field.
	value string
	// sandbox reports whether the sandbox is denied already, and not only a container.
	sandbox bool

	violates, satisfies restrictedPod
}

// A restrictedPod is how a pod of a row differs from one that no policy restricts.
type restrictedPod struct {
	change  func(*corev1.Pod)
	image   node.Pushed // restrictionImages.app if it is the zero value
	secrets []secret
	// container is the one that is denied, "main" if it is empty.
	container string
}

// restrictionImages are the images of the rows.
type restrictionImages struct {
	app     node.Pushed // has no USER
	number  node.Pushed // USER 4711
	named   node.Pushed // USER app
	private node.Pushed
}

// notPrivileged is the spec of a policy. Several rows have it.
const notPrivileged = `{spec: {containers: [{securityContext: {privileged: {require: false}}}]}}`

// Changes of pods.

func privileged() func(*corev1.Pod) {
	return onContainer(func(c *corev1.SecurityContext) { c.Privileged = new(true) })
}

func onContainer(change func(*corev1.SecurityContext)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{}
		change(p.Spec.Containers[0].SecurityContext)
	}
}

func onPod(change func(*corev1.PodSecurityContext)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{}
		change(p.Spec.SecurityContext)
	}
}

func runAs(user int64) func(*corev1.Pod) {
	return onContainer(func(c *corev1.SecurityContext) { c.RunAsUser = new(user) })
}

func adds(capabilities ...corev1.Capability) func(*corev1.Pod) {
	return onContainer(func(c *corev1.SecurityContext) { c.Capabilities = &corev1.Capabilities{Add: capabilities} })
}

func drops(capabilities ...corev1.Capability) func(*corev1.Pod) {
	return onContainer(func(c *corev1.SecurityContext) { c.Capabilities = &corev1.Capabilities{Drop: capabilities} })
}

// mounts adds a volume and its mount to the first container.
func mounts(source corev1.VolumeSource, changes ...func(*corev1.VolumeMount)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		name := "volume-" + string(rune('a'+len(p.Spec.Volumes)))
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		m := corev1.VolumeMount{Name: name, MountPath: "/" + name}
		for _, change := range changes {
			change(&m)
		}
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, m)
	}
}

func emptyDir() corev1.VolumeSource {
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
}

func hostPath(path string) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
}

// filesOfKubelet mounts volumes of all types whose content a kubelet writes.
func filesOfKubelet(p *corev1.Pod) {
	for _, source := range []corev1.VolumeSource{
		emptyDir(),
		{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: new(true)}},
		{Secret: &corev1.SecretVolumeSource{SecretName: "absent", Optional: new(true)}},
		{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{nameFile()}}},
		{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{nameFile()}}},
		}}},
	} {
		mounts(source)(p)
	}
}

func nameFile() corev1.DownwardAPIVolumeFile {
	return corev1.DownwardAPIVolumeFile{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}
}

// withToken mounts what the API server's plugin ServiceAccount adds to pods: this API server runs without it.
func withToken(p *corev1.Pod) {
	p.Spec.ServiceAccountName = "default"
	mounts(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
	}}}, func(m *corev1.VolumeMount) {
		m.MountPath, m.ReadOnly = "/var/run/secrets/kubernetes.io/serviceaccount", true
	})(p)
}

// initContainer adds an init container that ends at once.
func initContainer(changes ...func(*corev1.Container)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := corev1.Container{Name: "prepare", Image: p.Spec.Containers[0].Image, ImagePullPolicy: ifNotPresent, Command: []string{"/bin/cat", "/content"}, SecurityContext: &corev1.SecurityContext{}}
		for _, change := range changes {
			change(&c)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
}

func changes(all ...func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, change := range all {
			change(p)
		}
	}
}

// restrictionRows are the rows of all fields that the CRI carries. Hosts are those of the registries, folder one of the
// node.
func restrictionRows(i restrictionImages, publicHost, privateHost, folder string) []restrictionRow {
	const (
		security    = "spec.spec.containers[].securityContext"
		podSecurity = "spec.spec.securityContext"
		volumes     = "spec.spec.volumes[]"
	)
	return []restrictionRow{
		{
			name: "privileged", field: security + ".privileged", value: "true", spec: notPrivileged,
			violates: restrictedPod{change: privileged()},
		},
		{
			name: "read-only-root", field: security + ".readOnlyRootFilesystem", value: "false",
			spec:      `{spec: {containers: [{securityContext: {readOnlyRootFilesystem: {require: true}}}]}}`,
			satisfies: restrictedPod{change: onContainer(func(c *corev1.SecurityContext) { c.ReadOnlyRootFilesystem = new(true) })},
		},
		{
			name: "escalation", field: security + ".allowPrivilegeEscalation", value: "true",
			spec:      `{spec: {containers: [{securityContext: {allowPrivilegeEscalation: {require: false}}}]}}`,
			satisfies: restrictedPod{change: onContainer(func(c *corev1.SecurityContext) { c.AllowPrivilegeEscalation = new(false) })},
		},
		{
			name: "capabilities", field: security + ".capabilities", value: "nil",
			spec:      `{spec: {containers: [{securityContext: {capabilities: {forbidNil: true}}}]}}`,
			satisfies: restrictedPod{change: drops("KILL")},
		},
		{
			name: "capabilities-add", field: security + ".capabilities.add", leaf: ".values", value: `"SYS_PTRACE"`,
			spec:     `{spec: {containers: [{securityContext: {capabilities: {add: {values: {whitelist: [NET_BIND_SERVICE]}}}}}]}}`,
			violates: restrictedPod{change: adds("NET_BIND_SERVICE", "SYS_PTRACE")}, satisfies: restrictedPod{change: adds("NET_BIND_SERVICE")},
		},
		{
			name: "capabilities-drop", field: security + ".capabilities.drop", value: "without ALL",
			spec:     `{spec: {containers: [{securityContext: {capabilities: {drop: {requiredValues: [ALL]}}}}]}}`,
			violates: restrictedPod{change: drops("KILL")}, satisfies: restrictedPod{change: drops("ALL")},
		},
		{
			name: "selinux", field: security + ".seLinuxOptions", leaf: ".type", value: `"spc_t"`,
			spec:     `{spec: {containers: [{securityContext: {seLinuxOptions: {type: {whitelist: [container_t]}}}}]}}`,
			violates: restrictedPod{change: onContainer(func(c *corev1.SecurityContext) { c.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} })},
			satisfies: restrictedPod{change: onContainer(func(c *corev1.SecurityContext) {
				c.SELinuxOptions = &corev1.SELinuxOptions{Type: "container_t"}
			})},
		},
		{
			name: "user", field: security + ".runAsUser", value: "999", spec: `{spec: {containers: [{securityContext: {runAsUser: {ranges: [{min: 1000}]}}}]}}`,
			violates: restrictedPod{change: runAs(999)}, satisfies: restrictedPod{change: runAs(1000)},
		},
		{
			name: "user-of-image", field: security + ".runAsUser", value: "0", spec: `{spec: {containers: [{securityContext: {runAsUser: {ranges: [{min: 1000}]}}}]}}`,
			satisfies: restrictedPod{image: i.number},
		},
		{
			name: "user-name-of-image", field: security + ".runAsUser", spec: `{spec: {containers: [{securityContext: {runAsUser: {ranges: [{min: 1000}]}}}]}}`,
			violates: restrictedPod{image: i.named}, satisfies: restrictedPod{image: i.named, change: runAs(4711)},
		},
		{
			name: "group", field: security + ".runAsGroup", value: "0", spec: `{spec: {containers: [{securityContext: {runAsGroup: {forbidNil: true, ranges: [{min: 1000}]}}}]}}`,
			violates:  restrictedPod{change: onContainer(func(c *corev1.SecurityContext) { c.RunAsUser, c.RunAsGroup = new(int64(1000)), new(int64(0)) })},
			satisfies: restrictedPod{change: onContainer(func(c *corev1.SecurityContext) { c.RunAsUser, c.RunAsGroup = new(int64(1000)), new(int64(1000)) })},
		},
		{
			name: "non-root", field: security + ".runAsNonRoot", value: "false", spec: `{spec: {containers: [{securityContext: {runAsNonRoot: {require: true}}}]}}`,
			satisfies: restrictedPod{image: i.number},
		},
		{
			name: "image-registry", field: "spec.spec.containers[].image[]", leaf: ".registry", value: `"` + publicHost + `"`,
			spec:      `{spec: {containers: [{image: [{registry: {whitelist: ["` + privateHost + `"]}}]}]}}`,
			satisfies: restrictedPod{image: i.private, secrets: with(node.Alice())},
		},
		{
			name: "image-name", field: "spec.spec.containers[].image[]", leaf: ".image", value: `"` + i.app.Repository + `"`,
			spec:      `{spec: {containers: [{image: [{image: {whitelist: ["` + i.number.Repository + `"]}}]}]}}`,
			satisfies: restrictedPod{image: i.number},
		},
		{
			name: "image-tag", field: "spec.spec.containers[].image[]", leaf: ".tag", value: `"1"`,
			spec: `{spec: {containers: [{image: [{tag: {whitelist: ["` + i.app.Digest + `"]}}]}]}}`,
			satisfies: restrictedPod{change: func(p *corev1.Pod) {
				p.Spec.Containers[0].Image = strings.TrimSuffix(i.app.Name, ":1") + "@" + i.app.Digest
			}},
		},
		{
			name: "init-container", field: security + ".privileged", value: "true", spec: notPrivileged,
			violates:  restrictedPod{container: "prepare", change: initContainer(func(c *corev1.Container) { c.SecurityContext.Privileged = new(true) })},
			satisfies: restrictedPod{change: initContainer()},
		},
		{
			name: "second-container", field: security + ".privileged", value: "true", spec: notPrivileged,
			violates: restrictedPod{container: "second", image: i.number, change: func(p *corev1.Pod) {
				second := p.Spec.Containers[0]
				p.Spec.Containers[0].Image = i.app.Name
				second.Name, second.SecurityContext = "second", &corev1.SecurityContext{Privileged: new(true)}
				p.Spec.Containers = append(p.Spec.Containers, second)
			}},
		},
		{
			// A container must match the lists of both kinds.
			name: "both-lists", field: "spec.spec.containers[]", value: "false",
			spec: `{spec: {containers: [{securityContext: {readOnlyRootFilesystem: {require: true}}}], initContainers: [{securityContext: {privileged: {require: false}}}]}}`,
			violates: restrictedPod{container: "prepare", change: changes(
				initContainer(), onContainer(func(c *corev1.SecurityContext) { c.ReadOnlyRootFilesystem = new(true) }))},
			leaf: ".securityContext.readOnlyRootFilesystem",
			satisfies: restrictedPod{change: changes(
				initContainer(func(c *corev1.Container) { c.SecurityContext.ReadOnlyRootFilesystem = new(true) }),
				onContainer(func(c *corev1.SecurityContext) { c.ReadOnlyRootFilesystem = new(true) }))},
		},
		{
			name: "host-network", field: podSecurity + ".hostNetwork", value: "true", sandbox: true,
			spec:      `{spec: {securityContext: {hostNetwork: {require: false}}}}`,
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Spec.HostNetwork = false }},
		},
		{
			name: "host-pid", field: podSecurity + ".hostPID", value: "true", sandbox: true, spec: `{spec: {securityContext: {hostPID: {require: false}}}}`,
			violates: restrictedPod{change: func(p *corev1.Pod) { p.Spec.HostPID = true }},
		},
		{
			name: "host-ipc", field: podSecurity + ".hostIPC", value: "true", sandbox: true, spec: `{spec: {securityContext: {hostIPC: {require: false}}}}`,
			violates: restrictedPod{change: func(p *corev1.Pod) { p.Spec.HostIPC = true }},
		},
		{
			name: "shared-processes", field: podSecurity + ".shareProcessNamespace", value: "true", sandbox: true,
			spec:     `{spec: {securityContext: {shareProcessNamespace: {require: false}}}}`,
			violates: restrictedPod{change: func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }},
		},
		{
			name: "supplemental-groups", field: podSecurity + ".supplementalGroups", value: "6000", sandbox: true,
			spec:      `{spec: {securityContext: {supplementalGroups: {ranges: [{min: 5000, max: 5999}]}}}}`,
			violates:  restrictedPod{change: onPod(func(c *corev1.PodSecurityContext) { c.SupplementalGroups = []int64{5000, 6000} })},
			satisfies: restrictedPod{change: onPod(func(c *corev1.PodSecurityContext) { c.SupplementalGroups = []int64{5000, 5999} })},
		},
		{
			name: "fs-group", field: podSecurity + ".fsGroup", value: "6000", sandbox: true,
			spec:      `{spec: {securityContext: {fsGroup: {ranges: [{min: 5000, max: 5999}]}}}}`,
			violates:  restrictedPod{change: onPod(func(c *corev1.PodSecurityContext) { c.FSGroup = new(int64(6000)) })},
			satisfies: restrictedPod{change: onPod(func(c *corev1.PodSecurityContext) { c.FSGroup = new(int64(5000)) })},
		},
		{
			name: "no-volumes", field: volumes, value: "not empty", spec: `{spec: {volumes: {requireEmpty: true}}}`,
			violates: restrictedPod{change: mounts(emptyDir())},
		},
		{
			name: "volume-type", field: volumes + ".volumeType", value: `"hostPath"`,
			spec:     `{spec: {volumes: [{volumeType: {whitelist: [configMap, secret, emptyDir, downwardAPI, projected]}}]}}`,
			violates: restrictedPod{change: changes(filesOfKubelet, mounts(hostPath(folder)))}, satisfies: restrictedPod{change: filesOfKubelet},
		},
		{
			name: "volume-read-only", field: volumes + ".mount.readOnly", value: "false", spec: `{spec: {volumes: [{mount: {readOnly: {require: true}}}]}}`,
			violates:  restrictedPod{change: mounts(emptyDir())},
			satisfies: restrictedPod{change: mounts(emptyDir(), func(m *corev1.VolumeMount) { m.ReadOnly = true })},
		},
		{
			name: "volume-propagation", field: volumes + ".mount.mountPropagation", value: `"HostToContainer"`,
			spec:      `{spec: {volumes: [{mount: {mountPropagation: {whitelist: [None]}}}]}}`,
			violates:  restrictedPod{change: mounts(hostPath(folder), func(m *corev1.VolumeMount) { m.MountPropagation = new(corev1.MountPropagationHostToContainer) })},
			satisfies: restrictedPod{change: mounts(hostPath(folder))},
		},
		{
			name: "host-path", field: volumes + ".hostPath.path", value: `"/etc"`, spec: `{spec: {volumes: [{hostPath: {path: {whitelist: ["` + folder + `"]}}}]}}`,
			violates: restrictedPod{change: mounts(hostPath("/etc"))}, satisfies: restrictedPod{change: mounts(hostPath(folder + "/below"))},
		},
		{
			name: "host-path-sub-path", field: volumes + ".hostPath.path", spec: `{spec: {volumes: [{hostPath: {path: {whitelist: ["` + folder + `"]}}}]}}`,
			violates:  restrictedPod{change: mounts(hostPath(folder), func(m *corev1.VolumeMount) { m.SubPath = "below" })},
			satisfies: restrictedPod{change: mounts(hostPath(folder))},
		},
		{
			name: "grace", field: "spec.spec.terminationGracePeriodSeconds", value: "61", spec: `{spec: {terminationGracePeriodSeconds: {ranges: [{max: 60}]}}}`,
			violates: restrictedPod{change: func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(61)) }},
		},
		{
			name: "token", field: "spec.spec.automountServiceAccountToken", value: "true", spec: `{spec: {automountServiceAccountToken: {require: false}}}`,
			violates: restrictedPod{change: withToken},
		},
		{
			name: "pod-name", field: "spec.metadata.name", value: `"other"`, sandbox: true, spec: `{metadata: {name: {regex: "web-[a-z]+"}}}`,
			violates:  restrictedPod{change: func(p *corev1.Pod) { p.Name = "other" }},
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Name = "web-main" }},
		},
		{
			name: "labels", field: "spec.metadata.labels", value: "without the key app", sandbox: true, spec: `{metadata: {labels: {requiredKeys: [app]}}}`,
			violates:  restrictedPod{change: func(p *corev1.Pod) { p.Labels = map[string]string{"apps": "web"} }},
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }},
		},
		{
			name: "annotations", field: "spec.metadata.annotations", leaf: ".values[example.com/tier]", value: `"root"`, sandbox: true,
			spec:      `{metadata: {annotations: {values: {example.com/tier: {whitelist: [web]}}}}}`,
			violates:  restrictedPod{change: func(p *corev1.Pod) { p.Annotations = map[string]string{"example.com/tier": "root"} }},
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Annotations = map[string]string{"example.com/tier": "web"} }},
		},
		{
			name: "selected", selector: true, field: security + ".privileged", value: "true", spec: notPrivileged,
			violates: restrictedPod{change: privileged()},
		},
		{
			name: "ephemeral", field: security + ".capabilities.add", value: "not empty",
			spec:     `{spec: {containers: [{securityContext: {capabilities: {add: {requireEmpty: true}}}}], securityContext: {shareProcessNamespace: {require: false}}}}`,
			violates: restrictedPod{change: adds("SYS_PTRACE")},
		},
	}
}

// sourceRows are the rows of the fields that only the pod source knows, or knows better.
func sourceRows(i restrictionImages, folder string) []restrictionRow {
	directory := corev1.HostPathDirectory
	return []restrictionRow{
		{
			name: "pull-policy", field: "spec.spec.containers[].imagePullPolicy", value: `"IfNotPresent"`, spec: `{spec: {containers: [{imagePullPolicy: {whitelist: [Always]}}]}}`,
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Spec.Containers[0].ImagePullPolicy = always }},
		},
		{
			name: "restart-policy", field: "spec.spec.restartPolicy", value: `"Never"`, sandbox: true, spec: `{spec: {restartPolicy: {whitelist: [Always]}}}`,
			violates: restrictedPod{change: func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }},
		},
		{
			name: "deadline", field: "spec.spec.activeDeadlineSeconds", value: "nil", sandbox: true, spec: `{spec: {activeDeadlineSeconds: {forbidNil: true, ranges: [{max: 3600}]}}}`,
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(3600)) }},
		},
		{
			name: "dns-policy", field: "spec.spec.dnsPolicy", value: `"ClusterFirst"`, sandbox: true, spec: `{spec: {dnsPolicy: {whitelist: [Default]}}}`,
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSDefault }},
		},
		{
			name: "node-selector", field: "spec.spec.nodeSelector", value: "without the key kubernetes.io/os", sandbox: true,
			spec:      `{spec: {nodeSelector: {requiredKeys: [kubernetes.io/os]}}}`,
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"} }},
		},
		{
			name: "host-path-type", field: "spec.spec.volumes[].hostPath.type", value: `""`, sandbox: true, spec: `{spec: {volumes: [{hostPath: {type: {whitelist: [Directory]}}}]}}`,
			violates:  restrictedPod{change: mounts(hostPath(folder))},
			satisfies: restrictedPod{change: mounts(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder, Type: &directory}})},
		},
		{
			name: "escalation-nil", field: "spec.spec.containers[].securityContext.allowPrivilegeEscalation", value: "nil",
			spec:      `{spec: {containers: [{securityContext: {allowPrivilegeEscalation: {forbidNil: true}}}]}}`,
			satisfies: restrictedPod{change: onContainer(func(c *corev1.SecurityContext) { c.AllowPrivilegeEscalation = new(true) })},
		},
		{
			name: "own-list", field: "spec.spec.containers[]", leaf: ".securityContext.readOnlyRootFilesystem", value: "false",
			spec:     `{spec: {containers: [{securityContext: {readOnlyRootFilesystem: {require: true}}}], initContainers: [{securityContext: {readOnlyRootFilesystem: {require: false}}}]}}`,
			violates: restrictedPod{image: i.number, change: initContainer(func(c *corev1.Container) { c.Image = i.app.Name })},
			satisfies: restrictedPod{change: changes(
				initContainer(), onContainer(func(c *corev1.SecurityContext) { c.ReadOnlyRootFilesystem = new(true) }))},
		},
		{
			name: "fs-group-alone", field: "spec.spec.securityContext.fsGroup", value: "5000", sandbox: true,
			spec:      `{spec: {securityContext: {supplementalGroups: {ranges: [{min: 5000}]}, fsGroup: {ranges: [{max: 4999}]}}}}`,
			violates:  restrictedPod{change: onPod(func(c *corev1.PodSecurityContext) { c.FSGroup = new(int64(5000)) })},
			satisfies: restrictedPod{change: onPod(func(c *corev1.PodSecurityContext) { c.SupplementalGroups, c.FSGroup = []int64{5000}, new(int64(4999)) })},
		},
		{
			name: "known-sub-path", field: "spec.spec.volumes[].hostPath.path", value: `"/etc"`, sandbox: true, spec: `{spec: {volumes: [{hostPath: {path: {whitelist: ["` + folder + `"]}}}]}}`,
			violates:  restrictedPod{change: mounts(hostPath("/etc"), func(m *corev1.VolumeMount) { m.SubPath = "hosts" })},
			satisfies: restrictedPod{change: mounts(hostPath(folder), func(m *corev1.VolumeMount) { m.SubPath = "below" })},
		},
	}
}

// Each field of the documentation has a row: with the pod source if the CRI never carries it.
func TestEveryFieldHasARow(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "restriction-fields.md"))
	if err != nil {
		t.Fatal(err)
	}
	i := restrictionImages{app: node.Pushed{Built: &node.Built{}}, number: node.Pushed{Built: &node.Built{}}}
	covered := map[string]string{"binding.namespaceSelector": "–"} // row "selected"
	for _, r := range sourceRows(i, "/") {
		covered[r.field] = "–"
	}
	for _, r := range restrictionRows(i, "", "", "/") {
		covered[r.field] = "node"
	}
	fields := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		field := strings.Trim(cells[0], "| `")
		// The table of modes says what a binding does and names no field of a pod.
		if len(cells) < 3 || field == "binding.mode" || !strings.HasPrefix(field, "spec.") && !strings.HasPrefix(field, "binding.") {
			continue
		}
		fields++
		if got := covered[field]; got == "" || got == "–" && cells[1] != "–" {
			t.Errorf("no row for the field %s, which the documentation says is %s at the node", field, cells[1])
		}
	}
	if fields < 30 {
		t.Errorf("%d fields in the documentation; want all of them", fields)
	}
}
