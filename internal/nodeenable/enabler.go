package nodeenable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pullgate/pullgate/internal/kubeletconf"
)

// A Daemon is the pullgated of a node, as its configuration tells.
type Daemon struct {
	// Listen, Runtime and Image are its endpoints: where the kubelet is to dial, and what it dials itself.
	Listen, Runtime, Image string
	// Metrics is where its metrics are, host:port; "" if they are off.
	Metrics string
	// StateDir is where it writes.
	StateDir string
	// Enforces says in a few words whether it does.
	Enforces string
}

// A Enabler points the kubelet of a host at a daemon and back.
type Enabler struct {
	Host   kubeletconf.Host
	Daemon Daemon
	// Unit is the unit that runs the kubelet; "" looks for one.
	Unit string
	// Wait is how long the kubelet has to be well again after a restart.
	Wait time.Duration
	// Settle is how long it has to be well without a break; 0 is 12 seconds, since systemd starts a kubelet that
	// ended after ten.
	Settle time.Duration
	// Say is told of each step when it begins, and of what was seen when one fails; nil is allowed.
	Say func(line string)

	// How the network and the disk are asked; what is nil asks the real ones.
	Get  func(ctx context.Context, url string) (status int, body []byte, err error)
	Dial func(ctx context.Context, socket string) error
	Free func(dir string) (bytes uint64, err error)
}

// Limits of what is asked.
const (
	askLimit  = 3 * time.Second
	bodyLimit = 8 << 20
)

func (s Enabler) say(format string, args ...any) {
	if s.Say != nil {
		s.Say(fmt.Sprintf(format, args...))
	}
}

func (s Enabler) get(ctx context.Context, url string) (int, []byte, error) {
	if s.Get != nil {
		return s.Get(ctx, url)
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	// Not by a proxy that the environment names: what is asked is on this node.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyLimit))
	return resp.StatusCode, body, errors.Join(err, resp.Body.Close())
}

func (s Enabler) dial(ctx context.Context, socket string) error {
	if s.Dial != nil {
		return s.Dial(ctx, socket)
	}
	d := net.Dialer{Timeout: askLimit}
	conn, err := d.DialContext(ctx, "unix", s.Host.Path(socket))
	if err != nil {
		return err
	}
	return conn.Close()
}

// free returns how many bytes a folder, or the nearest one above it that is there, has room for.
func (s Enabler) free(dir string) (uint64, error) {
	if s.Free != nil {
		return s.Free(dir)
	}
	var fs syscall.Statfs_t
	for {
		err := syscall.Statfs(s.Host.Path(dir), &fs)
		if errors.Is(err, syscall.ENOENT) && dir != "/" {
			dir = filepath.Dir(dir)
			continue
		}
		return fs.Bavail * uint64(fs.Bsize), err //nolint:gosec // a block has a size of more than 0
	}
}

// command runs a program of the host.
func (s Enabler) command(ctx context.Context, argv ...string) (string, error) {
	run := s.Host.Command
	if run == nil {
		run = kubeletconf.Run
	}
	out, err := run(ctx, argv[0], argv[1:]...)
	return strings.TrimSpace(string(out)), err
}
