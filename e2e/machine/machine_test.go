package machine_test

import (
	"os"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/machine"
)

// A machine keeps what it has on disk over a reboot and a power cut, and nothing in /run.
func TestReboot(t *testing.T) {
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
