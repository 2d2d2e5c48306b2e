package restriction_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
)

var must = testkit.Must

type (
	options = restriction.Options
	list    = []admission.Container
)

const (
	atNode, withPods = restriction.Node, restriction.NodeWithPodSource

	noWeb = "{metadata: {name: {blacklist: [web]}}}" // a spec that the pod of allowed violates
)

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

// allowed returns a complete pod, as an admission review knows it, that the preset restricted admits with containers of
// container.
func allowed() admission.Pod {
	return admission.Pod{
		UID: "8f6e0a6e-0000-4000-8000-000000000001", Namespace: "team-a", Name: "web",
		NamespaceLabels:               admission.Set(map[string]string{"team": "a"}),
		Labels:                        admission.Set(map[string]string{"app": "web", "team": "team-a"}),
		Annotations:                   admission.Set(map[string]string{}),
		HostNetwork:                   admission.Set(false),
		HostPID:                       admission.Set(false),
		HostIPC:                       admission.Set(false),
		ShareProcessNamespace:         admission.Absent[bool](),
		FSGroup:                       admission.Absent[int64](),
		SupplementalGroups:            admission.Absent[[]int64](),
		RestartPolicy:                 admission.Set("Always"),
		DNSPolicy:                     admission.Set("ClusterFirst"),
		TerminationGracePeriodSeconds: admission.Set[int64](30),
		ActiveDeadlineSeconds:         admission.Absent[int64](),
		NodeSelector:                  admission.Set(map[string]string{}),
		AutomountServiceAccountToken:  admission.Absent[bool](),
		Volumes:                       admission.Set([]admission.Volume{}),
	}
}

// container returns a complete container for allowed.
func container(name string) admission.Container {
	return admission.Container{
		Name:                     name,
		Kind:                     admission.Set(admission.KindContainer),
		Image:                    admission.Set("registry.test/team-a/web:1"),
		ImagePullPolicy:          admission.Set("IfNotPresent"),
		Privileged:               admission.Absent[bool](),
		ReadOnlyRootFilesystem:   admission.Absent[bool](),
		AllowPrivilegeEscalation: admission.Set(false),
		RunAsNonRoot:             admission.Set(true),
		RunAsUser:                admission.Set[int64](1000),
		RunAsGroup:               admission.Absent[int64](),
		CapabilitiesAdd:          admission.Absent[[]string](),
		CapabilitiesDrop:         admission.Set([]string{"ALL"}),
		SELinux:                  admission.Absent[admission.SELinux](),
		Mounts:                   admission.Set([]admission.Mount{}),
	}
}

// mount returns a mount of a volume that is not a hostPath.
func mount(path, volumeType string) admission.Mount {
	return admission.Mount{
		Volume: admission.Volume{
			Type: admission.Set(volumeType), HostPath: admission.Absent[string](),
			HostPathType: admission.Absent[string](),
		},
		Path:        path,
		ReadOnly:    admission.Set(false),
		Propagation: admission.Absent[string](),
	}
}

// hostPath returns a mount of a folder of the node.
func hostPath(folder string) admission.Mount {
	m := mount("/host", admission.TypeHostPath)
	m.HostPath = admission.Set(folder)
	return m
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
