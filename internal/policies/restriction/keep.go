package restriction

import (
	"strings"

	"github.com/pullgate/pullgate/internal/policies/podview"
)

// Keep returns a copy of the view of a pod and of its containers that has only the fields with these paths, as Field.Path has them.
func Keep(pod *podview.Pod, containers []podview.Container, paths []string) (podview.Pod, []podview.Container) {
	var kept podview.Pod
	keptContainers := make([]podview.Container, len(containers))
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
var keepOfPod = map[string]func(to, from *podview.Pod){ //nolint:gochecknoglobals // a constant table
	pathName:                                   func(to, from *podview.Pod) { to.Name = from.Name },
	"spec.metadata.labels":                     func(to, from *podview.Pod) { to.Labels = from.Labels },
	"spec.metadata.annotations":                func(to, from *podview.Pod) { to.Annotations = from.Annotations },
	"spec.spec.restartPolicy":                  func(to, from *podview.Pod) { to.RestartPolicy = from.RestartPolicy },
	"spec.spec.activeDeadlineSeconds":          func(to, from *podview.Pod) { to.ActiveDeadlineSeconds = from.ActiveDeadlineSeconds },
	"spec.spec.dnsPolicy":                      func(to, from *podview.Pod) { to.DNSPolicy = from.DNSPolicy },
	"spec.spec.nodeSelector":                   func(to, from *podview.Pod) { to.NodeSelector = from.NodeSelector },
	"spec.spec.terminationGracePeriodSeconds":  func(to, from *podview.Pod) { to.TerminationGracePeriodSeconds = from.TerminationGracePeriodSeconds },
	"spec.spec.automountServiceAccountToken":   func(to, from *podview.Pod) { to.AutomountServiceAccountToken = from.AutomountServiceAccountToken },
	pathPodSecurity + ".hostNetwork":           func(to, from *podview.Pod) { to.HostNetwork = from.HostNetwork },
	pathPodSecurity + ".hostPID":               func(to, from *podview.Pod) { to.HostPID = from.HostPID },
	pathPodSecurity + ".hostIPC":               func(to, from *podview.Pod) { to.HostIPC = from.HostIPC },
	pathPodSecurity + ".shareProcessNamespace": func(to, from *podview.Pod) { to.ShareProcessNamespace = from.ShareProcessNamespace },
	// The CRI has one list of both, which only both together separate.
	pathPodSecurity + ".supplementalGroups": keepGroups,
	pathPodSecurity + ".fsGroup":            keepGroups,
	pathVolumes:                             func(to, from *podview.Pod) { to.Volumes = from.Volumes },
}

func keepGroups(to, from *podview.Pod) {
	to.SupplementalGroups, to.FSGroup, to.Groups = from.SupplementalGroups, from.FSGroup, from.Groups
}

// keepOfContainer copy the fields of a container, by their paths.
var keepOfContainer = map[string]func(to, from *podview.Container){ //nolint:gochecknoglobals // a constant table
	pathContainers:                             func(to, from *podview.Container) { to.Kind = from.Kind },
	pathImages:                                 func(to, from *podview.Container) { to.Image = from.Image },
	pathContainers + ".imagePullPolicy":        func(to, from *podview.Container) { to.ImagePullPolicy = from.ImagePullPolicy },
	pathSecurity + ".privileged":               func(to, from *podview.Container) { to.Privileged = from.Privileged },
	pathSecurity + ".readOnlyRootFilesystem":   func(to, from *podview.Container) { to.ReadOnlyRootFilesystem = from.ReadOnlyRootFilesystem },
	pathSecurity + ".allowPrivilegeEscalation": func(to, from *podview.Container) { to.AllowPrivilegeEscalation = from.AllowPrivilegeEscalation },
	pathSecurity + ".runAsUser":                func(to, from *podview.Container) { to.RunAsUser = from.RunAsUser },
	pathSecurity + ".runAsGroup":               func(to, from *podview.Container) { to.RunAsGroup = from.RunAsGroup },
	pathSecurity + ".runAsNonRoot":             func(to, from *podview.Container) { to.RunAsNonRoot = from.RunAsNonRoot },
	pathSecurity + ".capabilities":             keepCapabilities,
	pathSecurity + ".capabilities.add":         keepCapabilities,
	pathSecurity + ".capabilities.drop":        keepCapabilities,
	pathSecurity + ".seLinuxOptions":           func(to, from *podview.Container) { to.SELinux = from.SELinux },
	pathVolumes:                                func(to, from *podview.Container) { to.Mounts = from.Mounts },
}

func keepCapabilities(to, from *podview.Container) {
	to.CapabilitiesAdd, to.CapabilitiesDrop = from.CapabilitiesAdd, from.CapabilitiesDrop
}
