package restriction

import (
	"strings"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// Keep returns a copy of the view of a pod and of its containers that has only the fields with these paths, as
// Field.Path has them.
func Keep(pod *admission.Pod, containers []admission.Container, paths []string) (admission.Pod, []admission.Container) {
	var kept admission.Pod
	keptContainers := make([]admission.Container, len(containers))
	for _, path := range paths {
		if strings.HasPrefix(path, pathVolumes) {
			path = pathVolumes
		}
		if keep := keepOfPod[path]; keep != nil {
			keep(&kept, pod)
		}
		if keep := keepOfContainer[path]; keep != nil {
			for i := range containers {
				keep(&keptContainers[i], &containers[i])
			}
		}
	}
	return kept, keptContainers
}

// keepOfPod copy the fields of a pod, by their paths.
var keepOfPod = map[string]func(to, from *admission.Pod){ //nolint:gochecknoglobals // a constant table
	pathName:                                   func(to, from *admission.Pod) { to.Name = from.Name },
	"spec.metadata.labels":                     func(to, from *admission.Pod) { to.Labels = from.Labels },
	"spec.metadata.annotations":                func(to, from *admission.Pod) { to.Annotations = from.Annotations },
	"spec.spec.restartPolicy":                  func(to, from *admission.Pod) { to.RestartPolicy = from.RestartPolicy },
	"spec.spec.activeDeadlineSeconds":          func(to, from *admission.Pod) { to.ActiveDeadlineSeconds = from.ActiveDeadlineSeconds },
	"spec.spec.dnsPolicy":                      func(to, from *admission.Pod) { to.DNSPolicy = from.DNSPolicy },
	"spec.spec.nodeSelector":                   func(to, from *admission.Pod) { to.NodeSelector = from.NodeSelector },
	"spec.spec.terminationGracePeriodSeconds":  func(to, from *admission.Pod) { to.TerminationGracePeriodSeconds = from.TerminationGracePeriodSeconds },
	"spec.spec.automountServiceAccountToken":   func(to, from *admission.Pod) { to.AutomountServiceAccountToken = from.AutomountServiceAccountToken },
	pathPodSecurity + ".hostNetwork":           func(to, from *admission.Pod) { to.HostNetwork = from.HostNetwork },
	pathPodSecurity + ".hostPID":               func(to, from *admission.Pod) { to.HostPID = from.HostPID },
	pathPodSecurity + ".hostIPC":               func(to, from *admission.Pod) { to.HostIPC = from.HostIPC },
	pathPodSecurity + ".shareProcessNamespace": func(to, from *admission.Pod) { to.ShareProcessNamespace = from.ShareProcessNamespace },
	// The CRI has one list of both, which only both together separate.
	pathPodSecurity + ".supplementalGroups": keepGroups,
	pathPodSecurity + ".fsGroup":            keepGroups,
	pathVolumes:                             func(to, from *admission.Pod) { to.Volumes = from.Volumes },
}

func keepGroups(to, from *admission.Pod) {
	to.SupplementalGroups, to.FSGroup, to.Groups = from.SupplementalGroups, from.FSGroup, from.Groups
}

// keepOfContainer copy the fields of a container, by their paths.
var keepOfContainer = map[string]func(to, from *admission.Container){ //nolint:gochecknoglobals // a constant table
	pathContainers:                             func(to, from *admission.Container) { to.Kind = from.Kind },
	pathImages:                                 func(to, from *admission.Container) { to.Image = from.Image },
	pathContainers + ".imagePullPolicy":        func(to, from *admission.Container) { to.ImagePullPolicy = from.ImagePullPolicy },
	pathSecurity + ".privileged":               func(to, from *admission.Container) { to.Privileged = from.Privileged },
	pathSecurity + ".readOnlyRootFilesystem":   func(to, from *admission.Container) { to.ReadOnlyRootFilesystem = from.ReadOnlyRootFilesystem },
	pathSecurity + ".allowPrivilegeEscalation": func(to, from *admission.Container) { to.AllowPrivilegeEscalation = from.AllowPrivilegeEscalation },
	pathSecurity + ".runAsUser":                func(to, from *admission.Container) { to.RunAsUser = from.RunAsUser },
	pathSecurity + ".runAsGroup":               func(to, from *admission.Container) { to.RunAsGroup = from.RunAsGroup },
	pathSecurity + ".runAsNonRoot":             func(to, from *admission.Container) { to.RunAsNonRoot = from.RunAsNonRoot },
	pathSecurity + ".capabilities":             keepCapabilities,
	pathSecurity + ".capabilities.add":         keepCapabilities,
	pathSecurity + ".capabilities.drop":        keepCapabilities,
	pathSecurity + ".seLinuxOptions":           func(to, from *admission.Container) { to.SELinux = from.SELinux },
	pathVolumes:                                func(to, from *admission.Container) { to.Mounts = from.Mounts },
}

func keepCapabilities(to, from *admission.Container) {
	to.CapabilitiesAdd, to.CapabilitiesDrop = from.CapabilitiesAdd, from.CapabilitiesDrop
}
