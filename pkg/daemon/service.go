package daemon

import (
	"fmt"
	"strings"
	"sync"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/pkg/config"
)

// A service tells systemd how the daemon is, as far as systemd has asked (Type=notify). Its methods may be called
// concurrently.
type service struct {
	log    klog.Logger
	shadow bool

	mu       sync.Mutex
	policy   string
	up       bool
	stopping bool
}

func newService(log klog.Logger, c config.Config) *service {
	return &service{log: log, shadow: c.NoPullImageSecretRecheck, policy: c.ImagePullCredentialsVerificationPolicy}
}

// ready says that the socket is served, by the configuration that was read last.
func (s *service) ready() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(sd.SdNotifyReady, s.status())
}

// reached says whether the runtime is.
func (s *service) reached(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = up
	s.tell(s.status())
}

// reloading says that the configuration is read again, until ready is called.
func (s *service) reloading() {
	s.tell(sd.SdNotifyReloading, strings.TrimSpace(sd.SdNotifyMonotonicUsec()))
}

// enforces notes which policy is in use.
func (s *service) enforces(policy string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy = policy
}

// stop says that the daemon stops.
func (s *service) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	s.tell(sd.SdNotifyStopping, s.status())
}

// alive feeds the watchdog.
func (s *service) alive() { s.tell(sd.SdNotifyWatchdog) }

// status is the line that systemctl status shows.
func (s *service) status() string {
	mode := s.policy
	if s.shadow {
		mode = "shadow mode, nothing is enforced"
	}
	switch {
	case s.stopping:
		return "STATUS=Stopping, calls under way are drained"
	case s.up:
		return fmt.Sprintf("STATUS=Serving the kubelet (%s); the runtime is reached", mode)
	default:
		return fmt.Sprintf("STATUS=Serving the kubelet (%s); the runtime is not reached, calls fail until it is back", mode)
	}
}

func (s *service) tell(lines ...string) {
	if _, err := sd.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		s.log.Info("systemd not told how the daemon is", "told", lines, "err", err)
	}
}
