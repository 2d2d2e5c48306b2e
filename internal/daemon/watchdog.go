package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/criproxy"
)

// A part of the daemon is checked for an answer, which may be an error: a restart repairs what hangs, not what fails.
type part struct {
	name string
	ask  func(ctx context.Context) error
}

// A watchdog notifies systemd while all of its parts answer. Otherwise systemd restarts the daemon (WatchdogSec=).
type watchdog struct {
	every time.Duration // the interval between checks, and the limit for each answer
	parts []part
	feed  func()
	log   klog.Logger

	open   map[string]*question // by part; a part that hangs gets no further question
	failed map[string]bool      // by part, its last answer
	asking sync.WaitGroup
}

// A question is a check of a part.
type question struct {
	over     <-chan struct{} // closed at the end of its time limit
	answered chan struct{}
	err      error // readable after the answer
}

// runWatchdog notifies systemd's watchdog until ctx ends, if there is one.
func runWatchdog(ctx context.Context, o Options, p parts) error {
	patience, err := sd.SdWatchdogEnabled(true)
	if err != nil {
		return program.WithHint(fmt.Errorf("read the timeout of systemd's watchdog: %w", err),
			"see WatchdogSec= in: systemctl cat pullgated.service")
	}
	if patience <= 0 {
		return nil
	}
	newWatchdog(o.Log, patience, p.service.alive,
		part{"socket", func(ctx context.Context) error { return criproxy.Ping(ctx, o.Config.Listen) }},
		storePart(p.store),
		part{"tracker", func(context.Context) error { p.tracker.Grants(); return nil }},
	).run(ctx)
	return nil
}

// storePart checks the store with a read and an empty write transaction: no pull can begin without one.
func storePart(s *records.Store) part {
	return part{"store", func(context.Context) error { _, err := s.KeyFingerprint(); return errors.Join(err, s.Ping()) }}
}

func newWatchdog(log klog.Logger, patience time.Duration, feed func(), parts ...part) *watchdog {
	return &watchdog{
		every: patience / 3, parts: parts, feed: feed, log: log, open: map[string]*question{},
		failed: map[string]bool{},
	}
}

// run checks and notifies until ctx ends and every question is answered.
func (w *watchdog) run(ctx context.Context) {
	defer w.asking.Wait()
	for ctx.Err() == nil {
		w.round(ctx)
	}
}

// round checks each part once and notifies systemd if all have answered. It takes as long as they may.
func (w *watchdog) round(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, w.every)
	defer cancel()
	for _, p := range w.parts {
		if w.open[p.name] == nil {
			q := &question{over: limited.Done(), answered: make(chan struct{})}
			w.open[p.name] = q
			w.asking.Go(func() { defer close(q.answered); q.err = p.ask(limited) })
		}
	}
	var unresponsive []string
	for _, p := range w.parts {
		if !w.answered(limited, p.name) {
			unresponsive = append(unresponsive, p.name)
		}
	}
	switch {
	case ctx.Err() != nil:
	case len(unresponsive) == 0:
		w.feed()
	default:
		w.log.Error(context.DeadlineExceeded,
			"A part of pullgated does not answer, systemd will restart pullgated if this continues",
			"parts", unresponsive, "limit", w.every)
	}
	<-limited.Done()
}

// answered waits for the answer of a part. An answer after the time limit counts as none.
func (w *watchdog) answered(limited context.Context, name string) bool {
	q := w.open[name]
	select {
	case <-q.answered:
	case <-limited.Done():
		select {
		case <-q.answered:
			delete(w.open, name)
		default:
		}
		return false
	}
	delete(w.open, name)
	select {
	case <-q.over: // the limit of this round or of an earlier one
		return false
	default:
	}
	if q.err != nil && !w.failed[name] {
		w.log.Error(q.err, "A part of pullgated answers with an error", "part", name)
	}
	w.failed[name] = q.err != nil
	return true
}
