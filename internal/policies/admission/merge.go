package admission

import (
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
)

// Merge returns the view of a pod and one of its containers from CRI messages and the Pod of the API. Where both know a
// field, the CRI wins, because it describes what runs. conflicts are the fields in which they differ, in a fixed order.
// A field that a pod leaves out and the CRI has with the default is not a conflict. Both containers may be nil.
func Merge(cri, api Pod, container, apiContainer *Container) (pod Pod, merged *Container, conflicts []string) {
	var m merger
	pod = m.pod(cri, api)
	if container != nil {
		c := *container
		if apiContainer != nil {
			c = m.container(c, *apiContainer)
		}
		merged = &c
	}
	if _, unusable := pod.Object.(error); !unusable && pod.Object != nil {
		switch {
		case container != nil && apiContainer == nil:
			pod.Object = fmt.Errorf("the Pod of the API server does not have container %.63q yet", container.Name)
		case m.other != "":
			pod.Object = fmt.Errorf("the kubelet and the API server differ about %s of the pod", m.other)
		}
	}
	return pod, merged, m.conflicts
}

type merger struct {
	conflicts []string
	other     string // one because of which the Pod of the API is not what runs; "" if there is none
}

func (m *merger) conflict(field string) {
	m.note(field)
	if !slices.Contains([]string{"labels", "annotations", "image"}, field) { // a user can edit these at any time
		m.other = field
	}
}

func (m *merger) note(field string) {
	if !slices.Contains(m.conflicts, field) {
		m.conflicts = append(m.conflicts, field)
	}
}

func (m *merger) pod(cri, api Pod) Pod {
	p := cri
	p.Object = api.Object
	p.NamespaceLabels = either(cri.NamespaceLabels, api.NamespaceLabels)
	merge(m, "labels", &p.Labels, api.Labels, maps.Equal)
	merge(m, "annotations", &p.Annotations, api.Annotations, maps.Equal)
	merge(m, "annotations", &p.ReviewAnnotations, api.ReviewAnnotations, maps.Equal)
	merge(m, "hostNetwork", &p.HostNetwork, api.HostNetwork, equal)
	merge(m, "hostPID", &p.HostPID, api.HostPID, equal)
	merge(m, "hostIPC", &p.HostIPC, api.HostIPC, equal)
	merge(m, "shareProcessNamespace", &p.ShareProcessNamespace, api.ShareProcessNamespace, equal)
	merge(m, "terminationGracePeriodSeconds", &p.TerminationGracePeriodSeconds, api.TerminationGracePeriodSeconds, equal)
	p.AutomountServiceAccountToken = derived(cri.AutomountServiceAccountToken, api.AutomountServiceAccountToken)
	p.RestartPolicy = either(cri.RestartPolicy, api.RestartPolicy)
	p.DNSPolicy = either(cri.DNSPolicy, api.DNSPolicy)
	p.ActiveDeadlineSeconds = either(cri.ActiveDeadlineSeconds, api.ActiveDeadlineSeconds)
	p.NodeSelector = either(cri.NodeSelector, api.NodeSelector)
	p.Volumes = either(cri.Volumes, api.Volumes)
	m.groups(&p, api)
	return p
}

// groups separates the groups of the CRI by the Pod of the API, which does not have the groups of volumes.
func (m *merger) groups(p *Pod, api Pod) {
	if p.SupplementalGroups.State() != StateUnknown || p.FSGroup.State() != StateUnknown ||
		api.SupplementalGroups.State() == StateUnknown {
		return
	}
	running, ok := p.Groups.Effective()
	if !ok {
		p.SupplementalGroups, p.FSGroup = api.SupplementalGroups, api.FSGroup
		return
	}
	listed, _ := api.SupplementalGroups.Get()
	declared := listed
	if fsGroup, state := api.FSGroup.Get(); state == StateSet {
		declared = slices.Concat(listed, []int64{fsGroup})
	}
	if slices.ContainsFunc(declared, func(g int64) bool { return !slices.Contains(running, g) }) {
		m.conflict("supplementalGroups")
		return
	}
	ofVolumes := slices.DeleteFunc(slices.Clone(running), func(g int64) bool { return slices.Contains(declared, g) })
	p.FSGroup, p.SupplementalGroups = api.FSGroup, api.SupplementalGroups
	if len(ofVolumes) > 0 {
		p.SupplementalGroups = Set(slices.Concat(listed, ofVolumes))
	}
}

func (m *merger) container(cri, api Container) Container {
	c := cri
	c.Kind = either(cri.Kind, api.Kind)
	merge(m, "image", &c.Image, api.Image, equal)
	c.ImagePullPolicy = either(cri.ImagePullPolicy, api.ImagePullPolicy)
	merge(m, "privileged", &c.Privileged, api.Privileged, equal)
	merge(m, "readOnlyRootFilesystem", &c.ReadOnlyRootFilesystem, api.ReadOnlyRootFilesystem, equal)
	merge(m, "allowPrivilegeEscalation", &c.AllowPrivilegeEscalation, api.AllowPrivilegeEscalation, equal)
	c.RunAsNonRoot = derived(cri.RunAsNonRoot, api.RunAsNonRoot)
	if api.RunAsUser.State() == StateSet { // otherwise it is the user of the image, which the API does not know
		merge(m, "runAsUser", &c.RunAsUser, api.RunAsUser, equal)
	}
	merge(m, "runAsGroup", &c.RunAsGroup, api.RunAsGroup, equal)
	merge(m, "capabilities.add", &c.CapabilitiesAdd, api.CapabilitiesAdd, slices.Equal)
	merge(m, "capabilities.drop", &c.CapabilitiesDrop, api.CapabilitiesDrop, slices.Equal)
	merge(m, "seLinuxOptions", &c.SELinux, api.SELinux, equal)
	c.Mounts = m.mounts(cri.Mounts, api.Mounts)
	return c
}

// mounts completes the mounts of the CRI by the volumes of the API. A mount that only the CRI has stays. So do several
// mounts at one path, which the API server compares as text: it is unknown which is which.
func (m *merger) mounts(cri, api Value[[]Mount]) Value[[]Mount] {
	running, ok := cri.Effective()
	if !ok {
		return api
	}
	list, _ := api.Effective()
	declared, at := map[string][]Mount{}, map[string]int{}
	for _, m := range list {
		declared[path.Clean(m.Path)] = append(declared[path.Clean(m.Path)], m)
	}
	for _, m := range running {
		at[path.Clean(m.Path)]++
	}
	all := slices.Clone(running)
	for i := range all {
		switch clean := path.Clean(all[i].Path); {
		case len(declared[clean]) == 1 && at[clean] == 1:
			all[i] = m.mount(all[i], declared[clean][0])
		case len(declared[clean]) == at[clean]: // only their order is unknown
			m.note("volumeType")
		case len(declared[clean]) > 0:
			m.conflict("volumeType")
		}
	}
	return Set(all)
}

func (m *merger) mount(cri, api Mount) Mount {
	merged := cri
	merge(m, "mount.readOnly", &merged.ReadOnly, api.ReadOnly, equal)
	merge(m, "mount.mountPropagation", &merged.Propagation, api.Propagation, equal)
	merge(m, "mount.image", &merged.Image, api.Image, equal)
	if claimed, _ := api.Type.Get(); claimed == TypePersistentVolumeClaim || claimed == TypeEphemeral {
		// The CRI shows the volume behind the claim. Nothing overrides a hostPath, which that can be too.
		if runs, _ := cri.Type.Effective(); runs != TypeHostPath {
			merged.Type = api.Type
		}
		return merged
	}
	runs, _ := cri.Type.Effective()
	if declares, _ := api.Type.Get(); runs == typeCSI && slices.Contains(migrated(), declares) {
		m.note("volumeType") // the kubelet has a driver mount it
		return merged
	}
	merge(m, "volumeType", &merged.Type, api.Type, equal)
	if merged.Type != api.Type {
		return merged
	}
	merge(m, "hostPath.path", &merged.HostPath, api.HostPath, equal)
	merged.HostPathType = either(cri.HostPathType, api.HostPathType)
	return merged
}

const typeCSI = "csi"

// migrated returns the types of volumes for which kubelets use drivers instead of code of their own.
func migrated() []string {
	return []string{
		"awsElasticBlockStore", "azureDisk", "azureFile", "cinder", "gcePersistentDisk", "portworxVolume", "vsphereVolume",
	}
}

// merge keeps the value of the CRI, with the state of the API if the CRI does not know it. A difference is a conflict.
func merge[T any](m *merger, field string, cri *Value[T], api Value[T], same func(a, b T) bool) {
	switch {
	case !cri.known && cri.state == StateUnknown:
		*cri = api
	case api.state == StateUnknown:
	case cri.known && api.known && !same(cri.value, api.value),
		cri.state == StateSet && api.state == StateAbsent && !empty(cri.value),
		cri.state == StateAbsent && api.state == StateSet && !empty(api.value):
		m.conflict(field)
	case cri.state == StateUnknown:
		cri.state = api.state
	}
}

// derived is merge for a field that the CRI derives from another one: a difference is not a conflict. Without a value
// of both it is unknown: what a pod does not set is derived all the same.
func derived[T any](cri, api Value[T]) Value[T] {
	switch {
	case !cri.known && !api.known:
		return Value[T]{}
	case !cri.known:
		return api
	case cri.state == StateUnknown:
		cri.state = api.state
	}
	return cri
}

func either[T any](cri, api Value[T]) Value[T] {
	if !cri.known && cri.state == StateUnknown {
		return api
	}
	return cri
}

func equal[T comparable](a, b T) bool { return a == b }

// An empty list or map is the same as none.
func empty[T any](v T) bool {
	r := reflect.ValueOf(v)
	return (r.Kind() == reflect.Slice || r.Kind() == reflect.Map) && r.Len() == 0
}

// Expected returns the view of the CRI messages by which a kubelet would create the sandbox of a pod or, unless it is
// nil, the container. What only the node knows is unknown; a claim shows itself, and a subPath its volume.
func Expected(api Pod, container *Container) (Pod, *Container) {
	p := Pod{
		UID: api.UID, Namespace: api.Namespace, Name: api.Name, Static: api.Static,
		Labels: api.Labels, Annotations: api.Annotations, ReviewAnnotations: api.ReviewAnnotations,
		HostNetwork: api.HostNetwork, HostPID: api.HostPID, HostIPC: api.HostIPC,
		ShareProcessNamespace: sent(api.ShareProcessNamespace, false),
		Groups:                groupsSent(api),
	}
	if container == nil {
		return p, nil
	}
	c := Container{
		Name: container.Name, Image: container.Image,
		Privileged:               sent(container.Privileged, false),
		ReadOnlyRootFilesystem:   sent(container.ReadOnlyRootFilesystem, false),
		AllowPrivilegeEscalation: sent(container.AllowPrivilegeEscalation, true),
		RunAsGroup:               container.RunAsGroup,
		CapabilitiesAdd:          container.CapabilitiesAdd,
		CapabilitiesDrop:         container.CapabilitiesDrop,
		SELinux:                  container.SELinux,
	}
	if container.RunAsUser.State() == StateSet { // otherwise it is the user of the image
		c.RunAsUser = container.RunAsUser
	}
	// A kubelet does not start a container as user 0 whose pod demands another one.
	if demanded, _ := container.RunAsNonRoot.Get(); demanded {
		c.RunAsNonRoot = Effective(true)
	} else if uid, ok := c.RunAsUser.Effective(); ok {
		c.RunAsNonRoot = Effective(uid != 0)
	}
	p.TerminationGracePeriodSeconds = api.TerminationGracePeriodSeconds
	if mounts, ok := container.Mounts.Effective(); ok {
		c.Mounts = mountsSent(mounts)
		p.AutomountServiceAccountToken = Effective(slices.ContainsFunc(mounts,
			func(m Mount) bool { return path.Clean(m.Path) == ServiceAccountPath }))
	}
	return p, &c
}

func mountsSent(api []Mount) Value[[]Mount] {
	all := slices.Clone(api)
	for i := range all {
		m := &all[i]
		if kind, _ := m.Type.Get(); kind == TypeHostPath {
			m.HostPathType = Value[string]{}
		}
		if mode, _ := m.Propagation.Get(); mode == "" || mode == PropagationNone {
			m.Propagation = Effective(PropagationNone)
		}
	}
	return Set(all)
}

func groupsSent(api Pod) Value[[]int64] {
	groups, state := api.SupplementalGroups.Get()
	if state == StateUnknown || api.FSGroup.State() == StateUnknown {
		return Value[[]int64]{}
	}
	if g, set := api.FSGroup.Get(); set == StateSet {
		groups = slices.Concat([]int64{g}, groups)
	}
	return Set(groups)
}

// sent returns a boolean as the CRI has it: it does not say whether the default was set.
func sent(api Value[bool], byDefault bool) Value[bool] {
	switch set, state := api.Get(); {
	case state == StateUnknown && !api.known, state == StateSet && set != byDefault:
		return api
	}
	return Effective(byDefault)
}
