package restriction_test

import (
	"testing"

	"github.com/pullgate/pullgate/internal/policies/podview"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// load returns a Set, and fails the test if a file is invalid.
func load(tb testing.TB, files ...restriction.File) *restriction.Set {
	tb.Helper()
	set, err := restriction.Load(files)
	must(tb, err)
	return set
}

// policy returns a Set of one policy with the spec, in YAML, that binds every namespace.
func policy(tb testing.TB, spec string) *restriction.Set {
	tb.Helper()
	return load(tb, file("test", "", spec))
}

// file returns a policy file. binding is YAML, and so is spec, of the pod's metadata and spec.
func file(name, binding, spec string) restriction.File {
	text := "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: " + name + "}\n"
	if binding != "" {
		text += "binding: " + binding + "\n"
	}
	return restriction.File{Name: name + ".yaml", Data: []byte(text + "spec: " + spec + "\n")}
}

// allowed returns a complete pod, as an admission review knows it, that the preset restricted admits with containers of container.
func allowed() podview.Pod {
	return podview.Pod{
		UID: "8f6e0a6e-0000-4000-8000-000000000001", Namespace: "team-a", Name: "web",
		NamespaceLabels:               podview.Set(map[string]string{"team": "a"}),
		Labels:                        podview.Set(map[string]string{"app": "web", "team": "team-a"}),
		Annotations:                   podview.Set(map[string]string{}),
		HostNetwork:                   podview.Set(false),
		HostPID:                       podview.Set(false),
		HostIPC:                       podview.Set(false),
		ShareProcessNamespace:         podview.Absent[bool](),
		FSGroup:                       podview.Absent[int64](),
		SupplementalGroups:            podview.Absent[[]int64](),
		RestartPolicy:                 podview.Set("Always"),
		DNSPolicy:                     podview.Set("ClusterFirst"),
		TerminationGracePeriodSeconds: podview.Set[int64](30),
		ActiveDeadlineSeconds:         podview.Absent[int64](),
		NodeSelector:                  podview.Set(map[string]string{}),
		AutomountServiceAccountToken:  podview.Absent[bool](),
		Volumes:                       podview.Set([]podview.Volume{}),
	}
}

// container returns a complete container for allowed.
func container(name string) podview.Container {
	return podview.Container{
		Name:                     name,
		Kind:                     podview.Set(podview.KindContainer),
		Image:                    podview.Set("registry.test/team-a/web:1"),
		ImagePullPolicy:          podview.Set("IfNotPresent"),
		Privileged:               podview.Absent[bool](),
		ReadOnlyRootFilesystem:   podview.Absent[bool](),
		AllowPrivilegeEscalation: podview.Set(false),
		RunAsNonRoot:             podview.Set(true),
		RunAsUser:                podview.Set[int64](1000),
		RunAsGroup:               podview.Absent[int64](),
		CapabilitiesAdd:          podview.Absent[[]string](),
		CapabilitiesDrop:         podview.Set([]string{"ALL"}),
		SELinux:                  podview.Absent[podview.SELinux](),
		Mounts:                   podview.Set([]podview.Mount{}),
	}
}

// mount returns a mount of a volume that is not a hostPath.
func mount(path, volumeType string) podview.Mount {
	return podview.Mount{
		Volume:      podview.Volume{Type: podview.Set(volumeType), HostPath: podview.Absent[string](), HostPathType: podview.Absent[string]()},
		Path:        path,
		ReadOnly:    podview.Set(false),
		Propagation: podview.Absent[string](),
	}
}

// hostPath returns a mount of a folder of the node.
func hostPath(folder string) podview.Mount {
	m := mount("/host", podview.TypeHostPath)
	m.HostPath = podview.Set(folder)
	return m
}
