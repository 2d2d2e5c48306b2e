package podfile

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/pkg/podview"
	"github.com/pullgate/pullgate/pkg/podview/apiview"
)

// AtAdmission returns the view of an admission review: the pod and all of its containers.
func (p Pod) AtAdmission() (podview.Pod, []podview.Container) { return apiview.Pod(p.api) }

// A Start is one creation that a node judges: of the sandbox of a pod if Container is nil, otherwise of a container.
type Start struct {
	Pod       podview.Pod
	Container *podview.Container
}

// Node says how a node sees pods.
type Node struct {
	// PodSource reports whether it has the Pods of the API server.
	PodSource bool
	// ImageUser is the user of every image, which a node reads from the image; nil means that it is not known.
	ImageUser *int64
}

// AtNode returns the views of CRI messages: that of the sandbox, and one for each container.
//
// A claim counts as a volume of type csi, because the driver behind it is not in the file.
func (p Pod) AtNode(n Node) []Start {
	api, containers := apiview.Pod(p.api)
	starts := []Start{n.start(sandbox(api), api, nil, nil)}
	for i := range containers {
		c := n.container(&containers[i], subPaths(&p.api.Spec, i))
		pod := sandbox(api)
		pod.TerminationGracePeriodSeconds = api.TerminationGracePeriodSeconds
		pod.AutomountServiceAccountToken = podview.Effective(mountsToken(&c))
		starts = append(starts, n.start(pod, api, &c, &containers[i]))
	}
	return starts
}

func (n Node) start(pod, api podview.Pod, c, apiContainer *podview.Container) Start {
	if !n.PodSource {
		return Start{pod, c}
	}
	merged, container, _ := podview.Merge(pod, api, c, apiContainer)
	return Start{merged, container}
}

// sandbox returns what the configuration of a sandbox says of a pod.
func sandbox(api podview.Pod) podview.Pod {
	pod := podview.Pod{
		UID: api.UID, Namespace: api.Namespace, Name: api.Name, Static: api.Static,
		Labels: api.Labels, Annotations: api.Annotations,
		HostNetwork: api.HostNetwork, HostPID: api.HostPID, HostIPC: api.HostIPC,
		ShareProcessNamespace: effective(api.ShareProcessNamespace, false),
	}
	groups, _ := api.SupplementalGroups.Get()
	if g, state := api.FSGroup.Get(); state == podview.StateSet {
		groups = append([]int64{g}, groups...)
	}
	pod.Groups = podview.Set(groups)
	return pod
}

// container returns what the configuration of a container says of it. subPath reports which of its mounts have a subPath.
func (n Node) container(api *podview.Container, subPath []bool) podview.Container {
	c := podview.Container{
		Name: api.Name, Image: api.Image,
		Privileged:               effective(api.Privileged, false),
		ReadOnlyRootFilesystem:   effective(api.ReadOnlyRootFilesystem, false),
		AllowPrivilegeEscalation: effective(api.AllowPrivilegeEscalation, true),
		RunAsUser:                n.user(api),
		RunAsGroup:               api.RunAsGroup,
		CapabilitiesAdd:          api.CapabilitiesAdd,
		CapabilitiesDrop:         api.CapabilitiesDrop,
		SELinux:                  api.SELinux,
	}
	// A kubelet does not start a container as user 0 whose pod demands another one.
	if demanded, _ := api.RunAsNonRoot.Get(); demanded {
		c.RunAsNonRoot = podview.Effective(true)
	} else if uid, ok := c.RunAsUser.Effective(); ok {
		c.RunAsNonRoot = podview.Effective(uid != 0)
	}
	mounts, _ := api.Mounts.Effective()
	found := make([]podview.Mount, 0, len(mounts))
	for i, m := range mounts {
		m.Volume = volume(m.Volume)
		if subPath[i] {
			m.Volume = podview.Volume{}
		}
		if mode, _ := m.Propagation.Get(); mode == "" || mode == podview.PropagationNone {
			m.Propagation = podview.Effective(podview.PropagationNone)
		}
		found = append(found, m)
	}
	c.Mounts = podview.Set(found)
	return c
}

func (n Node) user(api *podview.Container) podview.Value[int64] {
	switch {
	case api.RunAsUser.State() == podview.StateSet:
		return api.RunAsUser
	case n.ImageUser != nil:
		return podview.Set(*n.ImageUser)
	default:
		return podview.Value[int64]{}
	}
}

// volume returns what a path shows of a volume.
func volume(v podview.Volume) podview.Volume {
	switch kind, _ := v.Type.Get(); kind {
	case podview.TypeHostPath:
		v.HostPathType = podview.Value[string]{}
	case podview.TypePersistentVolumeClaim, podview.TypeEphemeral:
		v.Type = podview.Set("csi")
	}
	return v
}

// effective returns a boolean as the CRI has it: it does not say whether the default was set.
func effective(v podview.Value[bool], byDefault bool) podview.Value[bool] {
	if set, state := v.Get(); state == podview.StateSet && set != byDefault {
		return v
	}
	return podview.Effective(byDefault)
}

func mountsToken(c *podview.Container) bool {
	mounts, _ := c.Mounts.Effective()
	for _, m := range mounts {
		if m.Path == podview.ServiceAccountPath {
			return true
		}
	}
	return false
}

// subPaths reports for each mount of a view's container whether it has a subPath. index is that of the container in the view.
func subPaths(s *corev1.PodSpec, index int) []bool {
	var mounts []corev1.VolumeMount
	var devices int
	switch init, normal := len(s.InitContainers), len(s.InitContainers)+len(s.Containers); {
	case index < init:
		mounts, devices = s.InitContainers[index].VolumeMounts, len(s.InitContainers[index].VolumeDevices)
	case index < normal:
		c := &s.Containers[index-init]
		mounts, devices = c.VolumeMounts, len(c.VolumeDevices)
	default:
		c := &s.EphemeralContainers[index-normal]
		mounts, devices = c.VolumeMounts, len(c.VolumeDevices)
	}
	all := make([]bool, 0, len(mounts)+devices)
	for _, m := range mounts {
		all = append(all, m.SubPath != "" || m.SubPathExpr != "")
	}
	return append(all, make([]bool, devices)...)
}
