package hidden

import (
	"sync"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// maxHidden bounds how many hidden pre-checks are remembered. To forget one is safe: the pull
// that follows is then a real one, and the registry is asked.
const maxHidden = 8192

// A Key is one pod, as far as a pre-check tells it, and one normalised image name.
type Key struct {
	seen string // config.seen
	name string
}

// KeyOf returns the key of a pre-check that carried seen as its config.seen and asked for a name.
func KeyOf(seen, name string) Key {
	if n, err := imageref.Parse(name); err == nil {
		name = n.String()
	}
	return Key{seen: seen, name: name}
}

// A refusal is one pod that was denied a container on one image, by its normalised name, or by its ID
// where the name is not told.
type refusal struct{ uid, image string }

func refusalOf(uid, name, imageID string) refusal {
	if name == "" {
		return refusal{uid: uid, image: imageID}
	}
	return refusal{uid: uid, image: KeyOf("", name).name}
}

// A Set remembers the pre-checks that are hidden at the moment: a PullImage of the same pod for
// the same name may then be a request to prove access to what the node has. One counts until
// the pod gets a grant for the name or asks again. It also remembers which pods were refused at
// CreateContainer, so that their next pre-check is hidden and brings a pull. The zero value is
// empty and ready; it may be used concurrently.
type Set struct {
	mu       sync.Mutex
	keys     map[Key]struct{}
	order    []Key // oldest first; may hold keys that are gone
	refusals map[refusal]struct{}
}

// Add notes a hidden pre-check and reports whether it was not hidden before.
func (s *Set) Add(k Key) (fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.keys[k]; ok {
		return false
	}
	if s.keys == nil {
		s.keys = map[Key]struct{}{}
	}
	if len(s.order) >= maxHidden {
		delete(s.keys, s.order[0])
		s.order = s.order[1:]
	}
	s.keys[k] = struct{}{}
	s.order = append(s.order, k)
	return true
}

// Has reports whether a pre-check is hidden.
func (s *Set) Has(k Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.keys[k]
	return ok
}

// Clear forgets that a pre-check is hidden.
func (s *Set) Clear(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.keys[k]; !ok {
		return
	}
	delete(s.keys, k)
	kept := s.order[:0]
	for _, o := range s.order {
		if o != k {
			kept = append(kept, o)
		}
	}
	s.order = kept
}

// Refuse notes that a pod was denied a container on an image; name may be "".
func (s *Set) Refuse(uid, name, imageID string) {
	if uid == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusals == nil || len(s.refusals) >= maxHidden {
		s.refusals = map[refusal]struct{}{}
	}
	s.refusals[refusalOf(uid, name, imageID)] = struct{}{}
}

// Refused reports, once, whether a pod was denied a container on the image since the last time.
func (s *Set) Refused(uid, name, imageID string) (yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range []refusal{refusalOf(uid, name, imageID), refusalOf(uid, "", imageID)} {
		_, ok := s.refusals[r]
		delete(s.refusals, r)
		yes = yes || ok
	}
	return yes
}

// EndPod forgets what a pod was refused.
func (s *Set) EndPod(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.refusals {
		if r.uid == uid {
			delete(s.refusals, r)
		}
	}
}
