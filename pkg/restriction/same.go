package restriction

import (
	"reflect"
	"slices"

	"github.com/pullgate/pullgate/pkg/podview"
)

// Same reports whether two pods, which are in the same namespace, have the same values in all fields that policies of the namespace restrict. Judge then
// gives the same answer for both. It returns false if it is in doubt.
func (s *Set) Same(a, b *podview.Pod, containersOfA, containersOfB []podview.Container) bool {
	var bound []*policy
	for _, p := range s.all() {
		included := p.binding.includes(a)
		if included != p.binding.includes(b) {
			return false
		}
		if included != no {
			bound = append(bound, p)
		}
	}
	restricts := func(paths ...string) bool {
		return slices.ContainsFunc(bound, func(p *policy) bool {
			return slices.ContainsFunc(paths, func(path string) bool { return p.restricts[path] })
		})
	}
	if !reflect.DeepEqual(restricted(a, restricts), restricted(b, restricts)) {
		return false
	}
	if !restricts(pathContainers, pathVolumes) {
		return true
	}
	return slices.EqualFunc(containersOfA, containersOfB, func(a, b podview.Container) bool {
		return reflect.DeepEqual(restrictedContainer(&a, restricts), restrictedContainer(&b, restricts))
	})
}

// only returns a value if it matters, otherwise the zero value.
func only[T any](matters bool, v T) T {
	if matters {
		return v
	}
	var zero T
	return zero
}

// restricted returns a copy of a pod with the fields that matter.
func restricted(p *podview.Pod, restricts func(paths ...string) bool) podview.Pod {
	const spec, security = "spec.spec.", pathPodSecurity + "."
	groups := restricts(security+"supplementalGroups", security+"fsGroup")
	return podview.Pod{
		Name:                          only(restricts(pathName), p.Name),
		Labels:                        only(restricts("spec.metadata.labels"), p.Labels),
		Annotations:                   only(restricts("spec.metadata.annotations"), p.Annotations),
		HostNetwork:                   only(restricts(security+"hostNetwork"), p.HostNetwork),
		HostPID:                       only(restricts(security+"hostPID"), p.HostPID),
		HostIPC:                       only(restricts(security+"hostIPC"), p.HostIPC),
		ShareProcessNamespace:         only(restricts(security+"shareProcessNamespace"), p.ShareProcessNamespace),
		FSGroup:                       only(groups, p.FSGroup),
		SupplementalGroups:            only(groups, p.SupplementalGroups),
		Groups:                        only(groups, p.Groups),
		RestartPolicy:                 only(restricts(spec+"restartPolicy"), p.RestartPolicy),
		DNSPolicy:                     only(restricts(spec+"dnsPolicy"), p.DNSPolicy),
		NodeSelector:                  only(restricts(spec+"nodeSelector"), p.NodeSelector),
		ActiveDeadlineSeconds:         only(restricts(spec+"activeDeadlineSeconds"), p.ActiveDeadlineSeconds),
		TerminationGracePeriodSeconds: only(restricts(spec+"terminationGracePeriodSeconds"), p.TerminationGracePeriodSeconds),
		AutomountServiceAccountToken:  only(restricts(spec+"automountServiceAccountToken"), p.AutomountServiceAccountToken),
		Volumes:                       only(restricts(pathVolumes), p.Volumes),
	}
}

// restrictedContainer returns a copy of a container with the fields that matter.
func restrictedContainer(c *podview.Container, restricts func(paths ...string) bool) podview.Container {
	const security = pathSecurity + "."
	return podview.Container{
		Kind:                     only(restricts(pathContainers), c.Kind),
		Image:                    only(restricts(pathImages), c.Image),
		ImagePullPolicy:          only(restricts(pathContainers+".imagePullPolicy"), c.ImagePullPolicy),
		Privileged:               only(restricts(security+"privileged"), c.Privileged),
		ReadOnlyRootFilesystem:   only(restricts(security+"readOnlyRootFilesystem"), c.ReadOnlyRootFilesystem),
		AllowPrivilegeEscalation: only(restricts(security+"allowPrivilegeEscalation"), c.AllowPrivilegeEscalation),
		RunAsNonRoot:             only(restricts(security+"runAsNonRoot"), c.RunAsNonRoot),
		RunAsUser:                only(restricts(security+"runAsUser"), c.RunAsUser),
		RunAsGroup:               only(restricts(security+"runAsGroup"), c.RunAsGroup),
		CapabilitiesAdd:          only(restricts(security+"capabilities", security+"capabilities.add"), c.CapabilitiesAdd),
		CapabilitiesDrop:         only(restricts(security+"capabilities", security+"capabilities.drop"), c.CapabilitiesDrop),
		SELinux:                  only(restricts(security+"seLinuxOptions"), c.SELinux),
		Mounts:                   only(restricts(pathVolumes), c.Mounts),
	}
}
