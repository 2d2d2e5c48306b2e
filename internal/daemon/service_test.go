package daemon_test

import (
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// A manager receives the messages to systemd.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

// notified makes the daemon report its state to a manager.
func notified(p *process) *manager {
	p.t.Helper()
	path := p.path("notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	testkit.Must(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	p.env = append(p.env, "NOTIFY_SOCKET="+path)
	return &manager{p.t, conn}
}

// next returns the next message, "" if none comes within the limit.
func (m *manager) next(limit time.Duration) string {
	m.t.Helper()
	testkit.Must(m.t, m.conn.SetReadDeadline(time.Now().Add(limit)))
	var b [4096]byte
	n, err := m.conn.Read(b[:])
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// receives waits for a message that matches a pattern.
func (m *manager) receives(pattern string) {
	m.t.Helper()
	want := regexp.MustCompile("^" + pattern + "$")
	var received []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		message := m.next(time.Until(end))
		if want.MatchString(message) {
			return
		}
		received = append(received, message)
	}
	m.t.Fatalf("systemd received %q; want %s", received, pattern)
}

func TestSystemdReceivesTheStateOfTheDaemon(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	p := prepare(t, r.Endpoint())
	m := notified(p)
	p.spawn()
	m.receives(`READY=1\nSTATUS=Serving the kubelet \(NeverVerifyPreloadedImages\); ` +
		`the runtime is not reached, calls fail until it is back`)
	m.receives(`STATUS=Serving the kubelet \(NeverVerifyPreloadedImages\); the runtime is reached`)
	r.Stop()
	m.receives(`STATUS=.*the runtime is not reached.*`)
	r.Start(t)
	m.receives(`STATUS=.*the runtime is reached`)

	p.configure("imagePullCredentialsVerificationPolicy: AlwaysVerify")
	p.hup("Configuration reloaded")
	m.receives(`RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*`)
	m.receives(`READY=1\nSTATUS=Serving the kubelet \(AlwaysVerify\); the runtime is reached`)
	p.configure("nonsense: true")
	p.hup("Failed to reload the configuration")
	m.receives(`RELOADING=1\n.*`)
	m.receives(`READY=1\nSTATUS=Serving the kubelet \(AlwaysVerify\); the runtime is reached`)

	testkit.Must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	m.receives(`STOPPING=1\nSTATUS=Stopping, calls under way are drained`)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d; want 0", code)
	}
}

func TestShadowModeIsInTheStatus(t *testing.T) {
	p := prepare(t, criproxytest.NewRuntime(t).Endpoint(), "noPullImageSecretRecheck: true")
	m := notified(p)
	p.spawn()
	m.receives(`(?s)READY=1.*shadow mode, proofs are not required.*`)
}

// The watchdog is notified while the daemon answers, with or without a runtime, and not while the daemon is stopped by
// a signal.
func TestWatchdogIsNotifiedByADaemonThatResponds(t *testing.T) {
	r := criproxytest.NewRuntime(t)
	p := prepare(t, r.Endpoint())
	m := notified(p)
	p.env = append(p.env, "WATCHDOG_USEC=600000")
	p.start()
	m.receives("WATCHDOG=1")
	r.Stop()
	m.receives("(?s)STATUS=.*not reached.*")
	m.receives("WATCHDOG=1")
	m.receives("WATCHDOG=1")
	if got := p.metric(`pullgate_forwarded_calls_total{code="Unimplemented",method="other"}`); got != 0 {
		t.Errorf("%v calls counted; the daemon's own probes do not count", got)
	}

	testkit.Must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	for m.next(50*time.Millisecond) != "" { // messages that were already sent
	}
	if message := m.next(time.Second); message != "" {
		t.Errorf("systemd received %q from a stopped process", message)
	}
	testkit.Must(t, p.cmd.Process.Signal(syscall.SIGCONT))
	m.receives("WATCHDOG=1")

	// A missing socket file must not end the existing connections.
	testkit.Must(t, os.Remove(p.path("run/cri.sock")))
	eventually(t, "a log line about the missing socket", func() bool {
		return strings.Contains(p.out.String(), "A part of pullgated answers with an error")
	})
	m.receives("WATCHDOG=1")
}
