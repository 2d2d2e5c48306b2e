package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/criproxy"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// A service reports the state of the daemon to systemd (Type=notify). Its methods may be called concurrently.
type service struct {
	log    klog.Logger
	shadow bool

	mu       sync.Mutex
	policy   string
	up       bool
	stopping bool
	unbound  map[string]error // the listeners that could not be bound, by field
}

func newService(log klog.Logger, c config.Config) *service {
	return &service{
		unbound: map[string]error{}, log: log, shadow: c.NoPullImageSecretRecheck,
		policy: c.ImagePullCredentialsVerificationPolicy,
	}
}

// ready reports that the socket is served, with the configuration that was read last.
func (s *service) ready() { s.set(func() {}, sd.SdNotifyReady) }

// set changes the state, and reports it to systemd if its status changes or there are more lines.
func (s *service) set(change func(), lines ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.status()
	if change(); len(lines) > 0 || s.status() != before {
		s.notify(append(lines, s.status())...)
	}
}

func (s *service) reached(up bool) { s.set(func() { s.up = up }) }

// bound reports that the listener of a field could not be bound, or, with nil, that it is bound.
func (s *service) bound(field string, err error) {
	s.set(func() {
		if s.unbound[field] = err; err == nil {
			delete(s.unbound, field)
		}
	})
}

func (s *service) notListening() (all []*adminv1.NotListening) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, field := range slices.Sorted(maps.Keys(s.unbound)) {
		all = append(all, &adminv1.NotListening{Field: field, Error: s.unbound[field].Error()})
	}
	return all
}

func (s *service) reloading() {
	s.notify(sd.SdNotifyReloading, strings.TrimSpace(sd.SdNotifyMonotonicUsec()))
}

func (s *service) enforces(policy string) { s.set(func() { s.policy = policy }) }

func (s *service) stop() { s.set(func() { s.stopping = true }, sd.SdNotifyStopping) }

func (s *service) alive() { s.notify(sd.SdNotifyWatchdog) }

func (s *service) status() string {
	mode := s.policy
	if s.shadow {
		mode = "shadow mode, proofs are not required"
	}
	state := "the runtime is not reached, calls fail until it is back"
	if s.up {
		state = "the runtime is reached"
	}
	if len(s.unbound) > 0 {
		state += "; not listening: " + strings.Join(slices.Sorted(maps.Keys(s.unbound)), ", ")
	}
	if s.stopping {
		return "STATUS=Stopping, calls under way are drained"
	}
	return fmt.Sprintf("STATUS=Serving the kubelet (%s); %s", mode, state)
}

func (s *service) notify(lines ...string) {
	if _, err := sd.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		s.log.Info("Failed to notify systemd of the status", "status", lines, "err", err)
	}
}

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

	open   map[string]chan error // the next answer, by part; a part that hangs gets no further question
	failed map[string]bool       // by part, its last answer
	asking sync.WaitGroup
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
		every: patience / 3, parts: parts, feed: feed, log: log, open: map[string]chan error{},
		failed: map[string]bool{},
	}
}

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
	late := map[string]bool{}
	for _, p := range w.parts {
		if late[p.name] = w.open[p.name] != nil; !late[p.name] {
			answer := make(chan error, 1)
			w.open[p.name] = answer
			w.asking.Go(func() { answer <- p.ask(limited) })
		}
	}
	var unresponsive []string
	for _, p := range w.parts {
		if !w.answered(limited, p.name, late[p.name]) {
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

// answered waits for the answer of a part. One after the time limit of its round counts as none.
func (w *watchdog) answered(limited context.Context, name string, late bool) bool {
	var err error
	select {
	case err = <-w.open[name]:
		delete(w.open, name)
	case <-limited.Done():
		select {
		case err = <-w.open[name]: // in the same moment
			delete(w.open, name)
		default:
		}
	}
	if late || limited.Err() != nil {
		return false
	}
	if err != nil && !w.failed[name] {
		w.log.Error(err, "A part of pullgated answers with an error", "part", name)
	}
	w.failed[name] = err != nil
	return true
}

// stateLogInterval is the minimum time between two log lines of the same state of a connection.
const stateLogInterval = time.Second

// logStates logs changes until ctx ends: each state at most once in stateLogInterval, and always the final one.
// unlogged is the number of changes since the last line. The initial state, down, is logged if it lasts.
func logStates(ctx context.Context, changes <-chan bool, log func(up bool, unlogged int)) {
	var (
		state    bool
		at       = map[bool]time.Time{false: time.Now()}
		received int
		begins   = true // no change has been received
		pending  bool   // only the initial state has been received, and it was not logged
	)
	due := time.NewTimer(0)
	defer due.Stop()
	<-due.C
	for {
		select {
		case <-ctx.Done():
			return
		case state = <-changes:
			if pending = begins && !state; !pending {
				received++
			}
			begins = false
		case <-due.C:
		}
		if received == 0 && !pending {
			continue
		}
		if logged, ok := at[state]; ok && time.Since(logged) < stateLogInterval {
			due.Reset(stateLogInterval - time.Since(logged))
			continue
		}
		log(state, max(received-1, 0))
		at[state], received, pending = time.Now(), 0, false
	}
}
