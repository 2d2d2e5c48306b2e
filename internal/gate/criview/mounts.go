package criview

import (
	"io/fs"
	"path"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
)

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
