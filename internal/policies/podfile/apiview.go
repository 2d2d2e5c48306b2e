package podfile

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// ViewOf returns the view of a pod and of all its containers: those of initContainers first, those of
// ephemeralContainers last. The view shares memory with the pod, which must not change afterwards.
func ViewOf(p *corev1.Pod) (admission.Pod, []admission.Container) {
	spec := &p.Spec
	volumes := volumesOf(spec.Volumes)
	view := admission.Pod{
		UID: string(p.UID), Namespace: p.Namespace, Name: p.Name,
		Static: static(p.Annotations),

		Labels:      admission.Set(admission.Without(p.Labels, admission.KubeletLabel)),
		Annotations: admission.Set(admission.Without(p.Annotations, admission.KubeletAnnotation)),

		ReviewAnnotations: admission.Set(admission.ForReview(p.Annotations)),

		HostNetwork: admission.Set(spec.HostNetwork), HostPID: admission.Set(spec.HostPID), HostIPC: admission.Set(spec.HostIPC),
		ShareProcessNamespace: pointer(spec.ShareProcessNamespace),

		RestartPolicy:                 text(string(spec.RestartPolicy)),
		DNSPolicy:                     text(string(spec.DNSPolicy)),
		TerminationGracePeriodSeconds: pointer(spec.TerminationGracePeriodSeconds),
		ActiveDeadlineSeconds:         pointer(spec.ActiveDeadlineSeconds),
		NodeSelector:                  admission.Set(spec.NodeSelector),
		AutomountServiceAccountToken:  pointer(spec.AutomountServiceAccountToken),

		SupplementalGroups: admission.Absent[[]int64](),
		FSGroup:            admission.Absent[int64](),
	}
	if sc := spec.SecurityContext; sc != nil {
		view.FSGroup = pointer(sc.FSGroup)
		if len(sc.SupplementalGroups) > 0 {
			view.SupplementalGroups = admission.Set(sc.SupplementalGroups)
		}
	}
	all := make([]admission.Volume, 0, len(spec.Volumes))
	for i := range spec.Volumes {
		all = append(all, volumeOf(&spec.Volumes[i].VolumeSource).view)
	}
	view.Volumes = admission.Set(all)
	return view, containersOf(spec, volumes)
}

// static reports whether the annotations are those of the copy of a static pod in the API server, which no kubelet
// runs. Every other annotation proves nothing, because a tenant can write it.
func static(annotations map[string]string) bool {
	_, mirror := annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

func containersOf(spec *corev1.PodSpec, volumes map[string]volume) []admission.Container {
	all := make([]admission.Container, 0, len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers))
	for i := range spec.InitContainers {
		all = append(all, container(spec, &spec.InitContainers[i], admission.KindInit, volumes))
	}
	for i := range spec.Containers {
		all = append(all, container(spec, &spec.Containers[i], admission.KindContainer, volumes))
	}
	for i := range spec.EphemeralContainers {
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		all = append(all, container(spec, &c, admission.KindEphemeral, volumes))
	}
	return all
}

func container(spec *corev1.PodSpec, c *corev1.Container, kind admission.Kind, volumes map[string]volume) admission.Container {
	pod, own := spec.SecurityContext, c.SecurityContext
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	// The values of the container come before those of the pod.
	view := admission.Container{
		Name: c.Name, Kind: admission.Set(kind),
		Image: text(c.Image), ImagePullPolicy: text(string(c.ImagePullPolicy)),

		Privileged:               pointer(own.Privileged),
		ReadOnlyRootFilesystem:   pointer(own.ReadOnlyRootFilesystem),
		AllowPrivilegeEscalation: admission.AbsentAs(true),
		RunAsNonRoot:             pointer(cmp.Or(own.RunAsNonRoot, pod.RunAsNonRoot)),
		RunAsUser:                pointer(cmp.Or(own.RunAsUser, pod.RunAsUser)),
		RunAsGroup:               pointer(cmp.Or(own.RunAsGroup, pod.RunAsGroup)),
		CapabilitiesAdd:          admission.Absent[[]string](),
		CapabilitiesDrop:         admission.Absent[[]string](),
		SELinux:                  admission.Absent[admission.SELinux](),
		Mounts:                   admission.Set(mountsOf(c, volumes)),
	}
	if own.AllowPrivilegeEscalation != nil {
		view.AllowPrivilegeEscalation = admission.Set(*own.AllowPrivilegeEscalation)
	}
	if caps := own.Capabilities; caps != nil {
		view.CapabilitiesAdd, view.CapabilitiesDrop = capabilities(caps.Add), capabilities(caps.Drop)
	}
	if o := cmp.Or(own.SELinuxOptions, pod.SELinuxOptions); o != nil {
		view.SELinux = admission.Set(admission.SELinux{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level})
	}
	return view
}

func capabilities(list []corev1.Capability) admission.Value[[]string] {
	if len(list) == 0 {
		return admission.Absent[[]string]()
	}
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = string(c)
	}
	return admission.Set(names)
}

func pointer[T any](p *T) admission.Value[T] {
	if p == nil {
		return admission.Absent[T]()
	}
	return admission.Set(*p)
}

// text returns the value of a field that is absent if it is empty.
func text(s string) admission.Value[string] {
	if s == "" {
		return admission.Absent[string]()
	}
	return admission.Set(s)
}
