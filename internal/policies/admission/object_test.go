package admission_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// The object of the API server counts only if it does not differ from what runs.
func TestMergeKeepsTheObjectWithoutConflicts(t *testing.T) {
	object := new(int)
	cri := admission.Pod{HostNetwork: admission.Set(true), Labels: admission.Set(map[string]string{})}
	mounting := func(paths ...string) *admission.Container {
		var mounts []admission.Mount
		for _, path := range paths {
			mounts = append(mounts, admission.Mount{Path: path})
		}
		return &admission.Container{Name: "c", Mounts: admission.Set(mounts)}
	}
	c, same := &admission.Container{Name: "c", Image: admission.Set("a")}, &admission.Container{Name: "c"}
	ofType := func(volume string) *admission.Container {
		return &admission.Container{Name: "c", Mounts: admission.Set([]admission.Mount{
			{Path: "/x", Volume: admission.Volume{Type: admission.Set(volume)}},
		})}
	}
	for name, tc := range map[string]struct {
		api                     admission.Pod
		container, apiContainer *admission.Container
		want                    string // why there is no object; "" if it is kept
	}{
		"a sandbox":   {admission.Pod{Object: object, HostNetwork: admission.Set(true)}, nil, nil, ""},
		"a container": {admission.Pod{Object: object}, c, same, ""},
		"another host network": {
			admission.Pod{Object: object, HostNetwork: admission.Set(false)}, c, same, "differ about hostNetwork",
		},
		"another image": {admission.Pod{Object: object}, c, &admission.Container{Image: admission.Set("b")}, ""},
		"other labels": {
			admission.Pod{Object: object, Labels: admission.Set(map[string]string{"a": "b"})}, c, same, "",
		},
		"an unknown container": {admission.Pod{Object: object}, c, nil, `does not have container "c" yet`},
		"no object":            {admission.Pod{Object: errors.New("too large")}, c, nil, "too large"},
		"two mounts at a path, of which the order is unknown": {
			admission.Pod{Object: object}, mounting("/x", "/x"), mounting("/x", "/x/"), "",
		},
		"a volume that a driver mounts": {
			admission.Pod{Object: object}, ofType("csi"), ofType("azureFile"), "",
		},
		"a volume of another type": {
			admission.Pod{Object: object}, ofType("csi"), ofType("nfs"), "differ about volumeType",
		},
		"a mount at a path with two": {
			admission.Pod{Object: object}, mounting("/x"), mounting("/x", "/x/"), "differ about volumeType",
		},
	} {
		pod, _, _ := admission.Merge(cri, tc.api, tc.container, tc.apiContainer)
		if err, _ := pod.Object.(error); tc.want == "" && pod.Object != object ||
			tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: the object is %v; want %q", name, pod.Object, tc.want)
		}
	}
	pod, _, _ := admission.Merge(cri, admission.Pod{}, c, same)
	if pod.Object != nil {
		t.Errorf("without an object: %v", pod.Object)
	}
}
