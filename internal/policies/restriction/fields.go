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

// The degrees of exactness.
const (
	Never     Exactness = iota // The source does not carry the field.
	Derived                    // The value is computed from other data; whether the pod sets it is not known.
	Effective                  // The value that takes effect is known; whether the pod sets it is not known.
	Exact                      // The value is known, and whether the pod sets it.
)

func (e Exactness) String() string { return [...]string{"–", "derived", "effective", "exact"}[e] }

// A Source is where a view comes from.
type Source uint8

// The sources.
const (
	Admission         Source = iota // a complete Pod: an admission review, or a file
	Node                            // the CRI messages of a kubelet
	NodeWithPodSource               // CRI messages together with the Pod of the API server
)

// SourceOf returns the source of a node.
func SourceOf(podSource bool) Source {
	if podSource {
		return NodeWithPodSource
	}
	return Node
}

// A Field is one field that a policy can restrict, and how each source knows it.
type Field struct {
	Path        string // in the spec of a policy; [] stands for an index
	ByContainer bool   // The CRI carries the field with each container, and not with the sandbox.

	Node, PodSource, Admission Exactness // by source

	Note string // what else matters

	view          string       // names of fields of the view, without spaces if policies restrict the value itself
	number, index int          // the position in the table, and in the values of the view
	of            reflect.Type // of the view
}

func (f *Field) at(s Source) Exactness {
	return [...]Exactness{Admission: f.Admission, Node: f.Node, NodeWithPodSource: f.PodSource}[s]
}

// Paths that the code names.
const (
	pathNamespaceSelector = "binding.namespaceSelector"
	pathName              = "spec.metadata.name"
	pathGrace             = "spec.spec.terminationGracePeriodSeconds"
	pathContainers        = "spec.spec.containers[]"
	pathImages            = pathContainers + ".image[]"
	pathSecurity          = pathContainers + ".securityContext"
	pathPodSecurity       = "spec.spec.securityContext"
	pathVolumes           = "spec.spec.volumes[]"

	viewGroups = "SupplementalGroups FSGroup Groups"
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
	{Path: pathGrace, ByContainer: true, Node: Exact, view: "TerminationGracePeriodSeconds"},
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
		Path: pathPodSecurity + ".supplementalGroups", Node: Derived, view: viewGroups,
		Note: "with fsGroup and volumes' groups; each must fit either field",
	},
	{Path: pathPodSecurity + ".fsGroup", Node: Derived, view: viewGroups, Note: "see supplementalGroups"},
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
	{Path: pathSecurity + ".runAsUser", Node: Exact, Note: "image's user included; user names unknown", view: "RunAsUser"},
	{Path: pathSecurity + ".runAsGroup", Node: Exact, Note: "nil: the group of the image", view: "RunAsGroup"},
	{Path: pathSecurity + ".readOnlyRootFilesystem", Node: Effective, view: "ReadOnlyRootFilesystem"},
	{Path: pathSecurity + ".capabilities", Node: Exact, view: "CapabilitiesAdd CapabilitiesDrop"},
	{Path: pathSecurity + ".capabilities.add", Node: Exact, view: "CapabilitiesAdd CapabilitiesDrop"},
	{Path: pathSecurity + ".capabilities.drop", Node: Exact, view: "CapabilitiesAdd CapabilitiesDrop"},
	{Path: pathSecurity + ".seLinuxOptions", Node: Exact, view: "SELinux"},
}

// fieldAt has the fields by path, and valuesIn the positions of the values of a view, by its type.
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
func Fields() (all []Field) {
	for _, f := range fields {
		all = append(all, *f)
	}
	return all
}

// Keep returns a copy of a view with only these fields, by Field.Path.
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

// Same reports whether Judge gives the same answer for two pods of a namespace; false if it is in doubt.
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
