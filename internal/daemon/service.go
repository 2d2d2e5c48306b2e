package daemon

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
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
