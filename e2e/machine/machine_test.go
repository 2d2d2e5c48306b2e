package machine_test

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/machine"
)

// A machine keeps what it has on disk over a reboot and a power cut, and nothing in /run.
func TestReboot(t *testing.T) {
	t.Parallel()
	const kept, lost = "/etc/kept", "/run/lost"
	m := testkit.Value(machine.Start(t.Context(), t.TempDir(), "/pullgate-reboot", nil))(t)
	host.AtEnd(t, m.Close)
	for _, boot := range []struct {
		name  string
		again func() error
	}{
		{"reboot", func() error { return m.Reboot(t.Context()) }},
		{"power cut", func() error { return m.PowerCut(t.Context()) }},
		{"reboot after a power cut", func() error { return m.Reboot(t.Context()) }},
	} {
		for _, path := range []string{kept, lost} {
			testkit.Must(t, os.WriteFile(m.Path(path), []byte(boot.name), 0o600))
		}
		testkit.Must(t, boot.again())
		if got, err := os.ReadFile(m.Path(kept)); err != nil || string(got) != boot.name {
			t.Errorf("%s after a %s: %q, %v; want %q", kept, boot.name, got, err, boot.name)
		}
		if _, err := os.Lstat(m.Path(lost)); err == nil {
			t.Errorf("%s outlives a %s", lost, boot.name)
		}
	}
	testkit.Value(m.Run(t.Context(), "dbus-send", "--system", "--print-reply", "--dest=org.freedesktop.systemd1",
		"/org/freedesktop/systemd1", "org.freedesktop.DBus.Peer.Ping"))(t)
}

// A machine has none of the timers by which a Debian changes files at midnight, such as those of /var/backups.
func TestNothingChangesFilesAtMidnight(t *testing.T) {
	t.Parallel()
	m := testkit.Value(machine.Start(t.Context(), t.TempDir(), "/pullgate-midnight", nil))(t)
	host.AtEnd(t, m.Close)
	timers := testkit.Value(m.Run(t.Context(), "systemctl", "list-units", "--type=timer", "--plain", "--no-legend"))(t)
	if !strings.HasPrefix(timers, "systemd-tmpfiles-clean.timer ") || strings.Count(timers, "\n") != 1 {
		t.Errorf("the timers are\n%swant systemd-tmpfiles-clean.timer alone", timers)
	}
}

// A machine whose disk is full has the space that was left, and then none.
func TestFill(t *testing.T) {
	t.Parallel()
	m := testkit.Value(machine.Start(t.Context(), t.TempDir(), "/pullgate-fill", nil))(t)
	host.AtEnd(t, m.Close)
	page := func(name string) error { return os.WriteFile(m.Path("/opt/"+name), make([]byte, 4096), 0o600) }
	testkit.Must(t, m.Fill(t.Context(), 1, 2), page("first"))
	if err := page("second"); !errors.Is(err, syscall.ENOSPC) { // there is an inode for it, and no page
		t.Errorf("a second page = %v; want ENOSPC", err)
	}
	testkit.Must(t, m.Fill(t.Context(), 2, 0))
	if err := page("third"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a file without an inode = %v; want ENOSPC", err)
	}
	testkit.Must(t, m.Empty(t.Context()), page("third"))
}
