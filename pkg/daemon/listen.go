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

	"github.com/pullgate/pullgate/pkg/config"
)

// dialLimit bounds the question whether anybody answers on a socket that is already there.
const dialLimit = 2 * time.Second

// listeners are where the daemon is reached; one that the configuration turns off is nil.
type listeners struct{ cri, reports, admin, web net.Listener }

// listenAll listens wherever the configuration says, or nowhere.
func listenAll(ctx context.Context, c config.Config) (on listeners, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, on.close())
		}
	}()
	if on.cri, err = inherit(c.Listen); err != nil {
		return on, err
	}
	if on.cri == nil {
		if on.cri, err = listen(ctx, "listen", c.Listen); err != nil {
			return on, err
		}
	}
	if c.NodeCredentials.Listen != "" {
		if on.reports, err = listen(ctx, "nodeCredentials.listen", c.NodeCredentials.Listen); err != nil {
			return on, err
		}
	}
	if c.Admin.Listen != "" {
		if on.admin, err = listen(ctx, "admin.listen", c.Admin.Listen); err != nil {
			return on, err
		}
	}
	on.web, err = listenWeb(ctx, c.Metrics.Listen)
	return on, err
}

func (on listeners) close() error {
	var err error
	for _, l := range []net.Listener{on.cri, on.reports, on.admin, on.web} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}

// listen binds the socket of an endpoint unix:///path that a field gives, mode 0600 in a directory that is made with
// mode 0700 if it is not there. A socket that nobody answers on is left over from a crash and is
// replaced; one that somebody answers on is refused.
func listen(ctx context.Context, field, endpoint string) (net.Listener, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		return nil, fmt.Errorf("listen on %s: only unix:// can be listened on", endpoint)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	if err := clearStale(ctx, field, path); err != nil {
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

func clearStale(ctx context.Context, field, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return hinted(fmt.Errorf("%s exists and is no socket", path), "remove it, or set "+field+" to another path")
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
