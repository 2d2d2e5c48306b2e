package sockets_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/sockets"
	"github.com/pullgate/pullgate/internal/testkit"
)

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
