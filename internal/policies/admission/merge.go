package admission

import (
	"maps"
	"path"
	"slices"
)

// Merge returns the view of a pod and one of its containers from two sources: CRI messages, and the Pod of the API.
// Where both know a field, the CRI wins, because it describes what runs. conflicts are the names of the fields in which
// they differ, in a fixed order.
//
// The CRI describes some fields with the defaults filled in, and derives others. A pod that leaves such a field out is
// not a conflict. container and api may be nil; the result is then nil, or the container of the CRI.
func Merge(cri, api Pod, container, apiContainer *Container) (pod Pod, merged *Container, conflicts []string) {
	var m merger
	pod = m.pod(cri, api)
	if container == nil {
		return pod, nil, m.conflicts
	}
	c := *container
	if apiContainer != nil {
		c = m.container(c, *apiContainer)
	}
	return pod, &c, m.conflicts
}

// A merger collects the names of fields in which two sources differ.
type merger struct{ conflicts []string }

func (m *merger) conflict(field string) {
	if !slices.Contains(m.conflicts, field) {
		m.conflicts = append(m.conflicts, field)
	}
}

func (m *merger) pod(cri, api Pod) Pod {
	p := cri
	p.NamespaceLabels = either(cri.NamespaceLabels, api.NamespaceLabels)
	p.Labels = merge(m, "labels", cri.Labels, api.Labels, maps.Equal)
	p.Annotations = merge(m, "annotations", cri.Annotations, api.Annotations, maps.Equal)
	p.ReviewAnnotations = merge(m, "annotations", cri.ReviewAnnotations, api.ReviewAnnotations, maps.Equal)
	p.HostNetwork = merge(m, "hostNetwork", cri.HostNetwork, api.HostNetwork, equal)
	p.HostPID = merge(m, "hostPID", cri.HostPID, api.HostPID, equal)
	p.HostIPC = merge(m, "hostIPC", cri.HostIPC, api.HostIPC, equal)
	p.ShareProcessNamespace = merge(m, "shareProcessNamespace", cri.ShareProcessNamespace, api.ShareProcessNamespace, equal)
	p.TerminationGracePeriodSeconds = merge(m, "terminationGracePeriodSeconds", cri.TerminationGracePeriodSeconds, api.TerminationGracePeriodSeconds, equal)
	p.AutomountServiceAccountToken = derived(cri.AutomountServiceAccountToken, api.AutomountServiceAccountToken)
	p.RestartPolicy = either(cri.RestartPolicy, api.RestartPolicy)
	p.DNSPolicy = either(cri.DNSPolicy, api.DNSPolicy)
	p.ActiveDeadlineSeconds = either(cri.ActiveDeadlineSeconds, api.ActiveDeadlineSeconds)
	p.NodeSelector = either(cri.NodeSelector, api.NodeSelector)
	p.Volumes = either(cri.Volumes, api.Volumes)
	m.groups(&p, api)
	return p
}

// groups separates the groups of the CRI by the Pod of the API. Those that the Pod does not have are groups of volumes,
// which run as supplemental groups.
func (m *merger) groups(p *Pod, api Pod) {
	if p.SupplementalGroups.State() != StateUnknown || p.FSGroup.State() != StateUnknown || api.SupplementalGroups.State() == StateUnknown {
		return
	}
	running, ok := p.Groups.Effective()
	if !ok {
		p.SupplementalGroups, p.FSGroup = api.SupplementalGroups, api.FSGroup
		return
	}
	fsGroup, state := api.FSGroup.Get()
	listed, _ := api.SupplementalGroups.Get()
	declared := slices.Clone(listed)
	if state == StateSet {
		declared = append(declared, fsGroup)
	}
	for _, g := range declared {
		if !slices.Contains(running, g) {
			m.conflict("supplementalGroups")
			return
		}
	}
	supplemental := slices.Clone(listed)
	for _, g := range running {
		if !slices.Contains(declared, g) {
			supplemental = append(supplemental, g)
		}
	}
	p.FSGroup, p.SupplementalGroups = api.FSGroup, api.SupplementalGroups
	if len(supplemental) > len(listed) {
		p.SupplementalGroups = Set(supplemental)
	}
}

func (m *merger) container(cri, api Container) Container {
	c := cri
	c.Kind = either(cri.Kind, api.Kind)
	c.Image = merge(m, "image", cri.Image, api.Image, equal)
	c.ImagePullPolicy = either(cri.ImagePullPolicy, api.ImagePullPolicy)
	c.Privileged = merge(m, "privileged", cri.Privileged, api.Privileged, equal)
	c.ReadOnlyRootFilesystem = merge(m, "readOnlyRootFilesystem", cri.ReadOnlyRootFilesystem, api.ReadOnlyRootFilesystem, equal)
	c.AllowPrivilegeEscalation = merge(m, "allowPrivilegeEscalation", cri.AllowPrivilegeEscalation, api.AllowPrivilegeEscalation, equal)
	c.RunAsNonRoot = derived(cri.RunAsNonRoot, api.RunAsNonRoot)
	if api.RunAsUser.State() == StateSet { // otherwise it is the user of the image, which the API does not know
		c.RunAsUser = merge(m, "runAsUser", cri.RunAsUser, api.RunAsUser, equal)
	}
	c.RunAsGroup = merge(m, "runAsGroup", cri.RunAsGroup, api.RunAsGroup, equal)
	c.CapabilitiesAdd = merge(m, "capabilities.add", cri.CapabilitiesAdd, api.CapabilitiesAdd, slices.Equal)
	c.CapabilitiesDrop = merge(m, "capabilities.drop", cri.CapabilitiesDrop, api.CapabilitiesDrop, slices.Equal)
	c.SELinux = merge(m, "seLinuxOptions", cri.SELinux, api.SELinux, equal)
	c.Mounts = m.mounts(cri.Mounts, api.Mounts)
	return c
}

// mounts completes the mounts of the CRI by the volumes of the API. It keeps a mount that only the CRI has, such as one
// of a device plugin. A pod can have several mounts at one path, which the API server compares as text and a runtime
// mounts one above the other. It is unknown which is which, so they stay as the CRI has them.
func (m *merger) mounts(cri, api Value[[]Mount]) Value[[]Mount] {
	running, ok := cri.Effective()
	if !ok {
		return api
	}
	list, _ := api.Effective()
	declared, at := map[string][]Mount{}, map[string]int{}
	for i := range list {
		declared[path.Clean(list[i].Path)] = append(declared[path.Clean(list[i].Path)], list[i])
	}
	for i := range running {
		at[path.Clean(running[i].Path)]++
	}
	all := slices.Clone(running)
	for i := range all {
		switch d := declared[path.Clean(all[i].Path)]; {
		case len(d) == 1 && at[path.Clean(all[i].Path)] == 1:
			all[i] = m.mount(all[i], d[0])
		case len(d) > 0:
			m.conflict("volumeType")
		}
	}
	return Set(all)
}

func (m *merger) mount(cri, api Mount) Mount {
	merged := cri
	merged.ReadOnly = merge(m, "mount.readOnly", cri.ReadOnly, api.ReadOnly, equal)
	merged.Propagation = merge(m, "mount.mountPropagation", cri.Propagation, api.Propagation, equal)
	merged.Image = merge(m, "mount.image", cri.Image, api.Image, equal)
	if claimed, _ := api.Type.Get(); claimed == TypePersistentVolumeClaim || claimed == TypeEphemeral {
		// The CRI shows the volume behind the claim. Nothing overrides a hostPath, which a persistent volume can be
		// too.
		if runs, _ := cri.Type.Effective(); runs != TypeHostPath {
			merged.Type = api.Type
		}
		return merged
	}
	merged.Type = merge(m, "volumeType", cri.Type, api.Type, equal)
	if merged.Type != api.Type {
		return merged
	}
	merged.HostPath = merge(m, "hostPath.path", cri.HostPath, api.HostPath, equal)
	merged.HostPathType = either(cri.HostPathType, api.HostPathType)
	return merged
}

// merge returns the value of the CRI, with the state of the API if the CRI does not know it. A difference is a
// conflict.
func merge[T any](m *merger, field string, cri, api Value[T], same func(a, b T) bool) Value[T] {
	switch {
	case !cri.known && cri.state == StateUnknown:
		return api
	case api.state == StateUnknown:
		return cri
	case cri.known && api.known && !same(cri.value, api.value),
		cri.state == StateSet && api.state == StateAbsent && !empty(cri.value),
		cri.state == StateAbsent && api.state == StateSet && !empty(api.value):
		m.conflict(field)
		return cri
	case cri.state == StateUnknown:
		cri.state = api.state
	}
	return cri
}

// derived returns the value of the CRI with the state of the API, for a field that the CRI does not carry. The value is
// derived from another field, so a difference is not a conflict. Without a value of both it is unknown: what a pod does
// not set is derived all the same.
func derived[T any](cri, api Value[T]) Value[T] {
	switch {
	case !cri.known && !api.known:
		return Value[T]{}
	case !cri.known:
		return api
	}
	if cri.state == StateUnknown {
		cri.state = api.state
	}
	return cri
}

// either returns the value of the CRI, or that of the API if the CRI does not carry the field.
func either[T any](cri, api Value[T]) Value[T] {
	if !cri.known && cri.state == StateUnknown {
		return api
	}
	return cri
}

func equal[T comparable](a, b T) bool { return a == b }

// empty reports whether a value is an empty list or map, which is the same as none.
func empty[T any](v T) bool {
	switch v := any(v).(type) {
	case []string:
		return len(v) == 0
	case []int64:
		return len(v) == 0
	case map[string]string:
		return len(v) == 0
	default:
		return false
	}
}
