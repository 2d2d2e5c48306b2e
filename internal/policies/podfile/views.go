package podfile

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

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

		HostNetwork: admission.Set(spec.HostNetwork), HostPID: admission.Set(spec.HostPID),
		HostIPC:               admission.Set(spec.HostIPC),
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

func container(spec *corev1.PodSpec, c *corev1.Container, kind admission.Kind,
	volumes map[string]volume,
) admission.Container {
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

func text(s string) admission.Value[string] {
	if s == "" {
		return admission.Absent[string]()
	}
	return admission.Set(s)
}

type volume struct {
	view     admission.Volume
	image    admission.Value[string]
	readOnly bool // whatever the mount says
}

func volumesOf(list []corev1.Volume) map[string]volume {
	all := make(map[string]volume, len(list))
	for i := range list {
		all[list[i].Name] = volumeOf(&list[i].VolumeSource)
	}
	return all
}

// volumeOf returns the view of a volume. The type of a volume without a source, or with one that this version of the
// API does not have, is unknown.
func volumeOf(s *corev1.VolumeSource) volume {
	v := volume{view: admission.Volume{HostPath: admission.Absent[string](), HostPathType: admission.Absent[string]()}}
	sources := reflect.ValueOf(s).Elem()
	for i := range sources.NumField() {
		source := sources.Field(i)
		if source.IsNil() {
			continue
		}
		name, _, _ := strings.Cut(sources.Type().Field(i).Tag.Get("json"), ",")
		v.view.Type, v.image = admission.Set(name), admission.Absent[string]()
		v.readOnly = readOnlyType(name) || readOnlySource(source.Elem())
		break
	}
	if s.Image != nil {
		v.image = admission.Value[string]{} // the API server accepts a reference that is set later
		if s.Image.Reference != "" {
			v.image = admission.Set(s.Image.Reference)
		}
	}
	if h := s.HostPath; h != nil {
		v.view.HostPath = admission.Set(h.Path)
		// The empty type is what the API server makes of none. It takes effect: the kubelet does not check what is
		// there.
		v.view.HostPathType = admission.AbsentAs("")
		if h.Type != nil && *h.Type != corev1.HostPathUnset {
			v.view.HostPathType = admission.Set(string(*h.Type))
		}
	}
	return v
}

// readOnlyType reports whether kubelets mount every volume of the type read-only.
func readOnlyType(name string) bool {
	switch name {
	case "configMap", "downwardAPI", "projected", "secret", admission.TypeImage:
		return true
	default:
		return false
	}
}

func readOnlySource(source reflect.Value) bool {
	f := source.FieldByName("ReadOnly")
	if f.IsValid() && f.Kind() == reflect.Pointer {
		f = f.Elem() // invalid if it is nil
	}
	return f.IsValid() && f.Bool()
}

func mountsOf(c *corev1.Container, volumes map[string]volume) []admission.Mount {
	all := make([]admission.Mount, 0, len(c.VolumeMounts)+len(c.VolumeDevices))
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		v := volumes[m.Name] // a volume that the pod does not have is unknown
		mount := admission.Mount{
			Volume: v.view, Path: absolute(m.MountPath),
			ReadOnly: admission.Set(m.ReadOnly || v.readOnly), Propagation: admission.Absent[string](), Image: v.image,
		}
		if m.MountPropagation != nil {
			mount.Propagation = admission.Set(string(*m.MountPropagation))
		}
		all = append(all, mount)
	}
	for _, d := range c.VolumeDevices {
		v := volumes[d.Name]
		all = append(all, admission.Mount{
			Volume: v.view, Path: absolute(d.DevicePath), ReadOnly: admission.Set(v.readOnly),
			Propagation: admission.Absent[string](), Image: v.image,
		})
	}
	return all
}

func absolute(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return "/" + p
}
