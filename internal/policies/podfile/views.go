package podfile

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// AtAdmission returns the view of an admission review: the pod and all of its containers.
func (p Pod) AtAdmission() (admission.Pod, []admission.Container) { return ViewOf(p.api) }

// A Start is one creation that a node judges: of the sandbox of a pod if Container is nil, otherwise of a container.
type Start struct {
	Pod       admission.Pod
	Container *admission.Container
	// Others are the pod's other containers, if the node has the Pods of the API server.
	Others []admission.Container
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
	api, containers := ViewOf(p.api)
	sandbox, _ := admission.Expected(api, nil)
	starts := []Start{n.start(sandbox, api, nil, nil)}
	for i := range containers {
		pod, c := admission.Expected(api, &containers[i])
		n.complete(c, subPaths(&p.api.Spec, i))
		start := n.start(pod, api, c, &containers[i])
		if n.PodSource {
			start.Others = slices.Delete(slices.Clone(containers), i, i+1)
		}
		starts = append(starts, start)
	}
	return starts
}

func (n Node) start(pod, api admission.Pod, c, apiContainer *admission.Container) Start {
	if n.PodSource {
		pod, c, _ = admission.Merge(pod, api, c, apiContainer)
	}
	return Start{Pod: pod, Container: c}
}

// complete changes the view of a container to that of CRI messages. subPath reports which of its mounts have a subPath.
func (n Node) complete(c *admission.Container, subPath []bool) {
	if n.ImageUser != nil && c.RunAsUser.State() != admission.StateSet {
		c.RunAsUser = admission.Set(*n.ImageUser)
		if _, known := c.RunAsNonRoot.Effective(); !known {
			c.RunAsNonRoot = admission.Effective(*n.ImageUser != 0)
		}
	}
	mounts, _ := c.Mounts.Effective() // a copy
	for i := range mounts {
		switch kind, _ := mounts[i].Type.Get(); {
		case subPath[i]:
			mounts[i].Volume = admission.Volume{}
		case kind == admission.TypePersistentVolumeClaim, kind == admission.TypeEphemeral:
			mounts[i].Type = admission.Set("csi")
		}
	}
}

// subPaths reports for each mount of a view's container whether it has a subPath. index is that of the container in the
// view.
func subPaths(s *corev1.PodSpec, index int) []bool {
	containers := slices.Concat(s.InitContainers, s.Containers)
	for _, c := range s.EphemeralContainers {
		containers = append(containers, corev1.Container(c.EphemeralContainerCommon))
	}
	c := &containers[index]
	all := make([]bool, len(c.VolumeMounts)+len(c.VolumeDevices))
	for i, m := range c.VolumeMounts {
		all[i] = m.SubPath != "" || m.SubPathExpr != ""
	}
	return all
}
