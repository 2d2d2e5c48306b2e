package adminapi

import (
	"strings"
	"sync"
	"time"

	"github.com/pullgate/pullgate/internal/podindex"
	"github.com/pullgate/pullgate/pkg/records"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	// maxWatchers is how many may watch decisions at once.
	maxWatchers = 16
	// backlog is how many decisions wait for one watcher. A node makes a few for each pod that starts.
	backlog = 1024
	// maxImage bounds the name of an image in a queue, in bytes. A tenant chooses it; one that can be pulled is shorter.
	maxImage = 1024
)

// A Decision is one that the decision log would hold.
type Decision struct {
	Call    string
	Pod     podindex.Pod
	Image   string
	Verdict tracker.Verdict
	// Repository is that of Verdict, or of Image if nothing was judged.
	Repository string
	// Secret holds the credential that the verdict rests on, as far as it is known.
	Secret     records.SecretRef
	PullPolicy string
	// Outcome is what came of a pull; "" of other calls.
	Outcome string
	Took    time.Duration
	Shadow  bool
}

// A Feed passes decisions on to whoever watches. The zero value is ready. Its methods may be called concurrently.
type Feed struct {
	// mu guards the fields that follow. Nothing is called under it.
	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// A watcher is one who watches. Its fields are guarded by the feed's mu, but for wake.
type watcher struct {
	keep    func(Decision) bool
	queue   []watched
	dropped uint64        // since the last entry of the queue
	wake    chan struct{} // holds a token if the queue may hold something
}

// A watched is a decision in a queue.
type watched struct {
	Decision
	at      time.Time
	dropped uint64 // between the one before and this one
}

// Publish passes a decision on, and returns at once: of one who reads too slowly it is dropped.
func (f *Feed) Publish(d Decision) {
	if len(d.Image) > maxImage {
		d.Image = text(strings.Clone(d.Image[:maxImage])) // and keeps no longer one in memory
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watchers {
		if !w.keep(d) {
			continue
		}
		if len(w.queue) >= backlog {
			w.dropped++
			continue
		}
		w.queue = append(w.queue, watched{Decision: d, at: time.Now(), dropped: w.dropped})
		w.dropped = 0
		select {
		case w.wake <- struct{}{}:
		default: // it is told already
		}
	}
}

// watch begins to keep decisions for a watcher, until forget; ok is false if there are too many. keep is called under
// the feed's lock: it must be quick and call nothing.
func (f *Feed) watch(keep func(Decision) bool) (w *watcher, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.watchers) >= maxWatchers {
		return nil, false
	}
	if f.watchers == nil {
		f.watchers = map[*watcher]struct{}{}
	}
	w = &watcher{keep: keep, wake: make(chan struct{}, 1)}
	f.watchers[w] = struct{}{}
	return w, true
}

func (f *Feed) forget(w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watchers, w)
}

// take returns what is queued for a watcher.
func (f *Feed) take(w *watcher) []watched {
	f.mu.Lock()
	defer f.mu.Unlock()
	queued := w.queue
	w.queue = nil
	return queued
}
