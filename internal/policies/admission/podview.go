package admission

// A Pod is what one source says about a pod. Namespace, Name and UID are "" if the source does not know them.
type Pod struct {
	UID, Namespace, Name string
	// Static reports whether the pod comes from a file or a URL and not from the API server.
	Static bool

	// NamespaceLabels are the labels of the pod's namespace.
	NamespaceLabels Value[map[string]string]
	// Labels and Annotations are without those that a kubelet writes; see KubeletLabel and KubeletAnnotation.
	Labels, Annotations Value[map[string]string]
	// ReviewAnnotations are those of Annotations that image review backends may see; see ForReview.
	ReviewAnnotations Value[map[string]string]

	HostNetwork, HostPID, HostIPC Value[bool]
	ShareProcessNamespace         Value[bool]
	FSGroup                       Value[int64]
	SupplementalGroups            Value[[]int64]
	// Groups are FSGroup, SupplementalGroups and the groups of volumes in one list, for a source that cannot separate
	// them.
	Groups Value[[]int64]

	RestartPolicy, DNSPolicy                             Value[string]
	TerminationGracePeriodSeconds, ActiveDeadlineSeconds Value[int64]
	NodeSelector                                         Value[map[string]string]
	AutomountServiceAccountToken                         Value[bool]
	// Volumes are all volumes of the pod, also those that no container mounts.
	Volumes Value[[]Volume]
}

// A Kind says in which list of the pod a container is.
type Kind uint8

// The kinds of containers.
const (
	KindContainer Kind = iota
	KindInit
	KindEphemeral
)

// A Container is what one source says about one container of a pod. Security fields have the values of the pod where
// the container does not override them.
type Container struct {
	Name string
	Kind Value[Kind]
	// Image is the image name as the pod has it.
	Image           Value[string]
	ImagePullPolicy Value[string]

	Privileged, ReadOnlyRootFilesystem, AllowPrivilegeEscalation Value[bool]
	RunAsNonRoot                                                 Value[bool]
	RunAsUser, RunAsGroup                                        Value[int64]
	// CapabilitiesAdd and CapabilitiesDrop are as written. An empty list is the same as none.
	CapabilitiesAdd, CapabilitiesDrop Value[[]string]
	SELinux                           Value[SELinux]
	// Mounts are the volumes that the container uses, one for each mount.
	Mounts Value[[]Mount]
}

// SELinux are the SELinux options of a container. An empty string means that an option is not set.
type SELinux struct{ User, Role, Type, Level string }

// A Volume is one volume of a pod.
type Volume struct {
	// Type is the name of the field of a volume in the API, such as configMap or hostPath.
	Type Value[string]
	// HostPath is the folder of the node that a hostPath volume names, as written. HostPathType is its type; "" takes
	// effect if it has none. Both are absent in volumes of other types.
	HostPath, HostPathType Value[string]
}

// A Mount is one use of a volume by a container.
type Mount struct {
	Volume
	// Path is where the container sees the volume. It is different for each mount of a container.
	Path string
	// ReadOnly reports whether the container cannot write to the volume, be it because of the mount or because of the
	// volume.
	ReadOnly Value[bool]
	// Propagation is None, HostToContainer or Bidirectional.
	Propagation Value[string]
	// Image is the name of the image that is mounted, as the pod has it; absent if it is not an image.
	Image Value[string]
}
