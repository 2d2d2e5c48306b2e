package sockets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// ErrInUse means that another process accepts connections on the socket.
var ErrInUse = errors.New("sockets: socket in use")

const dialLimit = 2 * time.Second

// A Socket is a Unix socket of a program.
type Socket struct {
	// Program is the name of the program; its units are Program.service and Program.socket.
	Program string
	// Field is the field of the program's configuration that has the endpoint.
	Field string
	// Endpoint is unix:// and the path of the socket.
	Endpoint string
	// Name is the name that Program.socket gives the socket (FileDescriptorName=). It is used by Inherit only.
	Name string
}

// Bind binds the socket with mode 0600. If the directory does not exist, Bind makes it with mode 0700. If no process
// answers on an existing socket, the socket is from a crash and is replaced; otherwise the error is [ErrInUse].
func (s Socket) Bind(ctx context.Context) (net.Listener, error) {
	path, ok := strings.CutPrefix(s.Endpoint, "unix://")
	if !ok {
		return nil, fmt.Errorf("listen on %s: only unix:// can be listened on", s.Endpoint)
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = s.clearStale(ctx, path)
	}
	if err == nil {
		// The bind itself sets the mode: with a later chmod others could connect for a moment.
		defer syscall.Umask(syscall.Umask(0o177))
		var l net.Listener
		if l, err = new(net.ListenConfig).Listen(ctx, "unix", path); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("listen on %s: %w", s.Endpoint, err)
}

func (s Socket) clearStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return program.Hintf("remove it, or set "+s.Field+" to another path", "%s exists and is not a socket", path)
	}
	conn, err := (&net.Dialer{Timeout: dialLimit}).DialContext(ctx, "unix", path)
	if err == nil {
		hint := "another %s, or another program, answers on %s; see systemctl status %[1]s, or: ss -xlp"
		return errors.Join(program.WithHint(ErrInUse, fmt.Sprintf(hint, s.Program, path)), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

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
