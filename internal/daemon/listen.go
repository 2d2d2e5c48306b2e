package daemon

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

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/hint"
)

// dialLimit bounds the check whether a process answers on an existing socket.
const dialLimit = 2 * time.Second

// bindRetry is the time between two attempts to bind an optional listener.
const bindRetry = 2 * time.Second

// listeners are the listeners of the daemon; a listener that the configuration turns off is nil.
type listeners struct {
	cri        net.Listener
	admin, web *optional
}

// An optional is a listener that is not needed to serve the CRI.
type optional struct {
	field, address string
	bind           func(ctx context.Context) (net.Listener, error)
	log            klog.Logger
	bound          func(field string, err error) // called when it could not be bound, and with nil when it is bound

	listener net.Listener // nil until it is bound
}

// start tries to bind the listener. If another process answers at its socket, start returns an error: that process is another
// pullgated, or clients would take it for this one. start logs every other failure, and wait tries again.
func (l *optional) start(ctx context.Context) (err error) {
	l.listener, err = l.bind(ctx)
	if err == nil || errors.Is(err, ErrSocketInUse) {
		return err
	}
	l.bound(l.field, err)
	advice := cmp.Or(hint.Of(err), "free the address, or set "+l.field+" to another one")
	l.log.Error(err, "Not listening, trying again; the CRI is served without it", "field", l.field, "every", bindRetry, "hint", advice)
	return nil
}

// wait returns the listener once it is bound, nil if ctx ends first.
func (l *optional) wait(ctx context.Context) net.Listener {
	if l.listener != nil {
		return l.listener
	}
	again := time.NewTicker(bindRetry)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
		listener, err := l.bind(ctx)
		if err != nil {
			l.bound(l.field, err)
			continue
		}
		l.bound(l.field, nil)
		l.log.Info("Listening now", "field", l.field, "address", l.address)
		return listener
	}
}

// listenAll listens on the CRI's socket, or on none, and on those of the other listeners that can be bound.
func listenAll(ctx context.Context, log klog.Logger, c config.Config, bound func(field string, err error)) (on listeners, err error) {
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
	if c.Admin.Listen != "" {
		on.admin = &optional{field: "admin.listen", address: c.Admin.Listen, log: log, bound: bound, bind: func(ctx context.Context) (net.Listener, error) {
			return listen(ctx, "admin.listen", c.Admin.Listen)
		}}
		if err := on.admin.start(ctx); err != nil {
			return on, err
		}
	}
	if c.Metrics.Listen != "" {
		on.web = &optional{field: "metrics.listen", address: c.Metrics.Listen, log: log, bound: bound, bind: func(ctx context.Context) (net.Listener, error) {
			return listenWeb(ctx, c.Metrics.Listen)
		}}
		return on, on.web.start(ctx)
	}
	return on, nil
}

func (on listeners) close() error {
	all := []net.Listener{on.cri}
	for _, o := range []*optional{on.admin, on.web} {
		if o != nil {
			all = append(all, o.listener)
		}
	}
	var err error
	for _, l := range all {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}

// listen binds the socket of an endpoint unix:///path from a field, with mode 0600. If the directory does not exist, listen makes
// it with mode 0700. If no process answers on an existing socket, the socket is from a crash and is replaced; otherwise listen
// returns an error.
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
	// The bind itself sets the mode: with a later chmod others could connect for a moment.
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
		return hint.Wrap(fmt.Errorf("%s exists and is not a socket", path), "remove it, or set "+field+" to another path")
	}
	dialer := net.Dialer{Timeout: dialLimit}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(hint.Wrap(ErrSocketInUse, "another pullgated, or another program, answers on "+path+"; see systemctl status pullgated, or: ss -xlp"), conn.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
