package gate

import (
	"fmt"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/pkg/imageref"
)

func TestOldestEntryOfThePodIsRemoved(t *testing.T) {
	var s podStates
	hides := func(seen string, tag any) bool { return s.hide(seen, imageref.New(fmt.Sprint("busybox:", tag)), false) }
	hidden := func(seen string, tag any) bool {
		is, _ := s.isHidden(seen, imageref.New(fmt.Sprint("busybox:", tag)))
		return is
	}
	hides("victim", 0)
	const flood = 10_000 // more than an earlier limit for all pods together
	for i := range flood {
		if !hides("pod", i) {
			t.Fatalf("pre-check %d was hidden before", i)
		}
	}
	if n := len(s.pods[podKey{seen: "pod"}].hidden.of); n != maxEntries {
		t.Errorf("%d names of the pod; want %d", n, maxEntries)
	}
	if hidden("pod", flood-maxEntries-1) || !hidden("pod", flood-maxEntries) {
		t.Error("the oldest names were not those that are forgotten")
	}
	if !hidden("victim", 0) {
		t.Error("a name of another pod is forgotten")
	}
	if s.hide("pod", imageref.New("docker.io/library/busybox:9999"), true) {
		t.Error("two spellings of a name are different keys")
	}
	if _, unendorsed := s.isHidden("pod", imageref.New("busybox:9999")); !unendorsed {
		t.Error("the last reason for hiding is not remembered")
	}
	for range 2 {
		s.show("pod", imageref.New("busybox:9999"))
	}
	if hidden("pod", 9999) {
		t.Error("a cleared pre-check is still hidden")
	}
}

// Any number of pods without a sandbox displaces no pod that has one, whose state ends with it.
func TestPodsAreBoundedAndEnd(t *testing.T) {
	alive := map[podKey]bool{{uid: "victim"}: true, {seen: "victim"}: true}
	s := podStates{has: func(k podKey) bool { return alive[k] }}
	name := imageref.New("busybox")
	s.refuse("victim", name, "id")
	s.hide("victim", name, false)
	s.clear("container", createdContainer{uid: "victim"})
	for i := range maxPods/2 + 50 {
		s.hide(fmt.Sprint("seen", i), name, false)
		s.once(fmt.Sprint("uid", i), "kind", "fact")
	}
	if n := len(s.pods); n != maxPods {
		t.Errorf("%d pods are remembered; want %d", n, maxPods)
	}
	hidden, _ := s.isHidden("victim", name)
	_, cleared := s.created("container", false)
	if !hidden || !cleared || !s.refused("victim", name, "id", false) {
		t.Error("the state of a pod with a sandbox is displaced")
	}
	if first, _ := s.isHidden("seen0", name); first {
		t.Error("the state of the oldest pod without a sandbox is kept")
	}
	clear(alive)
	s.end([]string{"victim"})
	hidden, _ = s.isHidden("victim", name)
	_, cleared = s.created("container", false)
	if hidden || cleared || s.refused("victim", name, "id", false) {
		t.Error("the state of an ended pod is kept")
	}
	if n := len(s.pods); n != maxPods-2 {
		t.Errorf("%d pods are left; want %d: the others were never known", n, maxPods-2)
	}
}

func TestRefusalIsReportedOnce(t *testing.T) {
	var s podStates
	name := imageref.New("busybox")
	s.refuse("uid", name, "id")
	s.refuse("uid", imageref.Ref{}, "other")
	if !s.refused("uid", name, "id", false) || !s.refused("uid", name, "id", true) || s.refused("uid", name, "id", true) ||
		s.refused("uid", name, "id", false) {
		t.Error("want a refusal reported once")
	}
	if !s.refused("uid", imageref.New("any"), "other", true) {
		t.Error("want a refusal by image ID reported for every name")
	}
	s.refuse("", name, "id")
	if s.refused("", name, "id", false) {
		t.Error("want no refusal of an unknown pod")
	}
}

// Requests that wait take bounded memory, and those of one pod, or of many, leave room for an ordinary request of any
// other.
func TestHeldRequestsAreSharedFairly(t *testing.T) {
	const large = 1_700_000 // a pod with as many labels and annotations as the API server stores
	var h heldRequests
	var releases []func()
	fill := func(pod string, size, most int) (held int) {
		for range most {
			release, ok := h.hold(pod, size)
			if !ok {
				break
			}
			releases = append(releases, release)
			held++
		}
		return held
	}
	if n := fill("mallory", large, 1000); n != podLimit/large {
		t.Errorf("one pod holds %d large requests; want %d", n, podLimit/large)
	}
	if n := fill("alice", large, 1); n != 1 {
		t.Error("a large request of another pod is refused; want it held")
	}
	for i := range 100 {
		fill(fmt.Sprint("mallory-", i), large, 1000)
	}
	if h.total > sharedLimit {
		t.Errorf("%d bytes are held by large requests; want %d at most", h.total, sharedLimit)
	}
	for i := range 500 {
		if n := fill(fmt.Sprint("pod-", i), 20_000, 26); n != 26 {
			t.Fatalf("an ordinary pod holds %d requests while others hold all they may; want 26", n)
		}
	}
	if _, ok := h.hold("bob", large); ok {
		t.Error("a large request is held although the limit is exceeded")
	}
	for _, release := range releases {
		release()
	}
	if h.total != 0 || len(h.byPod) != 0 {
		t.Errorf("after all requests %d bytes are held, by pod %v; want none", h.total, h.byPod)
	}
}

func TestHolderOfARequest(t *testing.T) {
	seen := map[string]string{podindex.SeenAnnotation: "now"}
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Uid: "u"}}
	for _, tc := range []struct {
		got, want string
	}{
		{holderOf(&runtimeapi.PullImageRequest{SandboxConfig: config}), "u"},
		{holderOf(&runtimeapi.CreateContainerRequest{SandboxConfig: config}), "u"},
		{holderOf(&runtimeapi.RunPodSandboxRequest{Config: config}), "u"},
		{holderOf(&runtimeapi.RestorePodRequest{Config: config}), "u"},
		{holderOf(&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Annotations: seen}}), "now"},
		{holderOf(&runtimeapi.PullImageRequest{}), ""},
		{holderOf(&runtimeapi.StartContainerRequest{ContainerId: "c"}), ""},
	} {
		if tc.got != tc.want {
			t.Errorf("holder = %q; want %q", tc.got, tc.want)
		}
	}
}
