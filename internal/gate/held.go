package gate

import (
	"sync"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
)

// Bytes of requests whose handlers have not answered. A pod always has room for ownShare. Beyond it, a pod may hold
// podLimit, the largest message, and all pods together sharedLimit: no pods make an ordinary call of another one fail.
const (
	ownShare    = 512 << 10
	podLimit    = 16 << 20
	sharedLimit = 64 << 20
)

type heldRequests struct {
	mu    sync.Mutex
	total int
	byPod map[string]int
}

// hold counts a request of a pod until release is called; ok is false if there is no room for it.
func (h *heldRequests) hold(pod string, bytes int) (release func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.byPod[pod] + bytes
	if held > ownShare && (held > podLimit || h.total+bytes > sharedLimit) {
		return nil, false
	}
	h.addLocked(pod, bytes)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.addLocked(pod, -bytes)
	}, true
}

func (h *heldRequests) addLocked(pod string, bytes int) {
	if h.byPod == nil {
		h.byPod = map[string]int{}
	}
	h.total += bytes
	if h.byPod[pod] += bytes; h.byPod[pod] == 0 {
		delete(h.byPod, pod)
	}
}

// holderOf returns what identifies the pod of a request: its UID or, for a pre-check, config.seen; "" without a pod.
func holderOf(request proto.Message) string {
	switch r := request.(type) {
	case interface {
		GetSandboxConfig() *runtimeapi.PodSandboxConfig
	}:
		return r.GetSandboxConfig().GetMetadata().GetUid()
	case interface {
		GetConfig() *runtimeapi.PodSandboxConfig
	}:
		return r.GetConfig().GetMetadata().GetUid()
	case *runtimeapi.ImageStatusRequest:
		return r.GetImage().GetAnnotations()[podindex.SeenAnnotation]
	default:
		return ""
	}
}
