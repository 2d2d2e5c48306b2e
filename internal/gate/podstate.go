package gate

import (
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	maxPods    = 4096 // limits the number of pods with a state. It is far more than a node runs
	maxEntries = 64   // limits each set of a state. Few pods use as many images or containers
	// repeatInterval is the interval of journal lines, of 400 bytes, for a denial that kubelets repeat every second.
	repeatInterval = time.Minute
)

// A podKey identifies a pod by its UID or, for its pre-checks, which have none, by their config.seen.
type podKey struct{ uid, seen string }

// podStates is what the gate remembers about pods. A pod's entries displace only its own, and a pod without a sandbox
// is displaced first. To lose a state is safe: a pull without a hidden pre-check goes to the registry, and a container
// that is not cleared is read back when it starts. The zero value is empty; it may be used concurrently.
type podStates struct {
	// has reports whether a pod has a sandbox; nil is never. It must not call back.
	has func(podKey) bool

	mu   sync.Mutex // guards the following fields
	next uint64     // the age of the next state or entry
	pods map[podKey]*podState
}

type podState struct {
	age  uint64
	seen bool // the pod has had a sandbox

	// hidden are the names of hidden pre-checks, until the pod gets a grant or a later pre-check is allowed: a PullImage
	// for such a name may prove access to the image on the node. The value says that the image lacked an endorsement.
	hidden entries[bool]
	// refused are the images of denied containers, by name or else ID. The next pre-check is hidden and leads to a pull.
	refused entries[struct{}]
	logged  entries[struct{}] // facts that were logged or noted once
	denials entries[*denial]  // the last denials that got a line in the journal
	// created are the containers, by ID, that have been read back and may be started, or are being read back.
	created entries[createdContainer]
	shown   entries[shownImage] // the images that a pre-check or a pull has shown to the pod a moment ago
}

// A createdContainer is what the gate has to know about a container when it starts.
type createdContainer struct {
	uid     string   // of the pod
	name    string   // in the pod
	imageID string   // "" if the container was restored, because what the runtime reports then proves nothing
	mounted []string // the IDs of the images that it mounts

	reading *attempt // after the answer to CreateContainer; nil if the image has been read back
}

// A shownImage is what the runtime said of an image that the pod was then allowed to use.
type shownImage struct {
	image tracker.Image
	at    time.Time
	state uint64 // of the images on the node, see imageChanges
}

// A denial is the last denial of a call, image and container that got a line.
type denial struct {
	why     [sha256.Size]byte // digest of the parts that may change: reason, image ID and credential
	logged  time.Time
	skipped int
}

// entries is a bounded map. A key of any length takes the same memory.
type entries[V any] struct {
	of map[[sha256.Size]byte]entry[V]
}

type entry[V any] struct {
	age   uint64
	value V
}

// set sets a value and reports whether the key is new. Above the limit it removes the oldest entry.
func (e *entries[V]) set(key string, age uint64, value V) (added bool) {
	if e.of == nil {
		e.of = map[[sha256.Size]byte]entry[V]{}
	}
	k := sha256.Sum256([]byte(key))
	if old, ok := e.of[k]; ok {
		e.of[k] = entry[V]{old.age, value}
		return false
	}
	if len(e.of) >= maxEntries {
		var oldest [sha256.Size]byte
		least := ^uint64(0)
		for k, v := range e.of {
			if v.age < least {
				oldest, least = k, v.age
			}
		}
		delete(e.of, oldest)
	}
	e.of[k] = entry[V]{age, value}
	return true
}

func (e *entries[V]) get(key string) (value V, ok bool) {
	got, ok := e.of[sha256.Sum256([]byte(key))]
	return got.value, ok
}

func (e *entries[V]) take(key string) (value V, ok bool) {
	value, ok = e.get(key)
	if ok {
		delete(e.of, sha256.Sum256([]byte(key)))
	}
	return value, ok
}

// with calls f with the state of a pod and the age of a new entry. It makes a missing state only if it may.
func (s *podStates) with(k podKey, mayAdd bool, f func(p *podState, age uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[k]
	if p == nil {
		if !mayAdd {
			return
		}
		p = s.addLocked(k)
	}
	s.next++
	f(p, s.next)
}

func (s *podStates) addLocked(k podKey) *podState {
	if s.pods == nil {
		s.pods = map[podKey]*podState{}
	}
	if len(s.pods) >= maxPods {
		delete(s.pods, s.oldestLocked())
	}
	s.next++
	p := &podState{age: s.next, seen: s.aliveLocked(k)}
	s.pods[k] = p
	return p
}

func (s *podStates) aliveLocked(k podKey) bool { return s.has != nil && s.has(k) }

// oldestLocked returns the pod with the oldest state of those without a sandbox; of all if each has one.
func (s *podStates) oldestLocked() (oldest podKey) {
	least, leastAlive := ^uint64(0), true
	for k, p := range s.pods {
		if !leastAlive && p.age > least {
			continue // without asking the index
		}
		alive := s.aliveLocked(k)
		if leastAlive && !alive || leastAlive == alive && p.age < least {
			oldest, least, leastAlive = k, p.age, alive
		}
	}
	return oldest
}

// end removes the states of ended pods. That of a pre-check's pod is removed if it has had a sandbox and has none now.
func (s *podStates) end(uids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, uid := range uids {
		delete(s.pods, podKey{uid: uid})
	}
	for k, p := range s.pods {
		if k.seen == "" {
			continue
		}
		alive := s.aliveLocked(k)
		if p.seen && !alive {
			delete(s.pods, k)
		}
		p.seen = p.seen || alive
	}
}

// nameKey returns a name in its normal form; a name that does not parse as it is written.
func nameKey(name imageref.Ref) string {
	if name.Parsed() {
		return name.Name().String()
	}
	return name.String()
}

func (s *podStates) hide(seen string, name imageref.Ref, unendorsed bool) (added bool) {
	s.with(podKey{seen: seen}, true, func(p *podState, age uint64) {
		added = p.hidden.set(nameKey(name), age, unendorsed)
	})
	return added
}

func (s *podStates) show(seen string, name imageref.Ref) {
	s.with(podKey{seen: seen}, false, func(p *podState, _ uint64) { _, _ = p.hidden.take(nameKey(name)) })
}

func (s *podStates) isHidden(seen string, name imageref.Ref) (hidden, unendorsed bool) {
	s.with(podKey{seen: seen}, false, func(p *podState, _ uint64) { unendorsed, hidden = p.hidden.get(nameKey(name)) })
	return hidden, unendorsed
}

func refusalKey(name imageref.Ref, imageID string) string {
	if name.Empty() {
		return imageID
	}
	return nameKey(name)
}

// refuse notes that a pod was denied a container on an image; name may be empty.
func (s *podStates) refuse(uid string, name imageref.Ref, imageID string) {
	if uid != "" {
		s.with(podKey{uid: uid}, true, func(p *podState, age uint64) {
			p.refused.set(refusalKey(name, imageID), age, struct{}{})
		})
	}
}

// refused reports whether a pod was denied a container on the image. If it takes that, it is reported once.
func (s *podStates) refused(uid string, name imageref.Ref, imageID string, take bool) (yes bool) {
	s.with(podKey{uid: uid}, false, func(p *podState, _ uint64) {
		report := p.refused.get
		if take {
			report = p.refused.take
		}
		_, named := report(refusalKey(name, imageID))
		_, byID := report(imageID)
		yes = named || byID
	})
	return yes
}

func (s *podStates) once(uid, kind, fact string) (first bool) {
	s.with(podKey{uid: uid}, true, func(p *podState, age uint64) {
		first = p.logged.set(kind+"\x00"+fact, age, struct{}{})
	})
	return first
}

// repeats reports whether a decision gets no line in the journal, and how many about the same call, pod, image and
// container got none since the last line. Only the same denial within a minute gets none.
func (s *podStates) repeats(d decisionlog.Decision) (skipped int, repeated bool) {
	denies := !d.Verdict.Allowed() || wouldDeny(d)
	key := joined(d.Call, d.Pod.Namespace, d.Pod.Name, d.Image, d.Container)
	v := &d.Verdict
	why := sha256.Sum256([]byte(joined(v.Verdict.String(), string(v.Reason), v.Pair.ImageID, string(v.Credential),
		d.Admission.PolicyHash)))
	s.with(podKey{uid: d.Pod.UID}, denies, func(p *podState, age uint64) {
		now := time.Now()
		if last, known := p.denials.get(key); known {
			skipped = last.skipped
			if denies && last.why == why && now.Sub(last.logged) < repeatInterval {
				last.skipped++
				repeated = true
				return
			}
			_, _ = p.denials.take(key)
		}
		if denies {
			p.denials.set(key, age, &denial{why: why, logged: now})
		}
	})
	return skipped, repeated
}

func joined(parts ...string) string {
	encoded, _ := json.Marshal(parts) // strings can always be encoded
	return string(encoded)
}

// clear notes that a container may be started, or that its image is being read back.
func (s *podStates) clear(id string, c createdContainer) {
	s.with(podKey{uid: c.uid}, true, func(p *podState, age uint64) { p.created.set(id, age, c) })
}

// created returns what is known of a created container. If it takes the container, it is forgotten.
func (s *podStates) created(id string, take bool) (c createdContainer, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if c, ok = p.created.get(id); ok {
			if take {
				_, _ = p.created.take(id)
			}
			return c, true
		}
	}
	return c, false
}
