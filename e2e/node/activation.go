package node

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
)

// bindSocket binds a socket as systemd does, before the program starts. It stays open over every stop and start of the
// program, until release.
func bindSocket(path string) (socket *os.File, release func() error, err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	if socket, err = l.File(); err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return socket, func() error { return errors.Join(socket.Close(), l.Close()) }, nil
}

// activated is a program that gets a socket as from systemd. Only the process itself knows its ID before it runs.
func activated(ctx context.Context, socket *os.File, name, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, program}, args...)...)
	cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES="+name)
	cmd.ExtraFiles = []*os.File{socket}
	return cmd
}
