package criproxy

import (
	"sync"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// maxHidden bounds how many hidden pre-checks are remembered. To forget one is safe: the pull
// that follows is then a real one, and the registry is asked.
const maxHidden = 8192

// A precheckKey is one pod, as far as a pre-check tells it, and one normalised image name.
type precheckKey struct {
	seen string // config.seen
	name string
}

func keyOf(seen, name string) precheckKey {
	if n, err := imageref.Parse(name); err == nil {
		name = n.String()
	}
	return precheckKey{seen: seen, name: name}
}

// A refusal is one pod that was denied a container on one image, by its normalised name, or by its ID
// where the name is not told.
type refusal struct{ uid, image string }

func refusalOf(uid, name, imageID string) refusal {
	if name == "" {
		return refusal{uid: uid, image: imageID}
	}
	return refusal{uid: uid, image: keyOf("", name).name}
}

// hidden remembers the pre-checks that are hidden at the moment: a PullImage of the same pod for
// the same name may then be a request to prove access to what the node has. One counts until
// the pod gets a grant for the name or asks again. It also remembers which pods were refused at
// CreateContainer, so that their next pre-check is hidden and brings a pull. The zero value is
// empty and ready; it may be used concurrently.
type hidden struct {
	mu       sync.Mutex
	keys     map[precheckKey]struct{}
	order    []precheckKey // oldest first; may hold keys that are gone
	refusals map[refusal]struct{}
}

// set notes a hidden pre-check and reports whether it was not hidden before.
func (h *hidden) set(k precheckKey) (fresh bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.keys[k]; ok {
		return false
	}
	if h.keys == nil {
		h.keys = map[precheckKey]struct{}{}
	}
	if len(h.order) >= maxHidden {
		delete(h.keys, h.order[0])
		h.order = h.order[1:]
	}
	h.keys[k] = struct{}{}
	h.order = append(h.order, k)
	return true
}

func (h *hidden) has(k precheckKey) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.keys[k]
	return ok
}

func (h *hidden) clear(k precheckKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.keys[k]; !ok {
		return
	}
	delete(h.keys, k)
	kept := h.order[:0]
	for _, o := range h.order {
		if o != k {
			kept = append(kept, o)
		}
	}
	h.order = kept
}

// refuse notes that a pod was denied a container on an image; name may be "".
func (h *hidden) refuse(uid, name, imageID string) {
	if uid == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refusals == nil || len(h.refusals) >= maxHidden {
		h.refusals = map[refusal]struct{}{}
	}
	h.refusals[refusalOf(uid, name, imageID)] = struct{}{}
}

// refused reports, once, whether a pod was denied a container on the image since the last time.
func (h *hidden) refused(uid, name, imageID string) (yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range []refusal{refusalOf(uid, name, imageID), refusalOf(uid, "", imageID)} {
		_, ok := h.refusals[r]
		delete(h.refusals, r)
		yes = yes || ok
	}
	return yes
}

// endPod forgets what a pod was refused.
func (h *hidden) endPod(uid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.refusals {
		if r.uid == uid {
			delete(h.refusals, r)
		}
	}
}
