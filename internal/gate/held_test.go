package gate

import (
	"fmt"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
)

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
