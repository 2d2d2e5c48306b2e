package gate

import (
	"slices"
	"sync"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// Limits of askedNames. Few pods use as many images, and a kubelet runs some hundreds of pods.
const (
	maxAskedNames = 64 // of one pod
	maxAskedPods  = 4096
)

// askedNames holds the names under which pods have asked for images, in pre-checks that were shown and in pulls that succeeded. Kubelets before 1.28 send no name
// when they create a container. The zero value is empty and ready to use; it may be used concurrently.
type askedNames struct {
	mu   sync.Mutex
	pods map[string][]askedName // by UID; the latest name is the last one
}

type askedName struct {
	imageID string
	name    imageref.Ref
}

// add notes a name that the runtime resolved to an image. Above the limit, a pod loses its oldest name, and a further pod is not noted.
func (s *askedNames) add(uid, imageID string, name imageref.Ref) {
	if uid == "" || imageID == "" || !name.Parsed() || name.MayBeImageID() {
		return
	}
	n := askedName{imageID, name}
	s.mu.Lock()
	defer s.mu.Unlock()
	list, known := s.pods[uid]
	if slices.Contains(list, n) {
		return
	}
	switch {
	case !known && len(s.pods) >= maxAskedPods:
		return
	case len(list) >= maxAskedNames:
		list = slices.Delete(list, 0, 1)
	case s.pods == nil:
		s.pods = map[string][]askedName{}
	}
	s.pods[uid] = append(list, n)
}

// remove removes a name that was denied: the kubelet creates no container by it.
func (s *askedNames) remove(uid, imageID string, name imageref.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if list := slices.DeleteFunc(s.pods[uid], func(n askedName) bool { return n == askedName{imageID, name} }); len(list) > 0 {
		s.pods[uid] = list
	} else {
		delete(s.pods, uid)
	}
}

// of returns the names under which a pod has asked for an image; none if it has not.
func (s *askedNames) of(uid, imageID string) (names []imageref.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.pods[uid] {
		if n.imageID == imageID && imageID != "" {
			names = append(names, n.name)
		}
	}
	return names
}

func (s *askedNames) end(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, uid)
}
