package podview_test

import (
	"slices"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/podview"
)

func TestValue(t *testing.T) {
	var unknown podview.Value[bool]
	for name, tc := range map[string]struct {
		v         podview.Value[bool]
		get       bool
		state     podview.State
		effective bool
		ok        bool
	}{
		"the zero value": {unknown, false, podview.StateUnknown, false, false},
		"Set":            {podview.Set(true), true, podview.StateSet, true, true},
		"Absent":         {podview.Absent[bool](), false, podview.StateAbsent, false, false},
		"AbsentAs":       {podview.AbsentAs(true), false, podview.StateAbsent, true, true},
		"Effective":      {podview.Effective(true), false, podview.StateUnknown, true, true},
	} {
		got, state := tc.v.Get()
		effective, ok := tc.v.Effective()
		if got != tc.get || state != tc.state || tc.v.State() != tc.state || effective != tc.effective || ok != tc.ok {
			t.Errorf("%s: Get = %v, %v, Effective = %v, %v; want %+v", name, got, state, effective, ok, tc)
		}
	}
}

func TestMergeOfBooleans(t *testing.T) {
	unknown := podview.Value[bool]{}
	for name, tc := range map[string]struct {
		cri, api, want podview.Value[bool]
		conflict       bool
	}{
		"the CRI fills in a default that the pod leaves out": {podview.Effective(false), podview.Absent[bool](), podview.AbsentAs(false), false},
		"the CRI fills in a default that the pod sets":       {podview.Effective(false), podview.Set(false), podview.Set(false), false},
		"the API does not know":                              {podview.Effective(false), unknown, podview.Effective(false), false},
		"the CRI does not know":                              {unknown, podview.Set(true), podview.Set(true), false},
		"both set it":                                        {podview.Set(true), podview.Set(true), podview.Set(true), false},
		"the CRI wins":                                       {podview.Set(true), podview.Set(false), podview.Set(true), true},
		"the CRI wins with a default":                        {podview.Effective(false), podview.Set(true), podview.Effective(false), true},
		"only the CRI sets it":                               {podview.Set(true), podview.Absent[bool](), podview.Set(true), true},
	} {
		_, c, conflicts := podview.Merge(podview.Pod{}, podview.Pod{}, &podview.Container{Privileged: tc.cri}, &podview.Container{Privileged: tc.api})
		if c.Privileged != tc.want || slices.Contains(conflicts, "privileged") != tc.conflict {
			t.Errorf("%s: %+v, conflicts %q; want %+v, %v", name, c.Privileged, conflicts, tc.want, tc.conflict)
		}
	}
}

func TestMergeCompletesTheCRI(t *testing.T) {
	cri := podview.Pod{UID: "1", Labels: podview.Set(map[string]string{"a": "b"}), Groups: podview.Set([]int64{2000, 5, 77})}
	api := podview.Pod{
		UID: "1", Labels: podview.Set(map[string]string{"a": "b"}), RestartPolicy: podview.Set("Never"),
		FSGroup: podview.Set[int64](2000), SupplementalGroups: podview.Set([]int64{5}),
	}
	container := podview.Container{
		Name: "web", RunAsUser: podview.Set[int64](1000), RunAsNonRoot: podview.Effective(true),
		Mounts: podview.Set([]podview.Mount{
			{Path: "/claim", Volume: podview.Volume{Type: podview.Set("csi"), HostPath: podview.Absent[string]()}},
			{Path: "/sub", Volume: podview.Volume{}},
			{Path: "/gpu", Volume: podview.Volume{Type: podview.Set("hostPath"), HostPath: podview.Set("/usr/lib/gpu")}},
		}),
	}
	described := podview.Container{
		Name: "web", Kind: podview.Set(podview.KindInit), RunAsUser: podview.Absent[int64](), RunAsNonRoot: podview.Absent[bool](),
		Mounts: podview.Set([]podview.Mount{
			{Path: "/claim", Volume: podview.Volume{Type: podview.Set("persistentVolumeClaim")}},
			{Path: "/sub", Volume: podview.Volume{Type: podview.Set("hostPath"), HostPath: podview.Set("/var/log"), HostPathType: podview.Absent[string]()}},
			{Path: "/gone", Volume: podview.Volume{Type: podview.Set("secret")}},
		}),
	}
	p, c, conflicts := podview.Merge(cri, api, &container, &described)
	if len(conflicts) > 0 {
		t.Errorf("conflicts %q; want none", conflicts)
	}
	groups, _ := p.SupplementalGroups.Get()
	if !slices.Equal(groups, []int64{5, 77}) || p.FSGroup != podview.Set[int64](2000) || p.RestartPolicy != podview.Set("Never") {
		t.Errorf("groups %v, fsGroup %+v, restartPolicy %+v; want the group of a volume with the supplemental ones", groups, p.FSGroup, p.RestartPolicy)
	}
	if c.Kind != podview.Set(podview.KindInit) || c.RunAsUser != podview.Set[int64](1000) || c.RunAsNonRoot != podview.AbsentAs(true) {
		t.Errorf("kind %+v, user %+v, non-root %+v", c.Kind, c.RunAsUser, c.RunAsNonRoot)
	}
	mounts, _ := c.Mounts.Get()
	var types []string
	for _, m := range mounts {
		name, _ := m.Type.Get()
		types = append(types, m.Path+" "+name)
	}
	if want := []string{"/claim persistentVolumeClaim", "/sub hostPath", "/gpu hostPath"}; !slices.Equal(types, want) {
		t.Errorf("mounts %q; want %q", types, want)
	}
	if mounts[1].HostPath != podview.Set("/var/log") {
		t.Errorf("a subPath has the path %+v; want that of its volume", mounts[1].HostPath)
	}
}

// A pod that does not set runAsNonRoot runs as the user of its image, and the number of a user that is given by name is unknown.
func TestMergeKeepsTheUserOfAnImageUnknown(t *testing.T) {
	api := &podview.Container{RunAsUser: podview.Absent[int64](), RunAsNonRoot: podview.Absent[bool]()}
	_, c, _ := podview.Merge(podview.Pod{}, podview.Pod{}, &podview.Container{}, api)
	if c.RunAsUser != (podview.Value[int64]{}) || c.RunAsNonRoot != (podview.Value[bool]{}) {
		t.Errorf("user %+v, non-root %+v; want unknown values", c.RunAsUser, c.RunAsNonRoot)
	}
	api.RunAsNonRoot = podview.Set(true) // the kubelet does not start it as user 0
	if _, c, _ := podview.Merge(podview.Pod{}, podview.Pod{}, &podview.Container{}, api); c.RunAsNonRoot != podview.Set(true) {
		t.Errorf("non-root %+v; want what the pod demands", c.RunAsNonRoot)
	}
}

func TestMergeReportsConflicts(t *testing.T) {
	mount := func(volumeType, host string) podview.Value[[]podview.Mount] {
		return podview.Set([]podview.Mount{{Path: "/m", ReadOnly: podview.Set(host == "/a"), Volume: podview.Volume{Type: podview.Set(volumeType), HostPath: podview.Set(host)}}})
	}
	cri := podview.Pod{Labels: podview.Set(map[string]string{"a": "b"}), HostNetwork: podview.Set(true), Groups: podview.Set([]int64{1})}
	api := podview.Pod{Labels: podview.Set(map[string]string{"a": "c"}), HostNetwork: podview.Set(false), SupplementalGroups: podview.Set([]int64{2}), FSGroup: podview.Absent[int64]()}
	p, c, conflicts := podview.Merge(cri, api, &podview.Container{Mounts: mount("hostPath", "/a")}, &podview.Container{Mounts: mount("hostPath", "/b")})
	if want := []string{"labels", "hostNetwork", "supplementalGroups", "mount.readOnly", "hostPath.path"}; !slices.Equal(conflicts, want) {
		t.Errorf("conflicts %q; want %q", conflicts, want)
	}
	mounts, _ := c.Mounts.Get()
	if labels, _ := p.Labels.Get(); labels["a"] != "b" || p.HostNetwork != podview.Set(true) || mounts[0].HostPath != podview.Set("/a") {
		t.Errorf("labels %v, host network %+v, path %+v; want those of the CRI", labels, p.HostNetwork, mounts[0].HostPath)
	}
	if p.SupplementalGroups.State() != podview.StateUnknown || p.FSGroup.State() != podview.StateUnknown {
		t.Error("groups that the pod does not run with are taken from the API")
	}
	if _, c, _ := podview.Merge(cri, api, nil, nil); c != nil {
		t.Errorf("container %+v without one; want nil", c)
	}
}
