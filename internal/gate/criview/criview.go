package criview

import (
	"path"
	"slices"
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/policies/podview"
)

// terminationGraceAnnotation is an annotation of a container.
const terminationGraceAnnotation = "io.kubernetes.pod.terminationGracePeriod"

// Sandbox returns the view of a pod from the configuration of its sandbox. What the CRI carries with containers is unknown in it.
func Sandbox(config *runtimeapi.PodSandboxConfig) podview.Pod {
	meta, sc := config.GetMetadata(), config.GetLinux().GetSecurityContext()
	p := podview.Pod{
		UID: meta.GetUid(), Namespace: meta.GetNamespace(), Name: meta.GetName(),
		Static:            podindex.StaticSource(config.GetAnnotations()[podindex.SourceAnnotation]),
		Labels:            podview.Set(podview.Without(config.GetLabels(), podview.KubeletLabel)),
		Annotations:       podview.Set(podview.Without(config.GetAnnotations(), podview.KubeletAnnotation)),
		ReviewAnnotations: podview.Set(podview.ForReview(config.GetAnnotations())),
		Groups:            podview.Set(sc.GetSupplementalGroups()),
	}
	setNamespaces(&p, sc.GetNamespaceOptions())
	return p
}

// Container returns the view of a pod and of one of its containers from the configurations in a call that creates the container.
// kubeletRoot is the root directory of the kubelet, below which it keeps the volumes of pods.
func Container(sandbox *runtimeapi.PodSandboxConfig, config *runtimeapi.ContainerConfig, kubeletRoot string) (podview.Pod, podview.Container) {
	p := Sandbox(sandbox)
	sc := config.GetLinux().GetSecurityContext()
	setNamespaces(&p, sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions(), sc.GetNamespaceOptions())
	p.Groups = podview.Set(sc.GetSupplementalGroups())
	p.TerminationGracePeriodSeconds = terminationGrace(config.GetAnnotations())

	name := config.GetMetadata().GetName()
	found := mounts(config, newPodDir(kubeletRoot, p.UID, name))
	p.AutomountServiceAccountToken = podview.Effective(slices.ContainsFunc(found, func(m podview.Mount) bool {
		return path.Clean(m.Path) == podview.ServiceAccountPath
	}))
	c := podview.Container{
		Name:                   name,
		Privileged:             effective(sc.GetPrivileged(), false),
		ReadOnlyRootFilesystem: effective(sc.GetReadonlyRootfs(), false),
		// no_new_privs is set if the pod says false.
		AllowPrivilegeEscalation: effective(!sc.GetNoNewPrivs(), true),
		RunAsUser:                user(sc),
		RunAsGroup:               podview.Absent[int64](),
		CapabilitiesAdd:          podview.Absent[[]string](),
		CapabilitiesDrop:         podview.Absent[[]string](),
		SELinux:                  podview.Absent[podview.SELinux](),
		Mounts:                   podview.Set(found),
	}
	if image := config.GetImage().GetUserSpecifiedImage(); image != "" { // a kubelet always sends it
		c.Image = podview.Set(image)
	}
	if uid, ok := c.RunAsUser.Effective(); ok {
		c.RunAsNonRoot = podview.Effective(uid != 0)
	}
	if g := sc.GetRunAsGroup(); g != nil {
		c.RunAsGroup = podview.Set(g.GetValue())
	}
	if caps := sc.GetCapabilities(); caps != nil {
		c.CapabilitiesAdd = list(slices.Concat(caps.GetAddCapabilities(), caps.GetAddAmbientCapabilities()))
		c.CapabilitiesDrop = list(caps.GetDropCapabilities())
	}
	if o := sc.GetSelinuxOptions(); o != nil {
		c.SELinux = podview.Set(podview.SELinux{User: o.GetUser(), Role: o.GetRole(), Type: o.GetType(), Level: o.GetLevel()})
	}
	return p, c
}

// setNamespaces fills the fields about namespaces of the node. A namespace of the node in any of the options counts.
func setNamespaces(p *podview.Pod, options ...*runtimeapi.NamespaceOption) {
	node := func(mode func(*runtimeapi.NamespaceOption) runtimeapi.NamespaceMode) podview.Value[bool] {
		return podview.Set(slices.ContainsFunc(options, func(o *runtimeapi.NamespaceOption) bool {
			return mode(o) == runtimeapi.NamespaceMode_NODE
		}))
	}
	p.HostNetwork = node((*runtimeapi.NamespaceOption).GetNetwork)
	p.HostPID = node((*runtimeapi.NamespaceOption).GetPid)
	p.HostIPC = node((*runtimeapi.NamespaceOption).GetIpc)

	p.ShareProcessNamespace = podview.Value[bool]{}
	for _, o := range options {
		if o == nil {
			continue
		}
		switch o.GetPid() {
		case runtimeapi.NamespaceMode_POD:
			p.ShareProcessNamespace = podview.Set(true)
			return
		case runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE:
			p.ShareProcessNamespace = podview.Effective(false)
		case runtimeapi.NamespaceMode_TARGET: // an ephemeral container, which says nothing about the pod
		}
	}
}

// terminationGrace reads the annotation that a kubelet writes on each container.
func terminationGrace(annotations map[string]string) podview.Value[int64] {
	s, ok := annotations[terminationGraceAnnotation]
	if !ok {
		return podview.Absent[int64]()
	}
	seconds, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return podview.Value[int64]{}
	}
	return podview.Set(seconds)
}

// user returns the number of the user that a container runs as: that of the pod or, if it has none, that of the image. The number of a user
// that is given by name is unknown.
func user(sc *runtimeapi.LinuxContainerSecurityContext) podview.Value[int64] {
	u := sc.GetRunAsUser()
	if u == nil || sc.GetRunAsUsername() != "" {
		return podview.Value[int64]{}
	}
	return podview.Set(u.GetValue())
}

// effective returns a boolean of the CRI. If it differs from the default, the pod has set it.
func effective(v, byDefault bool) podview.Value[bool] {
	if v != byDefault {
		return podview.Set(v)
	}
	return podview.Effective(v)
}

func list(names []string) podview.Value[[]string] {
	if len(names) == 0 {
		return podview.Absent[[]string]()
	}
	return podview.Set(names)
}
