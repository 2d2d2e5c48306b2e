package podsecurity_test

import (
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
)

// generate returns a pod that the level restricted admits, with a few changes at random.
func generate(seed uint64) *corev1.Pod {
	r := rand.New(rand.NewPCG(seed, 1))
	pod := &corev1.Pod{}
	s := &pod.Spec
	s.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: maybe(r, true)}
	for range 1 + r.IntN(2) {
		s.Containers = append(s.Containers, good())
	}
	for range r.IntN(2) {
		s.InitContainers = append(s.InitContainers, good())
	}
	if r.IntN(4) == 0 {
		c := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon(good())}
		s.EphemeralContainers = append(s.EphemeralContainers, c)
	}
	for range r.IntN(4) {
		if r.IntN(2) == 0 {
			podChanges[r.IntN(len(podChanges))](r, s)
			continue
		}
		change := containerChanges[r.IntN(len(containerChanges))]
		all := r.IntN(3) == 0
		for c := range containers(s) {
			if all || r.IntN(2) == 0 {
				change(r, c.SecurityContext)
			}
		}
	}
	if r.IntN(8) == 0 { // nil differs from empty for Pod Security in some checks
		s.SecurityContext = nil
	}
	return pod
}

func good() corev1.Container {
	no, yes := false, true
	return corev1.Container{
		Name: "c", Image: "registry.test/a:1",
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, RunAsNonRoot: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

func maybe[T any](r *rand.Rand, values ...T) *T {
	i := r.IntN(len(values) + 1)
	if i == len(values) {
		return nil
	}
	return &values[i]
}

func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func selinux(r *rand.Rand) *corev1.SELinuxOptions {
	return maybe(r, corev1.SELinuxOptions{Type: "container_t"}, corev1.SELinuxOptions{},
		corev1.SELinuxOptions{Type: "container_engine_t", Level: "s0"},
		corev1.SELinuxOptions{Type: "spc_t"}, corev1.SELinuxOptions{User: "u"},
		corev1.SELinuxOptions{Role: "r", Type: "container_init_t"})
}

// podChanges change a pod; some make it one that a level denies.
var podChanges = []func(r *rand.Rand, s *corev1.PodSpec){
	func(r *rand.Rand, s *corev1.PodSpec) { s.HostNetwork = pick(r, true, false) },
	func(r *rand.Rand, s *corev1.PodSpec) { s.HostPID = pick(r, true, false) },
	func(r *rand.Rand, s *corev1.PodSpec) { s.HostIPC = pick(r, true, false) },
	func(r *rand.Rand, s *corev1.PodSpec) { s.HostUsers = maybe(r, true, false) },
	func(r *rand.Rand, s *corev1.PodSpec) {
		s.OS = maybe(r, corev1.PodOS{Name: corev1.Linux}, corev1.PodOS{Name: corev1.Windows})
	},
	func(r *rand.Rand, s *corev1.PodSpec) { s.SecurityContext.RunAsUser = maybe[int64](r, 0, 1, 1000) },
	func(r *rand.Rand, s *corev1.PodSpec) { s.SecurityContext.RunAsNonRoot = maybe(r, true, false) },
	func(r *rand.Rand, s *corev1.PodSpec) { s.SecurityContext.SELinuxOptions = selinux(r) },
	func(r *rand.Rand, s *corev1.PodSpec) {
		s.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "kernel.msgmax", Value: "1"}}
	},
	func(r *rand.Rand, s *corev1.PodSpec) {
		s.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	},
	func(r *rand.Rand, s *corev1.PodSpec) {
		s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
	},
	func(r *rand.Rand, s *corev1.PodSpec) { // values of the pod that containers override
		s.SecurityContext.RunAsUser, s.SecurityContext.SELinuxOptions = maybe[int64](r, 0), selinux(r)
		for c := range containers(s) {
			c.SecurityContext.RunAsUser, c.SecurityContext.SELinuxOptions = maybe[int64](r, 1, 1000, 0), selinux(r)
		}
	},
	addVolume, addVolume, addVolume,
}

func addVolume(r *rand.Rand, s *corev1.PodSpec) {
	type v = corev1.VolumeSource
	source := pick(r, v{ConfigMap: &corev1.ConfigMapVolumeSource{}}, v{Secret: &corev1.SecretVolumeSource{}},
		v{EmptyDir: &corev1.EmptyDirVolumeSource{}}, v{Projected: &corev1.ProjectedVolumeSource{}},
		v{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, v{CSI: &corev1.CSIVolumeSource{}},
		v{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}, v{Ephemeral: &corev1.EphemeralVolumeSource{}},
		v{HostPath: &corev1.HostPathVolumeSource{Path: "/a"}}, v{NFS: &corev1.NFSVolumeSource{}},
		v{ISCSI: &corev1.ISCSIVolumeSource{}}, v{Image: &corev1.ImageVolumeSource{}},
		v{FlexVolume: &corev1.FlexVolumeSource{}}, v{RBD: &corev1.RBDVolumeSource{}})
	s.Volumes = append(s.Volumes, corev1.Volume{Name: "v", VolumeSource: source})
}

var containerChanges = []func(r *rand.Rand, s *corev1.SecurityContext){
	func(r *rand.Rand, s *corev1.SecurityContext) { s.Privileged = maybe(r, true, false) },
	func(r *rand.Rand, s *corev1.SecurityContext) { s.AllowPrivilegeEscalation = maybe(r, true, false) },
	func(r *rand.Rand, s *corev1.SecurityContext) { s.RunAsNonRoot = maybe(r, true, false) },
	func(r *rand.Rand, s *corev1.SecurityContext) { s.RunAsUser = maybe[int64](r, 0, 1, 1000) },
	func(r *rand.Rand, s *corev1.SecurityContext) { s.SELinuxOptions = selinux(r) },
	func(r *rand.Rand, s *corev1.SecurityContext) { s.Capabilities = nil },
	func(r *rand.Rand, s *corev1.SecurityContext) {
		type names = []corev1.Capability
		s.Capabilities = &corev1.Capabilities{
			Add: pick(r, nil, names{"NET_BIND_SERVICE"}, names{"CHOWN", "NET_BIND_SERVICE"}, names{"SYS_ADMIN"},
				names{"chown"}, names{"CAP_NET_BIND_SERVICE"}, names{"ALL"}),
			Drop: pick(r, nil, names{"ALL"}, names{"ALL"}, names{"KILL", "ALL"}, names{"KILL"}, names{"all"}),
		}
	},
	func(r *rand.Rand, s *corev1.SecurityContext) {
		procMount := corev1.UnmaskedProcMount
		s.ProcMount = &procMount
	},
	func(r *rand.Rand, s *corev1.SecurityContext) { s.ReadOnlyRootFilesystem = maybe(r, true, false) },
}
