package admission_test

import (
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// The object of the API server counts only if it does not differ from what runs.
func TestMergeKeepsTheObjectWithoutConflicts(t *testing.T) {
	object := new(int)
	cri := admission.Pod{HostNetwork: admission.Set(true)}
	c, same := &admission.Container{Name: "c", Image: admission.Set("a")}, &admission.Container{Name: "c"}
	for name, tc := range map[string]struct {
		api                     admission.Pod
		container, apiContainer *admission.Container
		kept                    bool
	}{
		"a sandbox":            {admission.Pod{Object: object, HostNetwork: admission.Set(true)}, nil, nil, true},
		"a container":          {admission.Pod{Object: object}, c, same, true},
		"another host network": {admission.Pod{Object: object, HostNetwork: admission.Set(false)}, c, same, false},
		"another image":        {admission.Pod{Object: object}, c, &admission.Container{Image: admission.Set("b")}, false},
		"an unknown container": {admission.Pod{Object: object}, c, nil, false},
		"no object":            {admission.Pod{}, c, same, false},
	} {
		pod, _, _ := admission.Merge(cri, tc.api, tc.container, tc.apiContainer)
		if (pod.Object != nil) != tc.kept {
			t.Errorf("%s: the object is %v; want it kept: %v", name, pod.Object, tc.kept)
		}
	}
}
