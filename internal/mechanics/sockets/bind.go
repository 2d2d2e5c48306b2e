package sockets

import (
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
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.Endpoint, err)
	}
	if err := s.clearStale(ctx, path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.Endpoint, err)
	}
	// The bind itself sets the mode: with a later chmod others could connect for a moment.
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.Endpoint, err)
	}
	return l, nil
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
	dialer := net.Dialer{Timeout: dialLimit}
	conn, err := dialer.DialContext(ctx, "unix", path)
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
