package admission

import (
	"path"
	"slices"
)

// Expected returns the view of the CRI messages by which a kubelet would create the sandbox of a pod or, unless
// container is nil, the container, as far as a view of the Pod of the API shows it. What that view does not have is
// unknown. So is what only the node knows, such as the user of an image. A claim shows itself and not the driver behind
// it, and a subPath its volume.
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
		p.AutomountServiceAccountToken = Effective(slices.ContainsFunc(mounts, func(m Mount) bool { return path.Clean(m.Path) == ServiceAccountPath }))
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

// groupsSent returns the one list of groups that the CRI has.
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
	default:
		return Effective(byDefault)
	}
}
