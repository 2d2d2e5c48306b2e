package hidden

import (
	"crypto/sha256"
	"sync"
)

const (
	// maxNames is the maximum number of names for one pod. Few pods use as many images.
	maxNames = 64
	// maxPods is the maximum number of pods. It is far more than a node runs; an ended pod is removed earlier.
	maxPods = 4096
)

// A PerPod is a set of names for each pod, limited for each pod separately: names of one pod never displace names of another pod. The zero value
// is empty and ready to use; it may be used concurrently. A name of any length takes the same memory.
type PerPod struct {
	mu   sync.Mutex
	pods map[string]*names
	next uint64
}

// names holds the names of one pod, in the order in which they were added.
type names struct {
	added   uint64
	lasting bool // the pod has been known
	order   map[[sha256.Size]byte]uint64
}

// Add adds a name and reports whether it is new. Above the limit it removes the oldest name of the pod.
func (s *PerPod) Add(k Key) (added bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	if s.pods == nil {
		s.pods = map[string]*names{}
	}
	of := s.pods[k.Pod]
	if of == nil {
		if len(s.pods) >= maxPods {
			delete(s.pods, oldest(s.pods, func(n *names) uint64 { return n.added }))
		}
		of = &names{added: s.next, order: map[[sha256.Size]byte]uint64{}}
		s.pods[k.Pod] = of
	}
	key := sha256.Sum256([]byte(k.Name))
	if _, ok := of.order[key]; ok {
		return false
	}
	if len(of.order) >= maxNames {
		delete(of.order, oldest(of.order, func(n uint64) uint64 { return n }))
	}
	of.order[key] = s.next
	return true
}

// oldest returns the key of the value that was added first.
func oldest[K comparable, V any](of map[K]V, added func(V) uint64) (first K) {
	least := ^uint64(0)
	for k, v := range of {
		if n := added(v); n < least {
			first, least = k, n
		}
	}
	return first
}

// Has reports whether a pod has a name.
func (s *PerPod) Has(k Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.pods[k.Pod]
	if of == nil {
		return false
	}
	_, ok := of.order[sha256.Sum256([]byte(k.Name))]
	return ok
}

// Remove removes a name of a pod and reports whether the pod had it.
func (s *PerPod) Remove(k Key) (had bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.pods[k.Pod]
	if of == nil {
		return false
	}
	key := sha256.Sum256([]byte(k.Name))
	if _, had = of.order[key]; had {
		delete(of.order, key)
		if len(of.order) == 0 {
			delete(s.pods, k.Pod)
		}
	}
	return had
}

// End removes a pod.
func (s *PerPod) End(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, pod)
}

// EndUnknown removes every pod that was known and is not known any more. A pod that has not been known yet stays.
func (s *PerPod) EndUnknown(known func(pod string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pod, of := range s.pods {
		switch {
		case known(pod):
			of.lasting = true
		case of.lasting:
			delete(s.pods, pod)
		}
	}
}
