package restriction

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
func (e Exactness) String() string {
	switch e {
	case Derived:
		return "derived"
	case Effective:
		return "effective"
	case Exact:
		return "exact"
	case Never:
	}
	return "–"
}

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
}

// at returns how a source knows the field.
func (f *Field) at(s Source) Exactness {
	switch s {
	case Node:
		return f.Node
	case NodeWithPodSource:
		return f.PodSource
	case Admission:
	}
	return f.Admission
}

// Fields returns all fields, in the order of the documentation.
func Fields() []Field {
	t := newTable()
	all := make([]Field, 0, len(t.order))
	for _, f := range t.order {
		all = append(all, *f)
	}
	return all
}

// A table finds fields by their paths.
type table struct {
	order  []*Field
	byPath map[string]*Field
}

// Paths that several rules share.
const (
	pathNamespaceSelector = "binding.namespaceSelector"
	pathName              = "spec.metadata.name"
	pathContainers        = "spec.spec.containers[]"
	pathImages            = pathContainers + ".image[]"
	pathSecurity          = pathContainers + ".securityContext"
	pathPodSecurity       = "spec.spec.securityContext"
	pathVolumes           = "spec.spec.volumes[]"
)

func newTable() *table {
	t := &table{byPath: map[string]*Field{}}
	for _, f := range podFields() {
		t.add(f)
	}
	for _, f := range containerFields() {
		f.ByContainer = true
		t.add(f)
	}
	return t
}

func (t *table) add(f Field) {
	t.order = append(t.order, &f)
	t.byPath[f.Path] = &f
}

// podFields returns the fields that the CRI carries with the sandbox, or never.
func podFields() []Field {
	return []Field{
		{Path: pathNamespaceSelector, Note: "needs `admission.namespaceLabels`; unknown labels bind Drop only", Admission: Exact},
		{Path: pathName, Node: Exact, PodSource: Exact, Admission: Exact},
		{Path: "spec.metadata.labels", Node: Exact, PodSource: Exact, Admission: Exact, Note: "at sandbox creation"},
		{Path: "spec.metadata.annotations", Node: Exact, PodSource: Exact, Admission: Exact, Note: "at sandbox creation"},
		{Path: "spec.spec.restartPolicy", PodSource: Exact, Admission: Exact},
		{Path: "spec.spec.activeDeadlineSeconds", PodSource: Exact, Admission: Exact},
		{Path: "spec.spec.dnsPolicy", PodSource: Exact, Admission: Exact},
		{Path: "spec.spec.nodeSelector", PodSource: Exact, Admission: Exact},
		{Path: pathPodSecurity + ".hostNetwork", Node: Exact, PodSource: Exact, Admission: Exact},
		{Path: pathPodSecurity + ".hostPID", Node: Exact, PodSource: Exact, Admission: Exact},
		{Path: pathPodSecurity + ".hostIPC", Node: Exact, PodSource: Exact, Admission: Exact},
		{Path: pathPodSecurity + ".shareProcessNamespace", Node: Effective, PodSource: Exact, Admission: Exact},
		{Path: pathPodSecurity + ".supplementalGroups", Node: Derived, PodSource: Exact, Admission: Exact, Note: "with fsGroup and volumes' groups; each must fit either field"},
		{Path: pathPodSecurity + ".fsGroup", Node: Derived, PodSource: Exact, Admission: Exact, Note: "see supplementalGroups"},
	}
}

// containerFields returns the fields that the CRI carries with each container.
func containerFields() []Field {
	return []Field{
		{Path: "spec.spec.terminationGracePeriodSeconds", Node: Exact, PodSource: Exact, Admission: Exact},
		{Path: "spec.spec.automountServiceAccountToken", Node: Derived, PodSource: Exact, Admission: Exact, Note: "token's path mounted"},
		{Path: pathVolumes, Node: Derived, PodSource: Exact, Admission: Exact, Note: "only mounted volumes count"},
		{Path: pathVolumes + ".volumeType", Node: Derived, PodSource: Exact, Admission: Exact, Note: "claims show their driver, device plugins hostPath; unknown with a subPath"},
		{Path: pathVolumes + ".hostPath.path", Node: Exact, PodSource: Exact, Admission: Exact, Note: "unknown with a subPath"},
		{Path: pathVolumes + ".hostPath.type", PodSource: Exact, Admission: Exact, Note: "nil is the empty string"},
		{Path: pathVolumes + ".mount.readOnly", Node: Exact, PodSource: Exact, Admission: Exact, Note: "also true for read-only volumes"},
		{Path: pathVolumes + ".mount.mountPropagation", Node: Effective, PodSource: Exact, Admission: Exact},
		{Path: pathContainers, Node: Exact, PodSource: Exact, Admission: Exact, Note: "each must match both lists: init containers are not distinguished"},
		{Path: pathImages, Node: Exact, PodSource: Exact, Admission: Exact, Note: "unknown for image IDs"},
		{Path: pathContainers + ".imagePullPolicy", PodSource: Exact, Admission: Exact},
		{Path: pathSecurity + ".capabilities", Node: Exact, PodSource: Exact, Admission: Exact},
		{Path: pathSecurity + ".capabilities.add", Node: Exact, PodSource: Exact, Admission: Exact},
		{Path: pathSecurity + ".capabilities.drop", Node: Exact, PodSource: Exact, Admission: Exact},
		{Path: pathSecurity + ".privileged", Node: Effective, PodSource: Exact, Admission: Exact},
		{Path: pathSecurity + ".seLinuxOptions", Node: Exact, PodSource: Exact, Admission: Exact},
		{Path: pathSecurity + ".runAsUser", Node: Exact, PodSource: Exact, Admission: Exact, Note: "image's user included; user names unknown"},
		{Path: pathSecurity + ".runAsGroup", Node: Exact, PodSource: Exact, Admission: Exact, Note: "nil: the group of the image"},
		{Path: pathSecurity + ".runAsNonRoot", Node: Derived, PodSource: Exact, Admission: Exact, Note: "user is not 0"},
		{Path: pathSecurity + ".readOnlyRootFilesystem", Node: Effective, PodSource: Exact, Admission: Exact},
		{Path: pathSecurity + ".allowPrivilegeEscalation", Node: Effective, PodSource: Exact, Admission: Exact, Note: "nil is true"},
	}
}
