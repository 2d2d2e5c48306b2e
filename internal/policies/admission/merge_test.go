package admission_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

func TestValue(t *testing.T) {
	var unknown admission.Value[bool]
	for name, tc := range map[string]struct {
		v         admission.Value[bool]
		get       bool
		state     admission.State
		effective bool
		ok        bool
	}{
		"the zero value": {unknown, false, admission.StateUnknown, false, false},
		"Set":            {admission.Set(true), true, admission.StateSet, true, true},
		"Absent":         {admission.Absent[bool](), false, admission.StateAbsent, false, false},
		"AbsentAs":       {admission.AbsentAs(true), false, admission.StateAbsent, true, true},
		"Effective":      {admission.Effective(true), false, admission.StateUnknown, true, true},
	} {
		got, state := tc.v.Get()
		effective, ok := tc.v.Effective()
		if got != tc.get || state != tc.state || tc.v.State() != tc.state || effective != tc.effective || ok != tc.ok {
			t.Errorf("%s: Get = %v, %v, Effective = %v, %v; want %+v", name, got, state, effective, ok, tc)
		}
	}
}

func TestMergeOfBooleans(t *testing.T) {
	unknown := admission.Value[bool]{}
	for _, tc := range []struct {
		name           string
		cri, api, want admission.Value[bool]
		conflict       bool
	}{
		{"a default, absent", admission.Effective(false), admission.Absent[bool](), admission.AbsentAs(false), false},
		{"a default that the pod sets", admission.Effective(false), admission.Set(false), admission.Set(false), false},
		{"the API does not know", admission.Effective(false), unknown, admission.Effective(false), false},
		{"the CRI does not know", unknown, admission.Set(true), admission.Set(true), false},
		{"both set it", admission.Set(true), admission.Set(true), admission.Set(true), false},
		{"the CRI wins", admission.Set(true), admission.Set(false), admission.Set(true), true},
		{"the CRI wins with a default", admission.Effective(false), admission.Set(true), admission.Effective(false), true},
		{"only the CRI sets it", admission.Set(true), admission.Absent[bool](), admission.Set(true), true},
	} {
		_, c, conflicts := admission.Merge(admission.Pod{}, admission.Pod{}, &admission.Container{Privileged: tc.cri},
			&admission.Container{Privileged: tc.api})
		if c.Privileged != tc.want || slices.Contains(conflicts, "privileged") != tc.conflict {
			t.Errorf("%s: %+v, conflicts %q; want %+v, %v", tc.name, c.Privileged, conflicts, tc.want, tc.conflict)
		}
	}
}

func TestMergeCompletesTheCRI(t *testing.T) {
	labels := admission.Set(map[string]string{"a": "b"})
	cri := admission.Pod{UID: "1", Labels: labels, Groups: admission.Set([]int64{2000, 5, 77})}
	api := admission.Pod{
		UID: "1", Labels: labels, RestartPolicy: admission.Set("Never"), FSGroup: admission.Set[int64](2000),
		SupplementalGroups: admission.Set([]int64{5}),
	}
	container := admission.Container{
		Name: "web", RunAsUser: admission.Set[int64](1000), RunAsNonRoot: admission.Effective(true),
		Mounts: admission.Set([]admission.Mount{
			{Path: "/claim", Volume: admission.Volume{Type: admission.Set("csi"), HostPath: admission.Absent[string]()}},
			{Path: "/sub", Volume: admission.Volume{}},
			{Path: "/gpu", Volume: admission.Volume{Type: admission.Set("hostPath"), HostPath: admission.Set("/usr/lib/gpu")}},
		}),
	}
	logs := admission.Volume{Type: admission.Set("hostPath"), HostPath: admission.Set("/var/log")}
	described := admission.Container{
		Name: "web", Kind: admission.Set(admission.KindInit), RunAsUser: admission.Absent[int64](),
		RunAsNonRoot: admission.Absent[bool](),
		Mounts: admission.Set([]admission.Mount{
			{Path: "/claim", Volume: admission.Volume{Type: admission.Set("persistentVolumeClaim")}},
			{Path: "/sub", Volume: logs},
			{Path: "/gone", Volume: admission.Volume{Type: admission.Set("secret")}},
		}),
	}
	p, c, conflicts := admission.Merge(cri, api, &container, &described)
	if len(conflicts) > 0 {
		t.Errorf("conflicts %q; want none", conflicts)
	}
	groups, _ := p.SupplementalGroups.Get()
	if !slices.Equal(groups, []int64{5, 77}) || p.FSGroup != admission.Set[int64](2000) ||
		p.RestartPolicy != admission.Set("Never") {
		t.Errorf("groups %v, fsGroup %+v, restartPolicy %+v; want the group of a volume with the supplemental ones", groups,
			p.FSGroup, p.RestartPolicy)
	}
	if c.Kind != admission.Set(admission.KindInit) || c.RunAsUser != admission.Set[int64](1000) ||
		c.RunAsNonRoot != admission.AbsentAs(true) {
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
	if mounts[1].HostPath != admission.Set("/var/log") {
		t.Errorf("a subPath has the path %+v; want that of its volume", mounts[1].HostPath)
	}
}

// A pod that does not set runAsNonRoot runs as the user of its image, and the number of a user that is given by name is
// unknown.
func TestMergeKeepsTheUserOfAnImageUnknown(t *testing.T) {
	api := &admission.Container{RunAsUser: admission.Absent[int64](), RunAsNonRoot: admission.Absent[bool]()}
	_, c, _ := admission.Merge(admission.Pod{}, admission.Pod{}, &admission.Container{}, api)
	if c.RunAsUser != (admission.Value[int64]{}) || c.RunAsNonRoot != (admission.Value[bool]{}) {
		t.Errorf("user %+v, non-root %+v; want unknown values", c.RunAsUser, c.RunAsNonRoot)
	}
	api.RunAsNonRoot = admission.Set(true) // the kubelet does not start it as user 0
	if _, c, _ := admission.Merge(admission.Pod{}, admission.Pod{}, &admission.Container{},
		api); c.RunAsNonRoot != admission.Set(true) {
		t.Errorf("non-root %+v; want what the pod demands", c.RunAsNonRoot)
	}
}

func TestMergeReportsConflicts(t *testing.T) {
	mount := func(volumeType, host string) admission.Value[[]admission.Mount] {
		return admission.Set([]admission.Mount{{
			Path: "/m", ReadOnly: admission.Set(host == "/a"),
			Volume: admission.Volume{Type: admission.Set(volumeType), HostPath: admission.Set(host)},
		}})
	}
	cri := admission.Pod{
		Labels: admission.Set(map[string]string{"a": "b"}), HostNetwork: admission.Set(true),
		Groups: admission.Set([]int64{1}),
	}
	api := admission.Pod{
		Labels: admission.Set(map[string]string{"a": "c"}), HostNetwork: admission.Set(false),
		SupplementalGroups: admission.Set([]int64{2}), FSGroup: admission.Absent[int64](),
	}
	p, c, conflicts := admission.Merge(cri, api, &admission.Container{Mounts: mount("hostPath", "/a")},
		&admission.Container{Mounts: mount("hostPath", "/b")})
	const want = "labels hostNetwork supplementalGroups mount.readOnly hostPath.path"
	if got := strings.Join(conflicts, " "); got != want {
		t.Errorf("conflicts %s; want %s", got, want)
	}
	mounts, _ := c.Mounts.Get()
	if labels, _ := p.Labels.Get(); labels["a"] != "b" || p.HostNetwork != admission.Set(true) ||
		mounts[0].HostPath != admission.Set("/a") {
		t.Errorf("labels %v, host network %+v, path %+v; want those of the CRI", labels, p.HostNetwork, mounts[0].HostPath)
	}
	if p.SupplementalGroups.State() != admission.StateUnknown || p.FSGroup.State() != admission.StateUnknown {
		t.Error("groups that the pod does not run with are taken from the API")
	}
	if _, c, _ := admission.Merge(cri, api, nil, nil); c != nil {
		t.Errorf("container %+v without one; want nil", c)
	}
}
