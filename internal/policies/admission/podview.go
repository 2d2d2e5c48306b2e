package admission

import (
	"maps"
	"slices"
	"strings"
)

// A Pod is what one source says about a pod. Namespace, Name and UID are "" if the source does not know them.
type Pod struct {
	UID, Namespace, Name string
	Static               bool // from a file or a URL, and not from the API server
	NamespaceLabels      Value[map[string]string]
	// Labels and Annotations are without those that a kubelet writes; see KubeletLabel and KubeletAnnotation.
	Labels, Annotations Value[map[string]string]
	// ReviewAnnotations are those of Annotations that image review backends may see; see ForReview.
	ReviewAnnotations             Value[map[string]string]
	HostNetwork, HostPID, HostIPC Value[bool]
	ShareProcessNamespace         Value[bool]
	FSGroup                       Value[int64]
	SupplementalGroups            Value[[]int64]
	// Groups are FSGroup, SupplementalGroups and the groups of volumes, for a source that cannot separate them.
	Groups                                               Value[[]int64]
	RestartPolicy, DNSPolicy                             Value[string]
	TerminationGracePeriodSeconds, ActiveDeadlineSeconds Value[int64]
	NodeSelector                                         Value[map[string]string]
	AutomountServiceAccountToken                         Value[bool]
	// Volumes are all volumes of the pod, also those that no container mounts.
	Volumes Value[[]Volume]
	// Object is the *Pod of the API server, whole, which can have other labels, annotations and another image than what
	// runs; an error if there is none that can be used; nil without a source for the pod.
	Object any
}

// A Kind says in which list of the pod a container is.
type Kind uint8

// The kinds of containers.
const (
	KindContainer Kind = iota
	KindInit
	KindEphemeral
)

// A Container is what one source says about a container. Security fields have the values of the pod as defaults.
type Container struct {
	Name                                                         string
	Kind                                                         Value[Kind]
	Image                                                        Value[string] // the name as the pod has it
	ImagePullPolicy                                              Value[string]
	Privileged, ReadOnlyRootFilesystem, AllowPrivilegeEscalation Value[bool]
	RunAsNonRoot                                                 Value[bool]
	RunAsUser, RunAsGroup                                        Value[int64]
	// CapabilitiesAdd and CapabilitiesDrop are as written. An empty list is the same as none.
	CapabilitiesAdd, CapabilitiesDrop Value[[]string]
	SELinux                           Value[SELinux]
	Mounts                            Value[[]Mount]
}

// SELinux are the SELinux options of a container. An empty string means that an option is not set.
type SELinux struct{ User, Role, Type, Level string }

// A Volume is one volume of a pod.
type Volume struct {
	// Type is the name of the field of a volume in the API, such as configMap or hostPath.
	Type Value[string]
	// HostPath is the folder that a hostPath volume names, as written, and HostPathType its type; absent in other volumes.
	HostPath, HostPathType Value[string]
}

// A Mount is one use of a volume by a container.
type Mount struct {
	Volume
	Path        string        // where the container sees the volume
	ReadOnly    Value[bool]   // because of the mount or of the volume
	Propagation Value[string] // None, HostToContainer or Bidirectional
	Image       Value[string] // the name of the mounted image, as the pod has it; absent if it is not an image
}

// A State says what a source knows about a field of the pod.
type State uint8

// The states.
const (
	StateUnknown State = iota // the source does not say whether the pod sets the field
	StateAbsent               // the source carries the field and the pod does not set it
	StateSet                  // the pod sets the field
)

// A Value is what a source knows about one field: whether the pod sets it, and the value that takes effect, either
// without the other; the zero Value has neither. A slice or map in it must not be modified.
type Value[T any] struct {
	value T
	state State
	known bool // value takes effect
}

// Set returns the Value of a field that the pod sets.
func Set[T any](v T) Value[T] { return Value[T]{value: v, state: StateSet, known: true} }

// Absent returns the Value of a field that the pod does not set, if the source does not know the default.
func Absent[T any]() Value[T] { return Value[T]{state: StateAbsent} }

// AbsentAs returns the Value of a field that the pod does not set, and whose default v takes effect.
func AbsentAs[T any](v T) Value[T] { return Value[T]{value: v, state: StateAbsent, known: true} }

// Effective returns the Value of a field of which the source knows only the value that takes effect: a boolean of the
// CRI is false by default and explicitly.
func Effective[T any](v T) Value[T] { return Value[T]{value: v, known: true} }

// Get returns the value that the pod sets, and the state. The value is the zero T unless the state is StateSet.
func (v Value[T]) Get() (T, State) {
	if v.state != StateSet {
		var zero T
		return zero, v.state
	}
	return v.value, v.state
}

// State returns whether the pod sets the field.
func (v Value[T]) State() State { return v.state }

// Effective returns the value that takes effect when the pod runs; ok is false if the source does not know it.
func (v Value[T]) Effective() (value T, ok bool) { return v.value, v.known }

// The values of Mount.Propagation.
const (
	PropagationNone            = "None"
	PropagationHostToContainer = "HostToContainer"
	PropagationBidirectional   = "Bidirectional"
)

// Values of Volume.Type that sources and validators treat specially. All others are names of the API as well.
const (
	TypeHostPath              = "hostPath"
	TypeImage                 = "image"
	TypePersistentVolumeClaim = "persistentVolumeClaim"
	TypeEphemeral             = "ephemeral"
)

// ServiceAccountPath is where a container finds the token of its service account.
const ServiceAccountPath = "/var/run/secrets/kubernetes.io/serviceaccount"

// KubeletLabel reports whether a kubelet writes the label on each pod. No view contains it.
func KubeletLabel(key string) bool {
	return slices.Contains([]string{"io.kubernetes.pod.name", "io.kubernetes.pod.namespace", "io.kubernetes.pod.uid"}, key)
}

// KubeletAnnotation is KubeletLabel for annotations.
func KubeletAnnotation(key string) bool { return strings.HasPrefix(key, "kubernetes.io/config.") }

// ForReview returns the annotations that kube-apiserver's plugin ImagePolicyWebhook sends to backends.
func ForReview(annotations map[string]string) map[string]string {
	found := Without(annotations, func(key string) bool { return !strings.Contains(key, ".image-policy.k8s.io/") })
	if len(found) == 0 {
		return nil
	}
	return found
}

// Without returns a copy of m without the keys that own selects.
func Without(m map[string]string, own func(key string) bool) map[string]string {
	rest := make(map[string]string, len(m))
	maps.Copy(rest, m)
	maps.DeleteFunc(rest, func(key, _ string) bool { return own(key) })
	return rest
}
