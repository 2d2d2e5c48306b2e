package podfile

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// A volume is a volume of a pod, with what its mounts need of it.
type volume struct {
	view     admission.Volume
	image    admission.Value[string]
	readOnly bool // whatever the mount says
}

func volumesOf(list []corev1.Volume) map[string]volume {
	all := make(map[string]volume, len(list))
	for i := range list {
		all[list[i].Name] = volumeOf(&list[i].VolumeSource)
	}
	return all
}

// volumeOf returns the view of a volume. The type of a volume without a source, or with one that this version of the
// API does not have, is unknown.
func volumeOf(s *corev1.VolumeSource) volume {
	v := volume{view: admission.Volume{HostPath: admission.Absent[string](), HostPathType: admission.Absent[string]()}}
	sources := reflect.ValueOf(s).Elem()
	for i := range sources.NumField() {
		source := sources.Field(i)
		if source.IsNil() {
			continue
		}
		name, _, _ := strings.Cut(sources.Type().Field(i).Tag.Get("json"), ",")
		v.view.Type, v.image = admission.Set(name), admission.Absent[string]()
		v.readOnly = readOnlyType(name) || readOnlySource(source.Elem())
		break
	}
	if s.Image != nil {
		v.image = admission.Value[string]{} // the API server accepts a reference that is set later
		if s.Image.Reference != "" {
			v.image = admission.Set(s.Image.Reference)
		}
	}
	if h := s.HostPath; h != nil {
		v.view.HostPath = admission.Set(h.Path)
		// The empty type is what the API server makes of none. It takes effect: the kubelet does not check what is
		// there.
		v.view.HostPathType = admission.AbsentAs("")
		if h.Type != nil && *h.Type != corev1.HostPathUnset {
			v.view.HostPathType = admission.Set(string(*h.Type))
		}
	}
	return v
}

// readOnlyType reports whether kubelets mount every volume of the type read-only.
func readOnlyType(name string) bool {
	switch name {
	case "configMap", "downwardAPI", "projected", "secret", admission.TypeImage:
		return true
	default:
		return false
	}
}

// readOnlySource reports whether a volume has a field readOnly that is true.
func readOnlySource(source reflect.Value) bool {
	f := source.FieldByName("ReadOnly")
	if f.IsValid() && f.Kind() == reflect.Pointer {
		f = f.Elem() // invalid if it is nil
	}
	return f.IsValid() && f.Bool()
}

// mountsOf returns the mounts of a container, block devices of volumes included.
func mountsOf(c *corev1.Container, volumes map[string]volume) []admission.Mount {
	all := make([]admission.Mount, 0, len(c.VolumeMounts)+len(c.VolumeDevices))
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		v := volumes[m.Name] // a volume that the pod does not have is unknown
		mount := admission.Mount{Volume: v.view, Path: absolute(m.MountPath), ReadOnly: admission.Set(m.ReadOnly || v.readOnly), Propagation: admission.Absent[string](), Image: v.image}
		if m.MountPropagation != nil {
			mount.Propagation = admission.Set(string(*m.MountPropagation))
		}
		all = append(all, mount)
	}
	for _, d := range c.VolumeDevices {
		v := volumes[d.Name]
		all = append(all, admission.Mount{
			Volume: v.view, Path: absolute(d.DevicePath), ReadOnly: admission.Set(v.readOnly), Propagation: admission.Absent[string](), Image: v.image,
		})
	}
	return all
}

// absolute returns the path of a mount as kubelets complete it.
func absolute(p string) string {
	if strings.HasPrefix(p, "/") {
		return p
	}
	return "/" + p
}
