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

// A service reports the state of the daemon to systemd, if systemd requests it (Type=notify). Its methods may be called
// concurrently.
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
func (s *service) ready() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify(sd.SdNotifyReady, s.status())
}

// reached reports whether the runtime is connected.
func (s *service) reached(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = up
	s.notify(s.status())
}

// bound notes that the listener of a field could not be bound, or, with nil, that it is bound.
func (s *service) bound(field string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.unbound)
	if s.unbound[field] = err; err == nil {
		delete(s.unbound, field)
	}
	if len(s.unbound) != before {
		s.notify(s.status())
	}
}

// notListening returns the listeners that could not be bound, ordered by field.
func (s *service) notListening() (all []*adminv1.NotListening) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, field := range slices.Sorted(maps.Keys(s.unbound)) {
		all = append(all, &adminv1.NotListening{Field: field, Error: s.unbound[field].Error()})
	}
	return all
}

// reloading reports that the configuration is being read again, until ready is called.
func (s *service) reloading() {
	s.notify(sd.SdNotifyReloading, strings.TrimSpace(sd.SdNotifyMonotonicUsec()))
}

// enforces notes which policy is in use.
func (s *service) enforces(policy string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy = policy
}

// stop reports that the daemon stops.
func (s *service) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	s.notify(sd.SdNotifyStopping, s.status())
}

// alive notifies the watchdog.
func (s *service) alive() { s.notify(sd.SdNotifyWatchdog) }

// status returns the line that systemctl status shows.
func (s *service) status() string {
	mode := s.policy
	if s.shadow {
		mode = "shadow mode, proofs are not required"
	}
	switch {
	case s.stopping:
		return "STATUS=Stopping, calls under way are drained"
	case s.up:
		return fmt.Sprintf("STATUS=Serving the kubelet (%s); the runtime is reached%s", mode, s.withoutLocked())
	default:
		return fmt.Sprintf("STATUS=Serving the kubelet (%s); the runtime is not reached, calls fail until it is back%s",
			mode, s.withoutLocked())
	}
}

// withoutLocked returns the names of the fields whose listeners could not be bound.
func (s *service) withoutLocked() string {
	if len(s.unbound) == 0 {
		return ""
	}
	return "; not listening: " + strings.Join(slices.Sorted(maps.Keys(s.unbound)), ", ")
}

func (s *service) notify(lines ...string) {
	if _, err := sd.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		s.log.Info("Failed to notify systemd of the status", "status", lines, "err", err)
	}
}
