package podsource

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	eventBurst   = 10               // how many Events the node sends at once, then one a second
	eventAgain   = 10 * time.Minute // a pod and an image have one Event in this time
	maxEvents    = 500              // how many Events wait
	eventTimeout = 5 * time.Second  // bounds one request
	maxMessage   = 1024             // bytes of a message, as the API server has it for Events
	eventSource  = "pullgate"       // the component
)

// What became of an Event.
const (
	EventSent    = "sent"
	EventDropped = "dropped" // too many were waiting
	EventFailed  = "failed"  // the API server did not take it
)

// EventOutcomes returns what can become of an Event.
func EventOutcomes() []string { return []string{EventSent, EventDropped, EventFailed} }

// An event tells who reads a pod why one of its containers waits.
type event struct {
	pod             tracker.Pod
	about           about
	reason, message string
}

// about is the pod and the image of an Event.
type about [sha256.Size]byte

// events are the Events that wait. Namespaces take turns, so that one with many denied pods delays others by one Event
// each time. All of it is bounded by maxEvents and the rate, whatever tenants do.
type events struct {
	count func(outcome string)
	work  chan struct{} // has a token if run has to look at the queue

	mu      sync.Mutex
	queued  map[about]time.Time // when an Event was queued, then sent, unless it failed or was dropped
	waiting map[string][]event  // by namespace
	turns   []string            // the namespaces of waiting; the first one is next
	total   int                 // of waiting
}

func newEvents(count func(outcome string)) *events {
	return &events{
		count: count, work: make(chan struct{}, 1), queued: map[about]time.Time{}, waiting: map[string][]event{},
	}
}

// Event queues an Event of type Warning on a known pod, and returns at once. A repeated one for the same pod and image
// is left out for ten minutes. So is, in the first ten minutes of the source, each one about a pod that may be older
// than the source: a former process may have sent it. Without Run, or if the API server does not take it, nothing is
// sent.
func (s *Source) Event(p tracker.Pod, image, reason, message string) {
	if known, ok := s.ByUID(p.UID); !ok || known.older && time.Since(s.began) < eventAgain {
		return
	}
	about := sha256.Sum256([]byte(p.UID + "\x00" + image)) // an image may have a long name
	s.events.add(event{p, about, reason, message[:min(len(message), maxMessage)]}, time.Now())
}

// has reports whether the node has a pod in its namespace.
func (s *Source) has(p tracker.Pod) bool {
	known, ok := s.ByUID(p.UID)
	return ok && known.Namespace == p.Namespace
}

func (e *events) add(x event, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at, ok := e.queued[x.about]; ok && now.Sub(at) < eventAgain {
		return
	}
	n := x.pod.Namespace
	if e.total >= maxEvents && !e.dropLocked(len(e.waiting[n])+1) {
		e.count(EventDropped)
		return
	}
	if len(e.waiting[n]) == 0 {
		e.turns = append(e.turns, n)
	}
	e.waiting[n] = append(e.waiting[n], x)
	e.total++
	e.queued[x.about] = now
	select {
	case e.work <- struct{}{}:
	default:
	}
}

// dropLocked drops the newest Event of the namespace that has most, if these are more than others.
func (e *events) dropLocked(others int) bool {
	most := slices.MaxFunc(e.turns, func(a, b string) int { return cmp.Compare(len(e.waiting[a]), len(e.waiting[b])) })
	have := e.waiting[most]
	if len(have) <= others {
		return false
	}
	last := len(have) - 1
	delete(e.queued, have[last].about)
	have[last] = event{}
	e.waiting[most] = have[:last]
	e.total--
	e.count(EventDropped)
	return true
}

func (e *events) waits() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.total > 0
}

// next removes and returns the next Event, and forgets what is older than eventAgain. At least one must wait.
func (e *events) next(now time.Time) (x event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for a, at := range e.queued {
		if now.Sub(at) >= 2*eventAgain { // longer than an Event waits
			delete(e.queued, a)
		}
	}
	n := e.turns[0]
	x, e.turns = e.waiting[n][0], e.turns[1:]
	e.waiting[n][0], e.queued[x.about] = event{}, now
	e.total--
	if e.waiting[n] = e.waiting[n][1:]; len(e.waiting[n]) > 0 {
		e.turns = append(e.turns, n)
	} else {
		delete(e.waiting, n)
	}
	return x
}

// failed lets the next call for the same pod and image queue an Event again.
func (e *events) failed(a about) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.queued, a)
}

// run sends the Events until ctx ends, except those of pods that the node does not have any more.
func (e *events) run(
	ctx context.Context, node string, has func(tracker.Pod) bool, create func(context.Context, *corev1.Event) error,
) {
	limit := rate.NewLimiter(rate.Every(time.Second), eventBurst)
	limit.AllowN(time.Now(), eventBurst) // a former process may have used them
	lines := rate.NewLimiter(rate.Every(time.Minute), 1)
	for {
		select {
		case <-e.work:
		case <-ctx.Done():
			return
		}
		for e.waits() {
			x := e.next(time.Now())
			if !has(x.pod) {
				e.count(EventDropped)
				continue
			}
			if limit.Wait(ctx) != nil {
				return
			}
			bounded, cancel := context.WithTimeout(ctx, eventTimeout)
			err := create(bounded, x.object(node, time.Now()))
			cancel()
			if err == nil {
				e.count(EventSent)
				continue
			}
			e.count(EventFailed)
			e.failed(x.about)
			if ctx.Err() == nil && lines.Allow() {
				klog.FromContext(ctx).Info("Failed to create an Event: a tenant is not told why a pod waits",
					"pod", klog.KRef(x.pod.Namespace, x.pod.Name), "reason", reasonOf(err))
			}
		}
	}
}

// object returns the Event as the API has it. Its name begins with that of the pod, as those of the kubelet do.
func (e *event) object(node string, now time.Time) *corev1.Event {
	id := sha256.Sum256(binary.BigEndian.AppendUint64(e.about[:], uint64(now.UnixNano())))
	prefix := strings.TrimRight(e.pod.Name[:min(len(e.pod.Name), 200)], "-.")
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.pod.Namespace, Name: prefix + "." + hex.EncodeToString(id[:8])},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: e.pod.Namespace, Name: e.pod.Name, UID: types.UID(e.pod.UID),
		},
		Type: corev1.EventTypeWarning, Reason: e.reason,
		Message:        strings.ToValidUTF8(e.message, ""),
		Source:         corev1.EventSource{Component: eventSource, Host: node},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		ReportingController: eventSource, ReportingInstance: node,
	}
}
