// Package criview implements the view of a pod that a kubelet's CRI messages give. They describe what will run:
// defaults are filled in, values of the pod are merged into its containers, and some fields are missing. A message of a
// client that is not a kubelet can have any content.
package criview

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
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

// A podDir is the folder in which a kubelet keeps the volumes and files of one pod:
//
//	<root>/pods/<UID>/volumes/kubernetes.io~<plugin>/<volume>         mounted as it is, or for csi its subfolder mount
//	<root>/pods/<UID>/volumes/<vendor>~<driver>/<volume>              a flexVolume
//	<root>/pods/<UID>/volumeDevices/kubernetes.io~<plugin>/<volume>   a block device
//	<root>/pods/<UID>/volume-subpaths/<volume>/<container>/<index>    a subPath; the volume may be of any type
//	<root>/pods/<UID>/etc-hosts, containers/<container>/<file>        files of the kubelet, which are in no volume
//
// Only the folder of the pod's own UID counts, and only in this spelling. Every other path is a hostPath: a tenant can
// name any path of the node, such as the folder of another pod's Secret, but the UID of a pod is not known before the
// pod exists.
type podDir struct {
	prefix    string // with a slash at the end; "" if it is not known
	container string
}

func newPodDir(kubeletRoot, uid, container string) podDir {
	prefix := path.Join(kubeletRoot, "pods", uid)
	if uid == "" || path.Base(prefix) != uid || !path.IsAbs(prefix) { // a UID with a slash, or .. in it
		return podDir{}
	}
	return podDir{prefix: prefix + "/", container: container}
}

// inside returns the part of a path that is in the folder of the pod, without elements that are empty, "." or "..".
func (d podDir) inside(p string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(p, d.prefix)
	return rest, ok && d.prefix != "" && fs.ValidPath(rest) && rest != "."
}

// OtherRoot returns what a mount shows to be the root of the kubelet, if that is not kubeletRoot. It is for messages.
func OtherRoot(config *runtimeapi.ContainerConfig, uid, kubeletRoot string) string {
	for _, m := range config.GetMounts() {
		root, _, ok := strings.Cut(m.GetHostPath(), "/pods/"+uid+"/")
		if uid != "" && ok && path.Clean(root) != path.Clean(kubeletRoot) {
			return root
		}
	}
	return ""
}

// mounts returns the mounts of a container and its block devices of volumes, without the files of the kubelet.
func mounts(config *runtimeapi.ContainerConfig, dir podDir) []admission.Mount {
	all := make([]admission.Mount, 0, len(config.GetMounts()))
	for _, m := range config.GetMounts() {
		rest, own := dir.inside(m.GetHostPath())
		if own && m.GetImage() == nil && dir.kubeletFile(rest, m.GetContainerPath()) {
			continue
		}
		var v admission.Volume
		switch {
		case own:
			v = volumeInside(rest, m.GetHostPath())
		case m.GetImage() != nil && m.GetHostPath() == "":
			v = volumeOf(admission.Set(admission.TypeImage))
		default:
			v = hostPath(m.GetHostPath())
		}
		all = append(all, admission.Mount{
			Volume: v, Path: m.GetContainerPath(), ReadOnly: admission.Set(m.GetReadonly()),
			Propagation: propagation(m.GetPropagation()), Image: mounted(m.GetImage()),
		})
	}
	for _, d := range config.GetDevices() {
		rest, own := dir.inside(d.GetHostPath())
		plugin, isVolume := strings.CutPrefix(rest, "volumeDevices/")
		if !own || !isVolume { // a device of the node, from a device plugin
			continue
		}
		plugin, _, _ = strings.Cut(plugin, "/")
		all = append(all, admission.Mount{
			Volume: volumeOf(volumeType(plugin)), Path: d.GetContainerPath(),
			ReadOnly:    admission.Set(!strings.Contains(d.GetPermissions(), "w")),
			Propagation: admission.AbsentAs(admission.PropagationNone), Image: admission.Absent[string](),
		})
	}
	return all
}

// mounted returns the pod's name for a mounted image, or else what the runtime finds it by, unless that may be an ID.
func mounted(image *runtimeapi.ImageSpec) admission.Value[string] {
	if image == nil {
		return admission.Absent[string]()
	}
	if name := image.GetUserSpecifiedImage(); name != "" {
		return admission.Set(name)
	}
	if found := imageref.New(image.GetImage()); found.Parsed() && !found.MayBeImageID() {
		return admission.Set(found.String())
	}
	return admission.Value[string]{}
}

// kubeletFile reports whether a mount is of a file that the kubelet itself adds to containers.
func (d podDir) kubeletFile(rest, containerPath string) bool {
	if rest == "etc-hosts" {
		return containerPath == "/etc/hosts"
	}
	file, ok := strings.CutPrefix(rest, "containers/"+d.container+"/")
	return ok && !strings.Contains(file, "/")
}

// volumeInside returns the volume that a path in the folder of the pod belongs to. A subPath can be of any volume.
func volumeInside(rest, whole string) admission.Volume {
	folder, rest, _ := strings.Cut(rest, "/")
	plugin, name, _ := strings.Cut(rest, "/")
	name, sub, deeper := strings.Cut(name, "/")
	switch {
	case folder == "volume-subpaths" && rest != "":
		return admission.Volume{}
	case folder == "volumes" && name != "" && (!deeper || plugin == "kubernetes.io~csi" && sub == "mount"):
		return volumeOf(volumeType(plugin))
	default:
		return hostPath(whole)
	}
}

func volumeOf(name admission.Value[string]) admission.Volume {
	return admission.Volume{Type: name, HostPath: admission.Absent[string](), HostPathType: admission.Absent[string]()}
}

func hostPath(p string) admission.Volume {
	return admission.Volume{Type: admission.Set(admission.TypeHostPath), HostPath: admission.Set(p)}
}

// volumeType returns the type of the volumes of a plugin's folder. A plugin that is not listed here is unknown.
func volumeType(folder string) admission.Value[string] {
	plugin, ok := strings.CutPrefix(folder, "kubernetes.io~")
	if !ok {
		if strings.Contains(folder, "~") {
			return admission.Set("flexVolume")
		}
		return admission.Value[string]{}
	}
	switch plugin {
	case "csi", "fc", "iscsi", "nfs", "projected", "rbd", "cephfs", "glusterfs", "secret", "cinder", "flocker", "quobyte",
		"storageos":
		return admission.Set(plugin)
	}
	if name, ok := pluginTypes[plugin]; ok {
		return admission.Set(name)
	}
	return admission.Value[string]{}
}

var pluginTypes = map[string]string{ //nolint:gochecknoglobals // a constant table
	"aws-ebs":         "awsElasticBlockStore",
	"azure-disk":      "azureDisk",
	"azure-file":      "azureFile",
	"configmap":       "configMap",
	"downward-api":    "downwardAPI",
	"empty-dir":       "emptyDir",
	"gce-pd":          "gcePersistentDisk",
	"git-repo":        "gitRepo",
	"local-volume":    admission.TypePersistentVolumeClaim, // only claims can be of this type
	"portworx-volume": "portworxVolume",
	"scaleio":         "scaleIO",
	"vsphere-volume":  "vsphereVolume",
}

func propagation(p runtimeapi.MountPropagation) admission.Value[string] {
	switch p {
	case runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		return admission.Effective(admission.PropagationNone)
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		return admission.Set(admission.PropagationHostToContainer)
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		return admission.Set(admission.PropagationBidirectional)
	}
	return admission.Value[string]{} // a mode of a newer CRI
}
