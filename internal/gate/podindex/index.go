// Package podindex implements the index by which the gate identifies the pod of a call. A kubelet's pre-check has no
// pod UID, but the value that the kubelet wrote on the pod under kubernetes.io/config.seen, as the pod's sandbox has
// it. The index is rebuilt from the runtime's list of sandboxes. A value of two pods identifies both; a caller must
// then allow only what each of them may use. A tenant can edit other annotations, so they are not compared.
package podindex

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/pullgate/pullgate/pkg/tracker"
)

// Annotations that a kubelet writes on every pod that it runs. It overwrites the values of the pod's author.
const (
	// SeenAnnotation is when the kubelet first saw the pod. After its restart a pod gets a new value, its sandbox does
	// not.
	SeenAnnotation   = "kubernetes.io/config.seen"
	SourceAnnotation = "kubernetes.io/config.source" // holds the source of the pod: "api", "file" or "http"
)

// StaticSource reports whether a value of [SourceAnnotation] is that of a static pod, from a file or a URL.
func StaticSource(source string) bool { return source == "file" || source == "http" }

// A Sandbox is one sandbox of a pod in the runtime.
type Sandbox struct {
	ID   string
	Pod  tracker.Pod
	Seen string // the value of SeenAnnotation; "" for a sandbox that a client other than a kubelet created
}

// An Epoch identifies one state of an [Index].
type Epoch uint64

// An Index maps the sandboxes of the runtime, and config.seen values, to pods. It may be used concurrently.
type Index struct {
	// mu guards the following fields. It is never held across a call to another package.
	mu            sync.Mutex
	epoch         Epoch
	sandboxes     map[string]Sandbox
	learned, seen values // learned holds the values from PullImage that no sandbox has, and seen holds those of all pods
}

// values are the pods of each value of SeenAnnotation, by UID; almost always one pod.
type values map[string]map[string]tracker.Pod

func (v values) add(seen string, p tracker.Pod) {
	if seen == "" || p.UID == "" {
		return
	}
	if v[seen] == nil {
		v[seen] = map[string]tracker.Pod{}
	}
	v[seen][p.UID] = p
}

// New returns an empty index.
func New() *Index {
	return &Index{sandboxes: map[string]Sandbox{}, learned: values{}, seen: values{}}
}

// Add adds a sandbox, after RunPodSandbox.
func (x *Index) Add(s Sandbox) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.epoch++
	x.sandboxes[s.ID] = s
	x.seen.add(s.Seen, s.Pod)
}

// Learn adds a value that the kubelet sent for a pod, until an [Index.Reconcile] at which the pod has no sandbox.
func (x *Index) Learn(seen string, p tracker.Pod) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.seen[seen][p.UID]; !ok {
		x.learned.add(seen, p)
		x.seen.add(seen, p)
	}
}

// BySeen returns the pods with the value, sorted by UID: none if the value is unknown, several if it is ambiguous.
func (x *Index) BySeen(seen string) []tracker.Pod {
	x.mu.Lock()
	defer x.mu.Unlock()
	return sorted(x.seen[seen])
}

// BySandbox returns the pod of a sandbox, and whether the sandbox is known.
func (x *Index) BySandbox(id string) (tracker.Pod, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.sandboxes[id]
	return s.Pod, ok
}

// All returns every pod that has a sandbox, by UID.
func (x *Index) All() []tracker.Pod {
	x.mu.Lock()
	defer x.mu.Unlock()
	by := make(map[string]tracker.Pod, len(x.sandboxes))
	for _, s := range x.sandboxes {
		by[s.Pod.UID] = s.Pod
	}
	return sorted(by)
}

func sorted(by map[string]tracker.Pod) []tracker.Pod {
	pods := make([]tracker.Pod, 0, len(by))
	for _, uid := range slices.Sorted(maps.Keys(by)) {
		pods = append(pods, by[uid])
	}
	return pods
}

// Has reports whether a pod has a sandbox.
func (x *Index) Has(uid string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.sandboxes {
		if s.Pod.UID == uid {
			return true
		}
	}
	return false
}

// Remove removes a sandbox, if it is known, and returns the UID of its pod if that has no sandbox now.
func (x *Index) Remove(id string) (ended []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.sandboxes[id]; !ok {
		return nil
	}
	x.epoch++
	before := x.uidsLocked()
	delete(x.sandboxes, id)
	return x.settleLocked(before)
}

// Now returns the present epoch. The caller calls it before it requests a list of sandboxes.
func (x *Index) Now() Epoch {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.epoch
}

// Reconcile makes the index equal to a full list of sandboxes that was requested at since, and returns the UIDs of pods
// that had a sandbox or a learned value and have no sandbox now. If the sandboxes changed in the meantime, the list may
// be stale: then nothing changes, ok is false, and the caller requests another list.
func (x *Index) Reconcile(since Epoch, list []Sandbox) (ended []string, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.epoch != since {
		return nil, false
	}
	now := make(map[string]Sandbox, len(list))
	for _, s := range list {
		now[s.ID] = s
	}
	if !maps.Equal(x.sandboxes, now) {
		x.epoch++ // lists that were requested before are stale
	}
	before := x.uidsLocked()
	x.sandboxes = now
	return x.settleLocked(before), true
}

func (x *Index) uidsLocked() sets.Set[string] {
	uids := sets.New[string]()
	for _, s := range x.sandboxes {
		uids.Insert(s.Pod.UID)
	}
	for _, pods := range x.learned {
		uids.Insert(slices.Collect(maps.Keys(pods))...)
	}
	return uids
}

// settleLocked derives the other fields from the sandboxes and returns the pods of before that have no sandbox now.
func (x *Index) settleLocked(before sets.Set[string]) (ended []string) {
	alive := sets.New("") // no UID is no pod
	clear(x.seen)
	for _, s := range x.sandboxes {
		alive.Insert(s.Pod.UID)
		x.seen.add(s.Seen, s.Pod)
	}
	for seen, pods := range x.learned {
		for uid, p := range pods {
			if alive.Has(uid) {
				x.seen.add(seen, p)
			} else {
				delete(pods, uid)
			}
		}
		if len(pods) == 0 {
			delete(x.learned, seen)
		}
	}
	return sets.List(before.Difference(alive))
}
