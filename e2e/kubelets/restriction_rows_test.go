package kubelets_test

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// A restrictionRow is a restriction of one field: a pod that violates it is denied, and a pod that satisfies it runs.
type restrictionRow struct {
	name string // of the policy, and of its namespace
	// path is what a denial names.
	path string
	// spec is that of the policy.
	spec string
	// value is what a denial says of the field.
	value string
	// sandbox reports whether the sandbox is denied already, and not only a container.
	sandbox bool

	violates, satisfies restrictedPod
}

// A restrictedPod is how a pod of a row differs from one that no policy restricts.
type restrictedPod struct {
	change func(*corev1.Pod)
	image  node.Pushed // restrictionImages.app if it is the zero value
	// container is the one that is denied, "main" if it is empty.
	container string
}

type restrictionImages struct {
	app    node.Pushed // has no USER
	number node.Pushed // USER 4711
	named  node.Pushed // USER app
}

const (
	notPrivileged = `privileged: {require: false}`
	notRoot       = `runAsUser: {ranges: [{min: 1000}]}`
)

func onSecurity(text string) string {
	return `{spec: {containers: [{securityContext: {` + text + `}}]}}`
}

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

func runAs(user int64) func(*corev1.Pod) {
	return onContainer(func(c *corev1.SecurityContext) { c.RunAsUser = new(user) })
}

func adds(capabilities ...corev1.Capability) func(*corev1.Pod) {
	return onContainer(func(c *corev1.SecurityContext) { c.Capabilities = &corev1.Capabilities{Add: capabilities} })
}

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

func hostPath(path string) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
}

func imageVolume(image node.Pushed, policy corev1.PullPolicy) corev1.VolumeSource {
	return corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image.Name, PullPolicy: policy}}
}

func onlyPath(path string) string {
	return `{spec: {volumes: [{hostPath: {path: {whitelist: ["` + path + `"]}}}]}}`
}

func filesOfKubelet(p *corev1.Pod) {
	field := &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}
	name := []corev1.DownwardAPIVolumeFile{{Path: "name", FieldRef: field}}
	absent := corev1.LocalObjectReference{Name: "absent"}
	for _, source := range []corev1.VolumeSource{
		{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: absent, Optional: new(true)}},
		{Secret: &corev1.SecretVolumeSource{SecretName: "absent", Optional: new(true)}},
		{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: name}},
		{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: name}},
		}}},
	} {
		mounts(source)(p)
	}
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

func initContainer(changes ...func(*corev1.Container)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := p.Spec.Containers[0]
		c.Name, c.Command, c.SecurityContext = "prepare", []string{"/bin/cat", "/content"}, &corev1.SecurityContext{}
		for _, change := range changes {
			change(&c)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
}

// restrictionRows has a row for each way in which the node knows a field; the scenario views compares all fields.
func restrictionRows(i restrictionImages, folder string) []restrictionRow {
	const security = "spec.spec.containers[0].securityContext."
	return []restrictionRow{
		{
			name: "privileged", path: security + "privileged", value: "true", spec: onSecurity(notPrivileged),
			violates: restrictedPod{change: privileged()},
		},
		{
			name: "capabilities-add", path: security + "capabilities.add.values", value: `"SYS_PTRACE"`,
			spec:      onSecurity(`capabilities: {add: {values: {whitelist: [NET_BIND_SERVICE]}}}`),
			violates:  restrictedPod{change: adds("NET_BIND_SERVICE", "SYS_PTRACE")},
			satisfies: restrictedPod{change: adds("NET_BIND_SERVICE")},
		},
		{
			name: "user-of-image", path: security + "runAsUser", value: "0", spec: onSecurity(notRoot),
			satisfies: restrictedPod{image: i.number},
		},
		{
			name: "user-name-of-image", path: security + "runAsUser", spec: onSecurity(notRoot),
			violates: restrictedPod{image: i.named}, satisfies: restrictedPod{image: i.named, change: runAs(4711)},
		},
		{
			name: "init-container", path: security + "privileged", value: "true", spec: onSecurity(notPrivileged),
			violates: restrictedPod{container: "prepare", change: initContainer(func(c *corev1.Container) {
				c.SecurityContext.Privileged = new(true)
			})},
			satisfies: restrictedPod{change: initContainer()},
		},
		{
			name: "host-network", path: "spec.spec.securityContext.hostNetwork", value: "true", sandbox: true,
			spec:      `{spec: {securityContext: {hostNetwork: {require: false}}}}`,
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Spec.HostNetwork = false }},
		},
		{
			name: "volume-type", path: "spec.spec.volumes[0].volumeType", value: `"hostPath"`,
			spec:      `{spec: {volumes: [{volumeType: {whitelist: [configMap, secret, emptyDir, downwardAPI, projected]}}]}}`,
			violates:  restrictedPod{change: func(p *corev1.Pod) { filesOfKubelet(p); mounts(hostPath(folder))(p) }},
			satisfies: restrictedPod{change: filesOfKubelet},
		},
		{
			name: "host-path-sub-path", path: "spec.spec.volumes[0].hostPath.path", spec: onlyPath(folder),
			violates:  restrictedPod{change: mounts(hostPath(folder), func(m *corev1.VolumeMount) { m.SubPath = "below" })},
			satisfies: restrictedPod{change: mounts(hostPath(folder))},
		},
		{
			name: "token", path: "spec.spec.automountServiceAccountToken", value: "true",
			spec:     `{spec: {automountServiceAccountToken: {require: false}}}`,
			violates: restrictedPod{change: withToken},
		},
		{
			name: "labels", path: "spec.metadata.labels", value: "without the key app", sandbox: true,
			spec:      `{metadata: {labels: {requiredKeys: [app]}}}`,
			violates:  restrictedPod{change: func(p *corev1.Pod) { p.Labels = map[string]string{"apps": "web"} }},
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }},
		},
		{
			name: "ephemeral", path: security + "capabilities.add", value: "not empty",
			spec: `{spec: {containers: [{securityContext: {capabilities: {add: {requireEmpty: true}}}}],
  securityContext: {shareProcessNamespace: {require: false}}}}`,
			violates: restrictedPod{change: adds("SYS_PTRACE")},
		},
	}
}

// sourceRows are the rows of the fields that only the pod source knows, or knows better.
func sourceRows(folder string) []restrictionRow {
	return []restrictionRow{
		{
			name: "pull-policy", path: "spec.spec.containers[0].imagePullPolicy", value: `"IfNotPresent"`,
			spec:      `{spec: {containers: [{imagePullPolicy: {whitelist: [Always]}}]}}`,
			satisfies: restrictedPod{change: func(p *corev1.Pod) { p.Spec.Containers[0].ImagePullPolicy = always }},
		},
		{
			name: "restart-policy", path: "spec.spec.restartPolicy", value: `"Never"`, sandbox: true,
			spec:     `{spec: {restartPolicy: {whitelist: [Always]}}}`,
			violates: restrictedPod{change: func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }},
		},
		{
			name: "known-sub-path", path: "spec.spec.volumes[0].hostPath.path", value: `"/etc"`, sandbox: true,
			spec:      onlyPath(folder),
			violates:  restrictedPod{change: mounts(hostPath("/etc"), func(m *corev1.VolumeMount) { m.SubPath = "hosts" })},
			satisfies: restrictedPod{change: mounts(hostPath(folder), func(m *corev1.VolumeMount) { m.SubPath = "below" })},
		},
	}
}
