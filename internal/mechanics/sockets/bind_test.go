package sockets_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/testkit"
)

func socket(path string) sockets.Socket {
	return sockets.Socket{Program: "prog", Field: "a.listen", Endpoint: "unix://" + path, Name: "name"}
}

func TestBind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "s")
	l := testkit.Value(socket(path).Bind(t.Context()))(t)
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("mode of %s = %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	if _, err := socket(path).Bind(t.Context()); !errors.Is(err, sockets.ErrInUse) ||
		!strings.Contains(program.HintOf(err), "systemctl status prog") {
		t.Errorf("a socket that is served: %v; want ErrInUse with a hint", err)
	}
	testkit.Must(t, l.Close())
	// One that a crash has left.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	testkit.Must(t, err)
	stale.SetUnlinkOnClose(false)
	testkit.Must(t, stale.Close())
	l, err = socket(path).Bind(t.Context())
	testkit.Must(t, err)
	testkit.Must(t, l.Close())
}

func TestBindRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	testkit.Must(t, os.WriteFile(file, nil, 0o600))
	if _, err := socket(file).Bind(t.Context()); err == nil ||
		program.HintOf(err) != "remove it, or set a.listen to another path" {
		t.Errorf("a file: %v; want an error with a hint", err)
	}
	if _, err := socket(file + "/s").Bind(t.Context()); err == nil {
		t.Error("a folder that is a file: nil; want an error")
	}
	if _, err := (sockets.Socket{Endpoint: "127.0.0.1:1"}).Bind(t.Context()); err == nil {
		t.Error("an address: nil; want an error")
	}
}

// The program that systemd starts is in cmd/pullgate-policyd and internal/daemon, whose tests pass sockets on.
func TestInheritWithoutSystemd(t *testing.T) {
	if l, err := socket("/s").Inherit(); l != nil || err != nil {
		t.Errorf("Inherit = %v, %v; want nil, nil", l, err)
	}
}

func TestPeerOf(t *testing.T) {
	l := testkit.Value((&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s")))(t)
	defer func() { _ = l.Close() }()
	dialled := testkit.Value((&net.Dialer{}).DialContext(t.Context(), "unix", l.Addr().String()))(t)
	taken := testkit.Value(l.Accept())(t)
	defer func() { _ = taken.Close() }()
	for name, c := range map[string]net.Conn{"who dialled": taken, "who listens": dialled} {
		got, err := sockets.PeerOf(c)
		if err != nil || int(got.Uid) != os.Geteuid() || int(got.Pid) != os.Getpid() {
			t.Errorf("%s = %+v, %v; want this process", name, got, err)
		}
	}
	testkit.Must(t, dialled.Close())
	if got, err := sockets.PeerOf(dialled); err == nil {
		t.Errorf("of a closed connection = %+v; want an error", got)
	}
}

func TestPeerOfAnotherKindOfConnection(t *testing.T) {
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	if got, err := sockets.PeerOf(a); err == nil {
		t.Errorf("Of = %+v; want an error", got)
	}
}
