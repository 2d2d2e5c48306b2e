// Package criview implements the view of a pod that a kubelet's CRI messages give.
//
// The messages describe what will run: defaults are filled in, and values of the pod are merged into its containers.
// They do not carry every field of a pod, and no message says to which of the pod's lists a container belongs.
// Everything here is a function of the messages; a message of a client that is not a kubelet can have any content.
package criview

import (
	"path"
	"slices"
	"strconv"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/policies/admission"
)

const terminationGraceAnnotation = "io.kubernetes.pod.terminationGracePeriod"

// Sandbox returns the view of a pod from its sandbox. What the CRI carries with containers is unknown in it.
func Sandbox(config *runtimeapi.PodSandboxConfig) admission.Pod {
	meta, sc := config.GetMetadata(), config.GetLinux().GetSecurityContext()
	p := admission.Pod{
		UID: meta.GetUid(), Namespace: meta.GetNamespace(), Name: meta.GetName(),
		Static:            podindex.StaticSource(config.GetAnnotations()[podindex.SourceAnnotation]),
		Labels:            admission.Set(admission.Without(config.GetLabels(), admission.KubeletLabel)),
		Annotations:       admission.Set(admission.Without(config.GetAnnotations(), admission.KubeletAnnotation)),
		ReviewAnnotations: admission.Set(admission.ForReview(config.GetAnnotations())),
		Groups:            admission.Set(sc.GetSupplementalGroups()),
	}
	setNamespaces(&p, sc.GetNamespaceOptions())
	return p
}

// Container returns the view of a pod and of a container from a call that creates it. kubeletRoot has the volumes.
func Container(
	sandbox *runtimeapi.PodSandboxConfig, config *runtimeapi.ContainerConfig, kubeletRoot string,
) (admission.Pod, admission.Container) {
	p := Sandbox(sandbox)
	sc := config.GetLinux().GetSecurityContext()
	setNamespaces(&p, sandbox.GetLinux().GetSecurityContext().GetNamespaceOptions(), sc.GetNamespaceOptions())
	p.Groups = admission.Set(sc.GetSupplementalGroups())
	p.TerminationGracePeriodSeconds = terminationGrace(config.GetAnnotations())

	name := config.GetMetadata().GetName()
	found := mounts(config, newPodDir(kubeletRoot, p.UID, name))
	p.AutomountServiceAccountToken = admission.Effective(slices.ContainsFunc(found, func(m admission.Mount) bool {
		return path.Clean(m.Path) == admission.ServiceAccountPath
	}))
	c := admission.Container{
		Name:                   name,
		Privileged:             effective(sc.GetPrivileged(), false),
		ReadOnlyRootFilesystem: effective(sc.GetReadonlyRootfs(), false),
		// no_new_privs is set if the pod says false.
		AllowPrivilegeEscalation: effective(!sc.GetNoNewPrivs(), true),
		RunAsUser:                user(sc),
		RunAsGroup:               admission.Absent[int64](),
		CapabilitiesAdd:          admission.Absent[[]string](),
		CapabilitiesDrop:         admission.Absent[[]string](),
		SELinux:                  admission.Absent[admission.SELinux](),
		Mounts:                   admission.Set(found),
	}
	if image := config.GetImage().GetUserSpecifiedImage(); image != "" { // a kubelet always sends it
		c.Image = admission.Set(image)
	}
	if uid, ok := c.RunAsUser.Effective(); ok {
		c.RunAsNonRoot = admission.Effective(uid != 0)
	}
	if g := sc.GetRunAsGroup(); g != nil {
		c.RunAsGroup = admission.Set(g.GetValue())
	}
	if caps := sc.GetCapabilities(); caps != nil {
		c.CapabilitiesAdd = list(slices.Concat(caps.GetAddCapabilities(), caps.GetAddAmbientCapabilities()))
		c.CapabilitiesDrop = list(caps.GetDropCapabilities())
	}
	if o := sc.GetSelinuxOptions(); o != nil {
		label := admission.SELinux{User: o.GetUser(), Role: o.GetRole(), Type: o.GetType(), Level: o.GetLevel()}
		c.SELinux = admission.Set(label)
	}
	return p, c
}

// setNamespaces fills the fields about namespaces of the node. A namespace of the node in any of the options counts.
func setNamespaces(p *admission.Pod, options ...*runtimeapi.NamespaceOption) {
	node := func(mode func(*runtimeapi.NamespaceOption) runtimeapi.NamespaceMode) admission.Value[bool] {
		return admission.Set(slices.ContainsFunc(options, func(o *runtimeapi.NamespaceOption) bool {
			return mode(o) == runtimeapi.NamespaceMode_NODE
		}))
	}
	p.HostNetwork = node((*runtimeapi.NamespaceOption).GetNetwork)
	p.HostPID = node((*runtimeapi.NamespaceOption).GetPid)
	p.HostIPC = node((*runtimeapi.NamespaceOption).GetIpc)

	p.ShareProcessNamespace = admission.Value[bool]{}
	for _, o := range options {
		if o == nil {
			continue
		}
		switch o.GetPid() {
		case runtimeapi.NamespaceMode_POD:
			p.ShareProcessNamespace = admission.Set(true)
			return
		case runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE:
			p.ShareProcessNamespace = admission.Effective(false)
		case runtimeapi.NamespaceMode_TARGET: // an ephemeral container, which says nothing about the pod
		}
	}
}

func terminationGrace(annotations map[string]string) admission.Value[int64] {
	s, ok := annotations[terminationGraceAnnotation]
	if !ok {
		return admission.Absent[int64]()
	}
	seconds, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return admission.Value[int64]{}
	}
	return admission.Set(seconds)
}

// user returns the numeric user of a container: the pod's or else the image's. A user given by name is unknown.
func user(sc *runtimeapi.LinuxContainerSecurityContext) admission.Value[int64] {
	u := sc.GetRunAsUser()
	if u == nil || sc.GetRunAsUsername() != "" {
		return admission.Value[int64]{}
	}
	return admission.Set(u.GetValue())
}

// effective returns a boolean of the CRI. If it differs from the default, the pod has set it.
func effective(v, byDefault bool) admission.Value[bool] {
	if v != byDefault {
		return admission.Set(v)
	}
	return admission.Effective(v)
}

func list(names []string) admission.Value[[]string] {
	if len(names) == 0 {
		return admission.Absent[[]string]()
	}
	return admission.Set(names)
}
