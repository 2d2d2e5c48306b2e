package restriction

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The header of a policy file.
const (
	APIVersion = "policy.pullgate.dev/v1alpha1"
	// ProposedAPIVersion is the version in the proposal of PodRestriction. Parse accepts it.
	ProposedAPIVersion = "policy/v1alpha1"
	Kind               = "PodRestriction"
)

// ModeAnnotation on a policy selects whether it enforces (ModeEnforce, the default) or only reports (ModeAudit).
const (
	ModeAnnotation = "policy.pullgate.dev/mode"
	ModeEnforce    = "Enforce"
	ModeAudit      = "Audit"
)

// A PodRestriction is one policy. Its layout follows the Pod. A field that is absent restricts nothing.
type PodRestriction struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	// Binding selects the namespaces. Absent means the whole cluster.
	Binding *Binding `json:"binding,omitempty"`
	Spec    Spec     `json:"spec"`
}

// Metadata identifies a policy. The name is unique in a Set.
type Metadata struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// A BindingMode says how a policy is combined with the others of a namespace.
type BindingMode string

// The binding modes. A pod is admitted if it matches any Accept policy or all Drop policies.
const (
	BindingModeAccept BindingMode = "Accept"
	BindingModeDrop   BindingMode = "Drop"
)

// A Binding selects namespaces by Namespaces or NamespaceSelector; a binding with neither selects all.
type Binding struct {
	// Mode is Drop if it is empty.
	Mode              BindingMode           `json:"mode,omitempty"`
	Namespaces        []string              `json:"namespaces,omitempty"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
}

// A Spec restricts a pod.
type Spec struct {
	Metadata *objectMetaRestriction `json:"metadata,omitempty"`
	Spec     *podSpecRestriction    `json:"spec,omitempty"`
}

type objectMetaRestriction struct {
	Name        *stringRestriction    `json:"name,omitempty"`
	Labels      *stringMapRestriction `json:"labels,omitempty"`
	Annotations *stringMapRestriction `json:"annotations,omitempty"`
}

type podSpecRestriction struct {
	// Volumes, if there are any: each volume of the pod must match one of them.
	Volumes []volumeRestriction `json:"volumes,omitempty"`
	// Containers, if there are any: each container must match one of them. Ephemeral containers count as containers.
	// InitContainers are the same for init containers; absent means Containers.
	InitContainers                []containerRestriction         `json:"initContainers,omitempty"`
	Containers                    []containerRestriction         `json:"containers,omitempty"`
	RestartPolicy                 *stringRestriction             `json:"restartPolicy,omitempty"`
	TerminationGracePeriodSeconds *numericRestriction            `json:"terminationGracePeriodSeconds,omitempty"`
	ActiveDeadlineSeconds         *numericRestriction            `json:"activeDeadlineSeconds,omitempty"`
	DNSPolicy                     *stringRestriction             `json:"dnsPolicy,omitempty"`
	NodeSelector                  *stringMapRestriction          `json:"nodeSelector,omitempty"`
	AutomountServiceAccountToken  *boolRestriction               `json:"automountServiceAccountToken,omitempty"`
	SecurityContext               *podSecurityContextRestriction `json:"securityContext,omitempty"`
}

type containerRestriction struct {
	Image           []imageRestriction          `json:"image,omitempty"`
	ImagePullPolicy *stringRestriction          `json:"imagePullPolicy,omitempty"`
	SecurityContext *securityContextRestriction `json:"securityContext,omitempty"`
}

// An imageRestriction restricts the parts of an image name: busybox is docker.io, library/busybox and latest. A digest
// takes the place of the tag, because it decides which image runs. A registry is in lower case and has no port 443.
type imageRestriction struct {
	Registry *stringRestriction `json:"registry,omitempty"`
	Image    *stringRestriction `json:"image,omitempty"`
	Tag      *stringRestriction `json:"tag,omitempty"`
}

type securityContextRestriction struct {
	Capabilities             *capabilitiesRestriction   `json:"capabilities,omitempty"`
	Privileged               *boolRestriction           `json:"privileged,omitempty"`
	SELinuxOptions           *seLinuxOptionsRestriction `json:"seLinuxOptions,omitempty"`
	RunAsUser                *numericRestriction        `json:"runAsUser,omitempty"`
	RunAsGroup               *numericRestriction        `json:"runAsGroup,omitempty"`
	RunAsNonRoot             *boolRestriction           `json:"runAsNonRoot,omitempty"`
	ReadOnlyRootFilesystem   *boolRestriction           `json:"readOnlyRootFilesystem,omitempty"`
	AllowPrivilegeEscalation *boolRestriction           `json:"allowPrivilegeEscalation,omitempty"`
}

type seLinuxOptionsRestriction struct {
	PointerRestriction
	User  *stringRestriction `json:"user,omitempty"`
	Role  *stringRestriction `json:"role,omitempty"`
	Type  *stringRestriction `json:"type,omitempty"`
	Level *stringRestriction `json:"level,omitempty"`
}

// A capabilitiesRestriction restricts capabilities. They are nil if none is added and none is dropped. Upper and lower
// case are equal, because they are for runtimes. A Blacklist of Add contains ALL, which adds each capability.
type capabilitiesRestriction struct {
	PointerRestriction
	Add  *stringListRestriction `json:"add,omitempty"`
	Drop *stringListRestriction `json:"drop,omitempty"`
}

type podSecurityContextRestriction struct {
	HostNetwork           *boolRestriction    `json:"hostNetwork,omitempty"`
	HostPID               *boolRestriction    `json:"hostPID,omitempty"`
	HostIPC               *boolRestriction    `json:"hostIPC,omitempty"`
	ShareProcessNamespace *boolRestriction    `json:"shareProcessNamespace,omitempty"`
	SupplementalGroups    *numericRestriction `json:"supplementalGroups,omitempty"`
	FSGroup               *numericRestriction `json:"fsGroup,omitempty"`
}

// A volumeRestriction restricts a volume. ForbidEmpty and RequireEmpty are about the list of the pod's volumes.
type volumeRestriction struct {
	CollectionRestriction
	Mount      *mountRestriction          `json:"mount,omitempty"`
	VolumeType *stringRestriction         `json:"volumeType,omitempty"`
	HostPath   *hostPathVolumeRestriction `json:"hostPath,omitempty"`
}

type mountRestriction struct {
	ReadOnly         *boolRestriction   `json:"readOnly,omitempty"`
	MountPropagation *stringRestriction `json:"mountPropagation,omitempty"`
}

// A hostPathVolumeRestriction restricts hostPath volumes. Both fields are nil in volumes of other types.
type hostPathVolumeRestriction struct {
	// Path compares whole segments after cleaning. Whitelist allows its folders and all that is below them. Blacklist
	// denies its folders, all that is below them, and each folder that contains one of them. A path with .. matches
	// nothing, and neither does one below the folder of a process in /proc. Other symbolic links are not followed.
	Path *stringRestriction `json:"path,omitempty"`
	Type *stringRestriction `json:"type,omitempty"`
}

// A PointerRestriction restricts whether a field is nil. With neither, nil is allowed.
type PointerRestriction struct {
	ForbidNil  bool `json:"forbidNil,omitempty"`
	RequireNil bool `json:"requireNil,omitempty"`
}

// A CollectionRestriction restricts whether a list or mapping is empty. An absent one is empty.
type CollectionRestriction struct {
	ForbidEmpty  bool `json:"forbidEmpty,omitempty"`
	RequireEmpty bool `json:"requireEmpty,omitempty"`
}

// A stringRestriction restricts a string: it must be in a Whitelist, not in the Blacklist, and match Regex.
type stringRestriction struct {
	PointerRestriction
	Whitelist []string `json:"whitelist,omitempty"`
	Blacklist []string `json:"blacklist,omitempty"`
	// Regex is an RE2 expression that must match the whole string.
	Regex string `json:"regex,omitempty"`
}

// A stringMapRestriction restricts a mapping. Values applies to the keys that the mapping has.
type stringMapRestriction struct {
	CollectionRestriction
	KeyBlacklist []string                     `json:"keyBlacklist,omitempty"`
	KeyWhitelist []string                     `json:"keyWhitelist,omitempty"`
	RequiredKeys []string                     `json:"requiredKeys,omitempty"`
	Values       map[string]stringRestriction `json:"values,omitempty"`
}

// A stringListRestriction restricts a list: each element must match Values, and it must contain all RequiredValues.
type stringListRestriction struct {
	CollectionRestriction
	Values         *stringRestriction `json:"values,omitempty"`
	RequiredValues []string           `json:"requiredValues,omitempty"`
}

type numericRestriction struct {
	PointerRestriction
	Ranges []numericRange `json:"ranges,omitempty"`
}

type numericRange struct {
	Min *int64 `json:"min,omitempty"`
	Max *int64 `json:"max,omitempty"`
}

type boolRestriction struct {
	PointerRestriction
	Require *bool `json:"require,omitempty"`
}
