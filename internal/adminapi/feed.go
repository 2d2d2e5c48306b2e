package adminapi

import (
	"sync"
	"time"

	"github.com/pullgate/pullgate/internal/decisionlog"
)

const (
	// maxWatchers is how many may watch decisions at once.
	maxWatchers = 16
	// backlog is how many decisions wait for one watcher. A node makes a few for each pod that starts.
	backlog = 1024
)

// A Feed passes decisions on to watchers. The zero value is ready. Its methods may be called concurrently.
type Feed struct {
	// mu guards the fields that follow. Nothing is called under it.
	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// A watcher is one who watches. Its fields are guarded by the feed's mu, but for wake.
type watcher struct {
	keep    func(decisionlog.Decision) bool
	queue   []watched
	dropped uint64        // since the last entry of the queue
	wake    chan struct{} // holds a token if the queue may hold something
}

// A watched is a decision in a queue.
type watched struct {
	decisionlog.Decision
	at      time.Time
	dropped uint64 // between the one before and this one
}

// Record passes a decision on, and returns at once: of one who reads too slowly it is dropped.
func (f *Feed) Record(d decisionlog.Decision) {
	d.Image = decisionlog.Bounded(d.Image)
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
		default: // it has a signal already
		}
	}
}

// watch begins to keep decisions for a watcher, until forget; ok is false if there are too many. keep is called under
// the feed's lock: it must be quick and call nothing.
func (f *Feed) watch(keep func(decisionlog.Decision) bool) (w *watcher, ok bool) {
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
