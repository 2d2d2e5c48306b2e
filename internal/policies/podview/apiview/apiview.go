package apiview

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/policies/podview"
)

// Pod returns the view of a pod and of all its containers: those of initContainers first, those of ephemeralContainers last. The view
// shares memory with the pod, which must not change afterwards.
func Pod(p *corev1.Pod) (podview.Pod, []podview.Container) {
	spec := &p.Spec
	volumes := volumesOf(spec.Volumes)
	view := podview.Pod{
		UID: string(p.UID), Namespace: p.Namespace, Name: p.Name,
		Static: static(p.Annotations),

		Labels:      podview.Set(podview.Without(p.Labels, podview.KubeletLabel)),
		Annotations: podview.Set(podview.Without(p.Annotations, podview.KubeletAnnotation)),

		ReviewAnnotations: podview.Set(podview.ForReview(p.Annotations)),

		HostNetwork: podview.Set(spec.HostNetwork), HostPID: podview.Set(spec.HostPID), HostIPC: podview.Set(spec.HostIPC),
		ShareProcessNamespace: pointer(spec.ShareProcessNamespace),

		RestartPolicy:                 text(string(spec.RestartPolicy)),
		DNSPolicy:                     text(string(spec.DNSPolicy)),
		TerminationGracePeriodSeconds: pointer(spec.TerminationGracePeriodSeconds),
		ActiveDeadlineSeconds:         pointer(spec.ActiveDeadlineSeconds),
		NodeSelector:                  podview.Set(spec.NodeSelector),
		AutomountServiceAccountToken:  pointer(spec.AutomountServiceAccountToken),

		SupplementalGroups: podview.Absent[[]int64](),
		FSGroup:            podview.Absent[int64](),
	}
	if sc := spec.SecurityContext; sc != nil {
		view.FSGroup = pointer(sc.FSGroup)
		if len(sc.SupplementalGroups) > 0 {
			view.SupplementalGroups = podview.Set(sc.SupplementalGroups)
		}
	}
	all := make([]podview.Volume, 0, len(spec.Volumes))
	for i := range spec.Volumes {
		all = append(all, volumeOf(&spec.Volumes[i].VolumeSource).view)
	}
	view.Volumes = podview.Set(all)
	return view, containersOf(spec, volumes)
}

// static reports whether the annotations are those of the copy of a static pod in the API server, which no kubelet runs. Every other annotation
// proves nothing, because a tenant can write it.
func static(annotations map[string]string) bool {
	_, mirror := annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

func containersOf(spec *corev1.PodSpec, volumes map[string]volume) []podview.Container {
	all := make([]podview.Container, 0, len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers))
	for i := range spec.InitContainers {
		all = append(all, container(spec, &spec.InitContainers[i], podview.KindInit, volumes))
	}
	for i := range spec.Containers {
		all = append(all, container(spec, &spec.Containers[i], podview.KindContainer, volumes))
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		all = append(all, container(spec, &c, podview.KindEphemeral, volumes))
	}
	return all
}

func container(spec *corev1.PodSpec, c *corev1.Container, kind podview.Kind, volumes map[string]volume) podview.Container {
	pod, own := spec.SecurityContext, c.SecurityContext
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	// The values of the container come before those of the pod.
	view := podview.Container{
		Name: c.Name, Kind: podview.Set(kind),
		Image: text(c.Image), ImagePullPolicy: text(string(c.ImagePullPolicy)),

		Privileged:               pointer(own.Privileged),
		ReadOnlyRootFilesystem:   pointer(own.ReadOnlyRootFilesystem),
		AllowPrivilegeEscalation: podview.AbsentAs(true),
		RunAsNonRoot:             pointer(cmp.Or(own.RunAsNonRoot, pod.RunAsNonRoot)),
		RunAsUser:                pointer(cmp.Or(own.RunAsUser, pod.RunAsUser)),
		RunAsGroup:               pointer(cmp.Or(own.RunAsGroup, pod.RunAsGroup)),
		CapabilitiesAdd:          podview.Absent[[]string](),
		CapabilitiesDrop:         podview.Absent[[]string](),
		SELinux:                  podview.Absent[podview.SELinux](),
		Mounts:                   podview.Set(mountsOf(c, volumes)),
	}
	if own.AllowPrivilegeEscalation != nil {
		view.AllowPrivilegeEscalation = podview.Set(*own.AllowPrivilegeEscalation)
	}
	if caps := own.Capabilities; caps != nil {
		view.CapabilitiesAdd, view.CapabilitiesDrop = capabilities(caps.Add), capabilities(caps.Drop)
	}
	if o := cmp.Or(own.SELinuxOptions, pod.SELinuxOptions); o != nil {
		view.SELinux = podview.Set(podview.SELinux{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level})
	}
	return view
}

func capabilities(list []corev1.Capability) podview.Value[[]string] {
	if len(list) == 0 {
		return podview.Absent[[]string]()
	}
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = string(c)
	}
	return podview.Set(names)
}

func pointer[T any](p *T) podview.Value[T] {
	if p == nil {
		return podview.Absent[T]()
	}
	return podview.Set(*p)
}

// text returns the value of a field that is absent if it is empty.
func text(s string) podview.Value[string] {
	if s == "" {
		return podview.Absent[string]()
	}
	return podview.Set(s)
}
