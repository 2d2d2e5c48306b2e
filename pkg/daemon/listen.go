package daemon

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
)

// dialLimit bounds the question whether anybody answers on a socket that is already there.
const dialLimit = 2 * time.Second

// listen binds the socket of an endpoint unix:///path, mode 0600 in a directory that is made with
// mode 0700 if it is not there. A socket that nobody answers on is left over from a crash and is
// replaced; one that somebody answers on is refused.
func listen(ctx context.Context, endpoint string) (net.Listener, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		return nil, fmt.Errorf("listen on %s: only unix:// can be listened on", endpoint)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	if err := clearStale(ctx, path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	// The mode is set by the bind itself: a chmod after it would leave a moment in which
	// others can connect.
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	return l, nil
}

func clearStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return hinted(fmt.Errorf("%s exists and is no socket", path), "remove it, or set listen to another path")
	}
	dialer := net.Dialer{Timeout: dialLimit}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(hinted(ErrSocketInUse, "another pullgated, or another program, answers on "+path+"; see systemctl status pullgated, or: ss -xlp"), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
