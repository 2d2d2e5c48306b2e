package sockets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// Listen returns the listener that systemd passes on, otherwise a new one; nil if there is no endpoint either.
func (s Socket) Listen(ctx context.Context) (net.Listener, error) {
	l, err := s.Inherit()
	if err != nil || l != nil || s.Endpoint == "" {
		return l, err
	}
	return s.Bind(ctx)
}

// Inherit returns the listener of a socket that systemd has bound and keeps over restarts, nil if systemd has passed
// none. It must be the socket of the endpoint; any path is accepted if the endpoint is "". Closing the listener does
// not remove the socket, because it is systemd's. Inherit unsets the environment variables that announce the socket.
func (s Socket) Inherit() (_ net.Listener, err error) {
	files := activation.Files(true)
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close()) // a listener has a copy of its own
		}
	}()
	unit := s.Program + ".socket"
	switch {
	case len(files) == 0:
		return nil, nil //nolint:nilnil // none was passed on
	case len(files) > 1 || files[0].Name() != s.Name:
		return nil, program.Hintf("see FileDescriptorName= and ListenStream= in: systemctl cat "+unit,
			"%s: systemd passes on sockets named %s, %s accepts one named %q", s.Field, names(files), s.Program, s.Name)
	}
	l, err := net.FileListener(files[0])
	if err != nil {
		return nil, program.Hintf("see ListenStream= and Accept= in: systemctl cat "+unit,
			"%s: the file that systemd passes on is not a listening socket: %w", s.Field, err)
	}
	path := l.Addr().String()
	if l.Addr().Network() != "unix" || s.Endpoint != "" && !leadsTo(s.Endpoint, path) {
		return nil, errors.Join(s.otherThan(path), l.Close())
	}
	return l, nil
}

func (s Socket) otherThan(path string) error {
	configured := cmp.Or(s.Endpoint, "a Unix socket")
	edit := "give the same path in the configuration and in ListenStream= of %s (systemctl edit %[1]s)"
	return program.Hintf(fmt.Sprintf(edit, s.Program+".socket"),
		"%s: %s is configured, and systemd passes on %s", s.Field, configured, path)
}

// CheckUnit returns the error of a start by systemd if Program.socket is another socket than the configured one. A nil
// Runner is one for this machine.
func (s Socket) CheckUnit(ctx context.Context, run program.Runner) error {
	values, loaded := program.Show(ctx, run, s.Program+".socket", "Listen")
	path, isStream := strings.CutSuffix(values["Listen"], " (Stream)")
	if !loaded || s.Endpoint == "" || isStream && leadsTo(s.Endpoint, path) {
		return nil
	}
	return s.otherThan(path)
}

func names(files []*os.File) string {
	var all []string
	for _, f := range files {
		all = append(all, fmt.Sprintf("%q", f.Name()))
	}
	return strings.Join(all, ", ")
}

// leadsTo reports whether an endpoint is the socket at a path, also by another name such as one below /var/run.
func leadsTo(endpoint, path string) bool {
	configured := strings.TrimPrefix(endpoint, "unix://")
	if filepath.Clean(configured) == filepath.Clean(path) {
		return true
	}
	a, _ := os.Stat(configured) // a file that cannot be asked for is the same as no other
	b, _ := os.Stat(path)
	return os.SameFile(a, b)
}
