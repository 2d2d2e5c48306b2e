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
func (p Pod) AtAdmission() (admission.Pod, []admission.Container) {
	pod, containers := ViewOf(p.api)
	pod.Object = p.api
	return pod, containers
}

// A Start is one creation that a node judges: of the sandbox of a pod if Container is nil, otherwise of a container.
type Start struct {
	Pod       admission.Pod
	Container *admission.Container
	// Others are the pod's other containers, if the node has the Pods of the API server.
	Others []admission.Container
}

// Node says how a node sees pods.
type Node struct {
	PodSource bool   // It has the Pods of the API server.
	ImageUser *int64 // the user of every image, which a node reads from the image; nil means that it is not known
}

// AtNode returns the views of CRI messages: of the sandbox, and of each container. A claim counts as a csi volume.
func (p Pod) AtNode(n Node) (starts []Start) {
	api, containers := p.AtAdmission()
	list := containersOf(&p.api.Spec)
	for i := -1; i < len(containers); i++ { // first the sandbox
		var start Start
		var c *admission.Container
		if i >= 0 {
			c = &containers[i]
		}
		start.Pod, start.Container = admission.Expected(api, c)
		if c != nil {
			n.complete(start.Container, list[i].VolumeMounts)
		}
		if n.PodSource {
			start.Pod, start.Container, _ = admission.Merge(start.Pod, api, start.Container, c)
		}
		if n.PodSource && c != nil {
			start.Others = slices.Delete(slices.Clone(containers), i, i+1)
		}
		starts = append(starts, start)
	}
	return starts
}

func (n Node) complete(c *admission.Container, declared []corev1.VolumeMount) {
	if n.ImageUser != nil && c.RunAsUser.State() != admission.StateSet {
		c.RunAsUser = admission.Set(*n.ImageUser)
		if _, known := c.RunAsNonRoot.Effective(); !known {
			c.RunAsNonRoot = admission.Effective(*n.ImageUser != 0)
		}
	}
	mounts, _ := c.Mounts.Effective() // a copy, with the devices at the end
	for i := range mounts {
		switch kind, _ := mounts[i].Type.Get(); {
		case i < len(declared) && (declared[i].SubPath != "" || declared[i].SubPathExpr != ""):
			mounts[i].Volume = admission.Volume{}
		case kind == admission.TypePersistentVolumeClaim, kind == admission.TypeEphemeral:
			mounts[i].Type = admission.Set("csi")
		}
	}
}

// containersOf returns the containers of all lists: init containers first, ephemeral ones last.
func containersOf(s *corev1.PodSpec) []corev1.Container {
	all := slices.Concat(s.InitContainers, s.Containers)
	for i := range s.EphemeralContainers {
		all = append(all, corev1.Container(s.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return all
}

// ViewOf returns the view of a pod and of all its containers, in the order of containersOf. It shares memory with the
// pod, which must not change afterwards.
func ViewOf(p *corev1.Pod) (admission.Pod, []admission.Container) {
	spec := &p.Spec
	sc := cmp.Or(spec.SecurityContext, &corev1.PodSecurityContext{})
	// No kubelet runs the copy of a static pod in the API server. A tenant can write other annotations too.
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	view := admission.Pod{
		UID: string(p.UID), Namespace: p.Namespace, Name: p.Name,
		Static:            mirror,
		Labels:            admission.Set(admission.Without(p.Labels, admission.KubeletLabel)),
		Annotations:       admission.Set(admission.Without(p.Annotations, admission.KubeletAnnotation)),
		ReviewAnnotations: admission.Set(admission.ForReview(p.Annotations)),
		HostNetwork:       admission.Set(spec.HostNetwork), HostPID: admission.Set(spec.HostPID),
		HostIPC:                       admission.Set(spec.HostIPC),
		ShareProcessNamespace:         pointer(spec.ShareProcessNamespace),
		RestartPolicy:                 text(spec.RestartPolicy),
		DNSPolicy:                     text(spec.DNSPolicy),
		TerminationGracePeriodSeconds: pointer(spec.TerminationGracePeriodSeconds),
		ActiveDeadlineSeconds:         pointer(spec.ActiveDeadlineSeconds),
		NodeSelector:                  admission.Set(spec.NodeSelector),
		AutomountServiceAccountToken:  pointer(spec.AutomountServiceAccountToken),
		SupplementalGroups:            unless(len(sc.SupplementalGroups) == 0, sc.SupplementalGroups),
		FSGroup:                       pointer(sc.FSGroup),
	}
	all, volumes := make([]admission.Volume, 0, len(spec.Volumes)), make(map[string]volume, len(spec.Volumes))
	for i := range spec.Volumes {
		v := volumeOf(&spec.Volumes[i].VolumeSource)
		volumes[spec.Volumes[i].Name], all = v, append(all, v.view)
	}
	view.Volumes = admission.Set(all)
	list := containersOf(spec)
	containers := make([]admission.Container, len(list))
	for i := range list {
		kind := admission.KindContainer
		switch {
		case i < len(spec.InitContainers):
			kind = admission.KindInit
		case i >= len(spec.InitContainers)+len(spec.Containers):
			kind = admission.KindEphemeral
		}
		containers[i] = container(spec, &list[i], kind, volumes)
	}
	return view, containers
}

func container(spec *corev1.PodSpec, c *corev1.Container, kind admission.Kind,
	volumes map[string]volume,
) admission.Container {
	pod := cmp.Or(spec.SecurityContext, &corev1.PodSecurityContext{})
	own := cmp.Or(c.SecurityContext, &corev1.SecurityContext{})
	caps := cmp.Or(own.Capabilities, &corev1.Capabilities{})
	// The values of the container come before those of the pod.
	view := admission.Container{
		Name: c.Name, Kind: admission.Set(kind),
		Image: text(c.Image), ImagePullPolicy: text(c.ImagePullPolicy),
		Privileged:               pointer(own.Privileged),
		ReadOnlyRootFilesystem:   pointer(own.ReadOnlyRootFilesystem),
		AllowPrivilegeEscalation: admission.AbsentAs(true),
		RunAsNonRoot:             pointer(cmp.Or(own.RunAsNonRoot, pod.RunAsNonRoot)),
		RunAsUser:                pointer(cmp.Or(own.RunAsUser, pod.RunAsUser)),
		RunAsGroup:               pointer(cmp.Or(own.RunAsGroup, pod.RunAsGroup)),
		CapabilitiesAdd:          capabilities(caps.Add),
		CapabilitiesDrop:         capabilities(caps.Drop),
		SELinux:                  admission.Absent[admission.SELinux](),
		Mounts:                   admission.Set(mountsOf(c, volumes)),
	}
	if own.AllowPrivilegeEscalation != nil {
		view.AllowPrivilegeEscalation = admission.Set(*own.AllowPrivilegeEscalation)
	}
	if o := cmp.Or(own.SELinuxOptions, pod.SELinuxOptions); o != nil {
		view.SELinux = admission.Set(admission.SELinux{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level})
	}
	return view
}

func capabilities(list []corev1.Capability) admission.Value[[]string] {
	var names []string
	for _, c := range list {
		names = append(names, string(c))
	}
	return unless(names == nil, names)
}

// unless returns the value of a field that the pod sets, unless it is absent.
func unless[T any](absent bool, v T) admission.Value[T] {
	if absent {
		return admission.Absent[T]()
	}
	return admission.Set(v)
}

func pointer[T any](p *T) admission.Value[T] {
	var none T
	return unless(p == nil, *cmp.Or(p, &none))
}

func text[S ~string](s S) admission.Value[string] { return unless(s == "", string(s)) }

type volume struct {
	view     admission.Volume
	image    admission.Value[string]
	readOnly bool // whatever the mount says
}

// volumeOf returns the view of a volume. The type without a source that this version of the API has is unknown.
func volumeOf(s *corev1.VolumeSource) volume {
	v := volume{view: admission.Volume{HostPath: admission.Absent[string](), HostPathType: admission.Absent[string]()}}
	for f, source := range reflect.ValueOf(s).Elem().Fields() {
		if source.IsNil() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
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
		// The API server sets the empty type if there is none: the kubelet does not check what is there.
		v.view.HostPathType = admission.AbsentAs("")
		if h.Type != nil && *h.Type != corev1.HostPathUnset {
			v.view.HostPathType = admission.Set(string(*h.Type))
		}
	}
	return v
}

// readOnlyType reports whether kubelets mount every volume of the type read-only.
func readOnlyType(name string) bool {
	return slices.Contains([]string{"configMap", "downwardAPI", "projected", "secret", admission.TypeImage}, name)
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
	add := func(name, path string, readOnly bool, propagation *corev1.MountPropagationMode) {
		v := volumes[name] // a volume that the pod does not have is unknown
		all = append(all, admission.Mount{
			Volume: v.view, Path: "/" + strings.TrimPrefix(path, "/"), ReadOnly: admission.Set(readOnly || v.readOnly),
			Propagation: pointer((*string)(propagation)), Image: v.image,
		})
	}
	for _, m := range c.VolumeMounts {
		add(m.Name, m.MountPath, m.ReadOnly, m.MountPropagation)
	}
	for _, d := range c.VolumeDevices {
		add(d.Name, d.DevicePath, false, nil)
	}
	return all
}
