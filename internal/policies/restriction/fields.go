package restriction

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// An Exactness says how a source knows a field.
type Exactness uint8

const (
	// Never means that the source does not carry the field.
	Never Exactness = iota
	// Derived means that the value is computed from other data. Whether the pod sets the field is not known.
	Derived
	// Effective means that the value which will run is known. Whether the pod sets it or leaves it to the default is
	// not known.
	Effective
	// Exact means that the value is known, and whether the pod sets it.
	Exact
)

// String returns the word for an exactness in tables.
func (e Exactness) String() string { return [...]string{"–", "derived", "effective", "exact"}[e] }

// A Source is where a view comes from.
type Source uint8

const (
	// Admission is a Pod of the API server that is complete: an admission review, or a file.
	Admission Source = iota
	// Node are the CRI messages of a kubelet.
	Node
	// NodeWithPodSource are CRI messages together with the Pod of the API server.
	NodeWithPodSource
)

// SourceOf returns the source of a node, with a pod source or without.
func SourceOf(podSource bool) Source {
	if podSource {
		return NodeWithPodSource
	}
	return Node
}

// A Field is one field that a policy can restrict, and how each source knows it.
type Field struct {
	// Path is the path in the spec of a policy; [] stands for an index.
	Path string
	// ByContainer reports whether the CRI carries the field with each container, and not with the sandbox of the pod.
	ByContainer bool
	// Node, PodSource and Admission are the exactness by source.
	Node, PodSource, Admission Exactness
	// Note says what else matters.
	Note string

	// view are the names of the fields of the view, without spaces if policies restrict the value itself.
	view string
	// number is the position in the table, and index that in the values of the view.
	number, index int
	// of is the type of the view.
	of reflect.Type
}

// at returns how a source knows the field.
func (f *Field) at(s Source) Exactness {
	return [...]Exactness{Admission: f.Admission, Node: f.Node, NodeWithPodSource: f.PodSource}[s]
}

// Paths that the code names.
const (
	pathNamespaceSelector = "binding.namespaceSelector"
	pathName              = "spec.metadata.name"
	pathContainers        = "spec.spec.containers[]"
	pathImages            = pathContainers + ".image[]"
	pathSecurity          = pathContainers + ".securityContext"
	pathPodSecurity       = "spec.spec.securityContext"
	pathVolumes           = "spec.spec.volumes[]"
)

// fields are all fields, in the order of the documentation and of violations.
var fields = []*Field{ //nolint:gochecknoglobals // a constant table
	{Path: pathNamespaceSelector, Note: "needs `admission.namespaceLabels`; unknown labels bind Drop only"},
	{Path: pathName, Node: Exact, view: "Name"},
	{Path: "spec.metadata.labels", Node: Exact, Note: "at sandbox creation", view: "Labels"},
	{Path: "spec.metadata.annotations", Node: Exact, Note: "at sandbox creation", view: "Annotations"},
	{Path: "spec.spec.restartPolicy", view: "RestartPolicy"},
	{Path: "spec.spec.dnsPolicy", view: "DNSPolicy"},
	{Path: "spec.spec.nodeSelector", view: "NodeSelector"},
	{Path: "spec.spec.activeDeadlineSeconds", view: "ActiveDeadlineSeconds"},
	{
		Path: "spec.spec.terminationGracePeriodSeconds", ByContainer: true, Node: Exact,
		view: "TerminationGracePeriodSeconds",
	},
	{
		Path: "spec.spec.automountServiceAccountToken", ByContainer: true, Node: Derived, Note: "token's path mounted",
		view: "AutomountServiceAccountToken",
	},
	{Path: pathPodSecurity + ".hostNetwork", Node: Exact, view: "HostNetwork"},
	{Path: pathPodSecurity + ".hostPID", Node: Exact, view: "HostPID"},
	{Path: pathPodSecurity + ".hostIPC", Node: Exact, view: "HostIPC"},
	{Path: pathPodSecurity + ".shareProcessNamespace", Node: Effective, view: "ShareProcessNamespace"},
	// The CRI has one list of both, which only both together separate.
	{
		Path: pathPodSecurity + ".supplementalGroups", Node: Derived, view: "SupplementalGroups FSGroup Groups",
		Note: "with fsGroup and volumes' groups; each must fit either field",
	},
	{
		Path: pathPodSecurity + ".fsGroup", Node: Derived, view: "SupplementalGroups FSGroup Groups",
		Note: "see supplementalGroups",
	},
	{Path: pathVolumes, Node: Derived, Note: "only mounted volumes count"},
	{
		Path: pathVolumes + ".volumeType", Node: Derived, view: "Type",
		Note: "claims show their driver, device plugins hostPath; unknown with a subPath",
	},
	{Path: pathVolumes + ".hostPath.path", Node: Exact, Note: "unknown with a subPath", view: "HostPath"},
	{Path: pathVolumes + ".hostPath.type", Note: "nil is the empty string", view: "HostPathType"},
	{Path: pathVolumes + ".mount.readOnly", Node: Exact, Note: "also true for read-only volumes", view: "ReadOnly"},
	{Path: pathVolumes + ".mount.mountPropagation", Node: Effective, view: "Propagation"},
	{
		Path: pathContainers, Node: Exact, view: "Kind",
		Note: "each must match both lists: init containers are not distinguished",
	},
	{Path: pathImages, Node: Exact, Note: "unknown for image IDs", view: "Image"},
	{Path: pathContainers + ".imagePullPolicy", view: "ImagePullPolicy"},
	{Path: pathSecurity + ".privileged", Node: Effective, view: "Privileged"},
	{
		Path: pathSecurity + ".allowPrivilegeEscalation", Node: Effective, Note: "nil is true",
		view: "AllowPrivilegeEscalation",
	},
	{Path: pathSecurity + ".runAsNonRoot", Node: Derived, Note: "user is not 0", view: "RunAsNonRoot"},
	{
		Path: pathSecurity + ".runAsUser", Node: Exact, Note: "image's user included; user names unknown",
		view: "RunAsUser",
	},
	{Path: pathSecurity + ".runAsGroup", Node: Exact, Note: "nil: the group of the image", view: "RunAsGroup"},
	{Path: pathSecurity + ".readOnlyRootFilesystem", Node: Effective, view: "ReadOnlyRootFilesystem"},
	{Path: pathSecurity + ".capabilities", Node: Exact, view: "CapabilitiesAdd CapabilitiesDrop"},
	{Path: pathSecurity + ".capabilities.add", Node: Exact, view: "CapabilitiesAdd CapabilitiesDrop"},
	{Path: pathSecurity + ".capabilities.drop", Node: Exact, view: "CapabilitiesAdd CapabilitiesDrop"},
	{Path: pathSecurity + ".seLinuxOptions", Node: Exact, view: "SELinux"},
}

// fieldAt finds fields by their paths, and valuesIn are the positions of the values of a view, by its type.
var fieldAt, valuesIn = number() //nolint:gochecknoglobals // of a constant table

func number() (map[string]*Field, map[reflect.Type][][]int) {
	byPath, values := map[string]*Field{}, map[reflect.Type][][]int{}
	for i, f := range fields {
		f.number, f.index, f.Admission = i, -1, Exact
		if f.Path != pathNamespaceSelector {
			f.PodSource = Exact
		}
		view := reflect.TypeFor[admission.Pod]()
		switch {
		case strings.HasPrefix(f.Path, pathVolumes):
			f.ByContainer, view = true, reflect.TypeFor[admission.Mount]()
		case strings.HasPrefix(f.Path, pathContainers):
			f.ByContainer, view = true, reflect.TypeFor[admission.Container]()
		}
		f.of = view
		if at, ok := view.FieldByName(f.view); ok {
			f.index = len(values[view])
			values[view] = append(values[view], at.Index)
		}
		byPath[f.Path] = f
	}
	return byPath, values
}

// Fields returns all fields, in the order of the documentation.
func Fields() []Field {
	all := make([]Field, len(fields))
	for i, f := range fields {
		all[i] = *f
	}
	return all
}

// Keep returns a copy of the view of a pod and of its containers that has only the fields with these paths, as
// Field.Path has them.
func Keep(pod *admission.Pod, containers []admission.Container, paths []string) (admission.Pod, []admission.Container) {
	var kept admission.Pod
	keptContainers := make([]admission.Container, len(containers))
	for _, path := range paths {
		f := fieldAt[path]
		switch {
		case f == nil:
			continue
		case strings.HasPrefix(path, pathVolumes):
			kept.Volumes = pod.Volumes
		case !strings.HasPrefix(path, pathContainers):
			copyFields(&kept, pod, f.view)
			continue
		}
		for i := range containers {
			if strings.HasPrefix(path, pathVolumes) {
				keptContainers[i].Mounts = containers[i].Mounts
			} else {
				copyFields(&keptContainers[i], &containers[i], f.view)
			}
		}
	}
	return kept, keptContainers
}

func copyFields(to, from any, names string) {
	for name := range strings.FieldsSeq(names) {
		reflect.ValueOf(to).Elem().FieldByName(name).Set(reflect.ValueOf(from).Elem().FieldByName(name))
	}
}

// Same reports whether two pods, which are in the same namespace, have the same values in all fields that policies of
// the namespace restrict. Judge then gives the same answer for both. It returns false if it is in doubt.
func (s *Set) Same(a, b *admission.Pod, containersOfA, containersOfB []admission.Container) bool {
	restricted := map[string]bool{}
	for _, p := range s.all() {
		included := p.binding.includes(a)
		if included != p.binding.includes(b) {
			return false
		}
		if included != no {
			maps.Copy(restricted, p.restricts)
		}
	}
	paths := slices.Collect(maps.Keys(restricted))
	podA, keptOfA := Keep(a, containersOfA, paths)
	podB, keptOfB := Keep(b, containersOfB, paths)
	if !reflect.DeepEqual(podA, podB) {
		return false
	}
	return !restricted[pathContainers] && !restricted[pathVolumes] || reflect.DeepEqual(keptOfA, keptOfB)
}
