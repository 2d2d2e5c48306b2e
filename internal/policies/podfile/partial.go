package podfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// The annotations of a Pod that is sent to a hook. Those that a tenant wrote are replaced.
const (
	StageAnnotation     = "policy.pullgate.dev/stage"
	ContainerAnnotation = "policy.pullgate.dev/container"
	UnknownAnnotation   = "policy.pullgate.dev/unknown-fields"
)

// ForHook returns the JSON of the Pod that a hook gets about a subject of a node: that of the API server, or what is
// known. In the latter, a field that is unknown is left out, and its path is in unknown and in UnknownAnnotation.
func ForHook(s *admission.Subject, stage, node string) (data []byte, unknown []string, err error) {
	var pod corev1.Pod
	sparse := false
	switch whole := s.Pod.Object.(type) {
	case *corev1.Pod:
		pod = wholeOf(whole, s)
	case []byte: // of the pod source
		if err := pod.Unmarshal(whole); err != nil {
			return nil, nil, err
		}
		pod = wholeOf(&pod, s)
	case error:
		return nil, nil, whole
	default:
		p := partial{known: map[string]bool{}, expanded: map[string]reflect.Type{
			"metadata": reflect.TypeFor[metav1.ObjectMeta](), "spec": reflect.TypeFor[corev1.PodSpec](),
			"spec.securityContext": reflect.TypeFor[corev1.PodSecurityContext](),
		}}
		sparse = true
		p.pod(&pod, &s.Pod, node)
		if s.Container != nil {
			if p.container(&pod.Spec, s.Container); nothingKnown(s) {
				return nil, nil, errors.New("neither the labels of the pod nor the image of the container is known")
			}
		}
		unknown = p.unknown()
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Annotations = maps.Clone(pod.Annotations)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[StageAnnotation] = stage
	delete(pod.Annotations, ContainerAnnotation)
	if s.Container != nil {
		pod.Annotations[ContainerAnnotation] = s.Container.Name
	}
	pod.Annotations[UnknownAnnotation] = strings.Join(unknown, ",")
	if sparse {
		data, err = marshalSparse(&pod)
	} else {
		data, err = json.Marshal(&pod)
	}
	return data, unknown, err
}

// marshalSparse returns JSON without the fields that the types of Kubernetes write although they are empty.
func marshalSparse(pod *corev1.Pod) ([]byte, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return nil, err
	}
	delete(object, "status")
	spec, _ := object["spec"].(map[string]any)
	for _, name := range []string{"containers", "initContainers", "ephemeralContainers"} {
		list, _ := spec[name].([]any)
		if len(list) == 0 {
			delete(spec, name)
		}
		for _, c := range list {
			container, _ := c.(map[string]any)
			delete(container, "resources")
		}
	}
	return json.Marshal(object)
}

func nothingKnown(s *admission.Subject) bool {
	return s.Pod.Labels.State() == admission.StateUnknown && s.Container.Image.State() == admission.StateUnknown
}

// wholeOf returns the Pod of the API server with what runs, where a user can have edited that since.
func wholeOf(object *corev1.Pod, s *admission.Subject) corev1.Pod {
	pod := *object
	edited := func(has *map[string]string, runs admission.Value[map[string]string], own func(string) bool) {
		if value, ok := runs.Effective(); ok && !maps.Equal(value, admission.Without(*has, own)) {
			*has = value
		}
	}
	edited(&pod.Labels, s.Pod.Labels, admission.KubeletLabel)
	edited(&pod.Annotations, s.Pod.Annotations, admission.KubeletAnnotation)
	if s.Container == nil {
		return pod
	}
	image, ok := s.Container.Image.Effective()
	for i := range pod.Spec.EphemeralContainers {
		if c := &pod.Spec.EphemeralContainers[i]; ok && c.Name == s.Container.Name && c.Image != image {
			pod.Spec.EphemeralContainers = slices.Clone(pod.Spec.EphemeralContainers)
			pod.Spec.EphemeralContainers[i].Image = image
		}
	}
	for _, list := range []*[]corev1.Container{&pod.Spec.Containers, &pod.Spec.InitContainers} {
		for i := range *list {
			if c := &(*list)[i]; ok && c.Name == s.Container.Name && c.Image != image {
				*list = slices.Clone(*list)
				(*list)[i].Image = image
			}
		}
	}
	return pod
}

// A partial has the paths of the fields that are known, and the types of those whose own fields can be.
type partial struct {
	known    map[string]bool
	expanded map[string]reflect.Type
}

// take returns the value of a field that takes effect; ok is false if there is none. The field is known then, and also
// if the pod does not set it.
func take[T any](p *partial, path string, v admission.Value[T]) (value T, ok bool) {
	value, ok = v.Effective()
	p.known[path] = p.known[path] || ok || v.State() == admission.StateAbsent
	return value, ok
}

// set sets a field to what take returns, unless there is nothing.
func set[T, U any](p *partial, path string, v admission.Value[T], field *U, as func(T) U) {
	if value, ok := take(p, path, v); ok {
		*field = as(value)
	}
}

func same[T any](v T) T { return v }

//go:fix inline
func pointerTo[T any](v T) *T { return new(v) }

func (p *partial) pod(pod *corev1.Pod, from *admission.Pod, node string) {
	pod.UID, pod.Namespace, pod.Name = types.UID(from.UID), from.Namespace, from.Name
	p.known["metadata.uid"], p.known["metadata.namespace"] = from.UID != "", from.Namespace != ""
	p.known["metadata.name"], p.known["spec.nodeName"] = from.Name != "", true
	set(p, "metadata.labels", from.Labels, &pod.Labels, same)
	set(p, "metadata.annotations", from.Annotations, &pod.Annotations, same)
	spec := &pod.Spec
	spec.NodeName = node
	set(p, "spec.hostNetwork", from.HostNetwork, &spec.HostNetwork, same)
	set(p, "spec.hostPID", from.HostPID, &spec.HostPID, same)
	set(p, "spec.hostIPC", from.HostIPC, &spec.HostIPC, same)
	set(p, "spec.shareProcessNamespace", from.ShareProcessNamespace, &spec.ShareProcessNamespace, pointerTo)
	set(p, "spec.restartPolicy", from.RestartPolicy, &spec.RestartPolicy, func(s string) corev1.RestartPolicy {
		return corev1.RestartPolicy(s)
	})
	set(p, "spec.dnsPolicy", from.DNSPolicy, &spec.DNSPolicy,
		func(s string) corev1.DNSPolicy { return corev1.DNSPolicy(s) })
	set(p, "spec.terminationGracePeriodSeconds", from.TerminationGracePeriodSeconds, &spec.TerminationGracePeriodSeconds,
		pointerTo)
	set(p, "spec.activeDeadlineSeconds", from.ActiveDeadlineSeconds, &spec.ActiveDeadlineSeconds, pointerTo)
	set(p, "spec.nodeSelector", from.NodeSelector, &spec.NodeSelector, same)
	set(p, "spec.automountServiceAccountToken", from.AutomountServiceAccountToken, &spec.AutomountServiceAccountToken,
		pointerTo)
	sc := &corev1.PodSecurityContext{}
	set(p, "spec.securityContext.fsGroup", from.FSGroup, &sc.FSGroup, pointerTo)
	set(p, "spec.securityContext.supplementalGroups", from.SupplementalGroups, &sc.SupplementalGroups, same)
	if groups, ok := from.Groups.Effective(); ok && !p.known["spec.securityContext.supplementalGroups"] {
		sc.SupplementalGroups = groups // with those of fsGroup and of volumes, so it stays unknown
	}
	spec.SecurityContext = sc
}

// container adds the container. Its list, of which no other element is sent, and the volumes stay unknown.
func (p *partial) container(spec *corev1.PodSpec, from *admission.Container) {
	at := "spec.containers[*]"
	kind, _ := from.Kind.Get()
	switch kind {
	case admission.KindInit:
		at = "spec.initContainers[*]"
	case admission.KindEphemeral:
		at = "spec.ephemeralContainers[*]"
	case admission.KindContainer:
	}
	if p.expanded[at] = reflect.TypeFor[corev1.Container](); kind == admission.KindEphemeral {
		p.expanded[at] = reflect.TypeFor[corev1.EphemeralContainer]()
	}
	p.expanded[at+".securityContext"] = reflect.TypeFor[corev1.SecurityContext]()
	c, sc := corev1.Container{Name: from.Name}, corev1.SecurityContext{}
	p.known[at+".name"] = from.Name != ""
	set(p, at+".image", from.Image, &c.Image, same)
	set(p, at+".imagePullPolicy", from.ImagePullPolicy, &c.ImagePullPolicy, func(s string) corev1.PullPolicy {
		return corev1.PullPolicy(s)
	})
	at += ".securityContext."
	set(p, at+"privileged", from.Privileged, &sc.Privileged, pointerTo)
	set(p, at+"readOnlyRootFilesystem", from.ReadOnlyRootFilesystem, &sc.ReadOnlyRootFilesystem, pointerTo)
	set(p, at+"allowPrivilegeEscalation", from.AllowPrivilegeEscalation, &sc.AllowPrivilegeEscalation, pointerTo)
	set(p, at+"runAsNonRoot", from.RunAsNonRoot, &sc.RunAsNonRoot, pointerTo)
	set(p, at+"runAsUser", from.RunAsUser, &sc.RunAsUser, pointerTo)
	set(p, at+"runAsGroup", from.RunAsGroup, &sc.RunAsGroup, pointerTo)
	set(p, at+"seLinuxOptions", from.SELinux, &sc.SELinuxOptions, func(o admission.SELinux) *corev1.SELinuxOptions {
		return &corev1.SELinuxOptions{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
	})
	added, adds := from.CapabilitiesAdd.Effective()
	dropped, drops := from.CapabilitiesDrop.Effective()
	p.known[at+"capabilities"] = (adds || from.CapabilitiesAdd.State() == admission.StateAbsent) &&
		(drops || from.CapabilitiesDrop.State() == admission.StateAbsent)
	if adds || drops {
		sc.Capabilities = &corev1.Capabilities{Add: capabilityNames(added), Drop: capabilityNames(dropped)}
	}
	c.SecurityContext = &sc
	mounts, _ := from.Mounts.Effective()
	for i, m := range mounts {
		v := volumeFor(fmt.Sprintf("volume-%d", i), m)
		spec.Volumes = append(spec.Volumes, v)
		mount := corev1.VolumeMount{Name: v.Name, MountPath: m.Path}
		mount.ReadOnly, _ = m.ReadOnly.Effective()
		if mode, ok := m.Propagation.Effective(); ok {
			mount.MountPropagation = new(corev1.MountPropagationMode(mode))
		}
		c.VolumeMounts = append(c.VolumeMounts, mount)
	}
	switch kind {
	case admission.KindInit:
		spec.InitContainers = []corev1.Container{c}
	case admission.KindEphemeral:
		spec.EphemeralContainers = []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon(c)},
		}
	case admission.KindContainer:
		spec.Containers = []corev1.Container{c}
	}
}

func capabilityNames(names []string) (all []corev1.Capability) {
	for _, name := range names {
		all = append(all, corev1.Capability(name))
	}
	return all
}

// volumeFor returns a volume of the type of a mount. Of its source only what a policy can judge is known.
func volumeFor(name string, m admission.Mount) corev1.Volume {
	v := corev1.Volume{Name: name}
	kind, _ := m.Type.Effective()
	source := reflect.ValueOf(&v.VolumeSource).Elem()
	for f, value := range source.Fields() {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == kind {
			value.Set(reflect.New(f.Type.Elem()))
		}
	}
	if v.HostPath != nil {
		v.HostPath.Path, _ = m.HostPath.Effective()
		if t, ok := m.HostPathType.Effective(); ok {
			v.HostPath.Type = new(corev1.HostPathType(t))
		}
	}
	if v.Image != nil {
		v.Image.Reference, _ = m.Image.Effective()
	}
	return v
}

// unknown returns the paths of all fields of a Pod that are not known, sorted.
func (p *partial) unknown() []string {
	all := []string{"status"}
	var walk func(at string, t reflect.Type)
	walk = func(at string, t reflect.Type) {
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			field := at + "." + name
			if name == "" { // its fields are inline
				walk(at, f.Type)
				continue
			}
			if p.known[field] {
				continue
			}
			if nested := p.expanded[field]; nested != nil {
				walk(field, nested)
				continue
			}
			all = append(all, field)
			if element := p.expanded[field+"[*]"]; element != nil {
				walk(field+"[*]", element)
			}
		}
	}
	walk("metadata", p.expanded["metadata"])
	walk("spec", p.expanded["spec"])
	slices.Sort(all)
	return slices.Compact(all)
}
