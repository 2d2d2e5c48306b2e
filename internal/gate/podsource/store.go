package podsource

import (
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// errNoPod is returned for an object that is not a pod. The reflector passes only pods.
var errNoPod = errors.New("podsource: an object of the watch is not a pod")

// store fills a Source. The reflector calls one method at a time.
type store struct{ *Source }

var _ cache.ReflectorStore = store{}

// Add adds a pod, or replaces the pod with its name.
func (s store) Add(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return errNoPod
	}
	s.put(p, false)
	return nil
}

// put implements Add. If a listed pod is new, its state before the list is unknown.
func (s store) put(api *corev1.Pod, listed bool) {
	at := key{namespace: api.Namespace, name: api.Name}
	var p *Pod
	if _, mirror := api.Annotations[mirrorAnnotation]; !mirror {
		p = podOf(api)
		p.from = s.secrets
		old := s.byKey[at] // without the lock: only the reflector changes it
		p.view = viewOf(api, s.kept(), p.ended, maxObjects-s.objects+old.size())
		known := old != nil && old.Pod == p.Pod
		// A list before the first watch, or the time, is not enough: the list may come from a cache that is behind, and
		// clocks may differ. No lock here either.
		p.older = known && old.older || s.watch == 0 || api.CreationTimestamp.Unix() < s.began.Unix()
		// Before the pod can be found, and not for a change of its status: most changes are of the status.
		if !known || !slices.Equal(old.reads(), p.reads()) {
			s.secrets.need(p.reads())
		}
		switch {
		case known && old.annotations == p.annotations && slices.Equal(old.uses, p.uses):
			p.changed = old.changed
		case known || listed:
			p.changed = time.Now()
		}
	}
	s.set(at, p)
}

// set replaces the pod with a name; with nil it only removes it.
func (s store) set(at key, p *Pod) {
	var unnamed []key // what no pod names any more
	s.mu.Lock()
	s.objects += p.size() - s.byKey[at].size()
	if p != nil {
		for _, name := range p.reads() {
			s.named[name]++
		}
	}
	if old := s.byKey[at]; old != nil {
		delete(s.byUID, old.UID)
		delete(s.byKey, at)
		for _, name := range old.reads() {
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
	s.mu.Unlock()
	s.secrets.forget(unnamed)
}

// size returns how many bytes of the pod are kept whole.
func (p *Pod) size() int {
	if p == nil || p.view == nil {
		return 0
	}
	return p.view.size
}

// Update does what Add does.
func (s store) Update(obj any) error { return s.Add(obj) }

// Delete removes a pod.
func (s store) Delete(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return errNoPod
	}
	s.set(key{namespace: p.Namespace, name: p.Name}, nil)
	return nil
}

// Replace replaces all pods by the given ones.
func (s store) Replace(list []any, _ string) error {
	listed := make(map[key]struct{}, len(list))
	for _, obj := range list {
		p, ok := obj.(*corev1.Pod)
		if !ok {
			return errNoPod
		}
		listed[key{namespace: p.Namespace, name: p.Name}] = struct{}{}
		s.put(p, true)
	}
	for at := range maps.Clone(s.byKey) { // without the lock: only the reflector changes it
		if _, ok := listed[at]; !ok {
			s.set(at, nil)
		}
	}
	return nil
}

// Resync does nothing.
func (s store) Resync() error { return nil }
