package podsource

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// errNoPod is returned for an object that is not a pod. The reflector passes only pods.
var errNoPod = errors.New("podsource: an object of the watch is not a pod")

// store contains the pods of the node; a reflector fills it. Its methods may be called concurrently.
type store struct {
	secrets *secrets
	fields  atomic.Pointer[[]string] // of views, sorted; see KeepFields

	// mu guards the fields below. It is never held during a call to secrets.
	mu    sync.RWMutex
	byKey map[key]*Pod // by namespace and name
	byUID map[string]*Pod
	named map[key]int // how many pods name a Secret
	// relist has the pods listed again; nil before the first list.
	relist context.CancelFunc
	// arrived is closed and replaced when a pod is added or changed.
	arrived chan struct{}
}

var _ cache.ReflectorStore = (*store)(nil)

func newStore(s *secrets) *store {
	return &store{
		secrets: s, byKey: map[key]*Pod{}, byUID: map[string]*Pod{}, named: map[key]int{},
		arrived: make(chan struct{}),
	}
}

// Add adds a pod, or replaces the pod with its name. The reflector calls one method at a time.
func (s *store) Add(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return errNoPod
	}
	s.put(p, false)
	return nil
}

// put implements Add. If a listed pod is new, its state before the list is unknown.
func (s *store) put(api *corev1.Pod, listed bool) {
	at := key{api.Namespace, api.Name}
	var p *Pod
	if _, mirror := api.Annotations[mirrorAnnotation]; !mirror {
		p = podOf(api)
		p.from = s.secrets
		p.view = viewOf(api, s.kept())
		old := s.at(at)
		// Before the pod can be found, and not for a change of its status: most changes are of the status.
		if old == nil || old.Pod != p.Pod || !slices.Equal(old.secrets, p.secrets) {
			s.secrets.need(p.secrets)
		}
		switch known := old != nil && old.Pod == p.Pod; {
		case known && old.annotations == p.annotations && slices.Equal(old.uses, p.uses):
			p.changed = old.changed
		case known || listed:
			p.changed = time.Now()
		}
	}
	s.set(at, p)
}

// set replaces the pod with a name; with nil it only removes it.
func (s *store) set(at key, p *Pod) {
	s.mu.Lock()
	unnamed := s.setLocked(at, p)
	s.mu.Unlock()
	s.secrets.forget(unnamed)
}

// Update does what Add does.
func (s *store) Update(obj any) error { return s.Add(obj) }

// Delete removes a pod.
func (s *store) Delete(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return errNoPod
	}
	s.set(key{p.Namespace, p.Name}, nil)
	return nil
}

// Replace replaces all pods by the given ones.
func (s *store) Replace(list []any, _ string) error {
	listed := make(map[key]struct{}, len(list))
	for _, obj := range list {
		p, ok := obj.(*corev1.Pod)
		if !ok {
			return errNoPod
		}
		listed[key{p.Namespace, p.Name}] = struct{}{}
		s.put(p, true)
	}
	s.mu.Lock()
	var unnamed []key
	for at := range maps.Clone(s.byKey) {
		if _, ok := listed[at]; !ok {
			unnamed = append(unnamed, s.setLocked(at, nil)...)
		}
	}
	s.mu.Unlock()
	s.secrets.forget(unnamed)
	return nil
}

// Resync does nothing.
func (s *store) Resync() error { return nil }

// setLocked replaces the pod with a name; with nil it only removes it. It returns the Secrets that no pod names any more.
func (s *store) setLocked(at key, p *Pod) (unnamed []key) {
	if p != nil {
		for _, name := range p.secrets {
			s.named[name]++
		}
	}
	if old := s.byKey[at]; old != nil {
		delete(s.byUID, old.UID)
		delete(s.byKey, at)
		for _, name := range old.secrets {
			if s.named[name]--; s.named[name] == 0 {
				delete(s.named, name)
				unnamed = append(unnamed, name)
			}
		}
	}
	if p != nil {
		s.byKey[at], s.byUID[p.UID] = p, p
		close(s.arrived)
		s.arrived = make(chan struct{})
	}
	return unnamed
}

// at returns the pod of a namespace and name, nil if it is not known.
func (s *store) at(at key) *Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byKey[at]
}

// len returns how many pods are known.
func (s *store) len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byKey)
}

// uid returns the pod with the UID, nil if it is not known.
func (s *store) uid(uid string) *Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byUID[uid]
}

// await returns the pod with the UID if it is added before the context ends; otherwise nil.
func (s *store) await(ctx context.Context, uid string) *Pod {
	for {
		s.mu.RLock()
		p, arrived := s.byUID[uid], s.arrived
		s.mu.RUnlock()
		if p != nil {
			return p
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil
		}
	}
}

// match returns the pods that use an image and have these annotations, including those that changed within kubeletLag, sorted by
// UID.
func (s *store) match(annotations map[string]string, image imageref.Name) []*Pod {
	want, now := hash(annotations), time.Now()
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found []*Pod
	for _, p := range s.byUID {
		if now.Sub(p.changed) < kubeletLag || p.annotations == want && p.has(image) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b *Pod) int { return strings.Compare(a.UID, b.UID) })
	return found
}
