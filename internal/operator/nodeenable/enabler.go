package nodeenable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// An Enabler points the kubelet of a host at a daemon and back.
type Enabler struct {
	Host   doctor.Host
	Daemon Daemon
	// Unit is the unit that runs the kubelet; with "" the Enabler searches for one.
	Unit string
	// Wait is how long the kubelet may take to be healthy after a restart.
	Wait time.Duration
	// Settle is how long it has to be healthy without interruption; 0 means 12 seconds, because systemd restarts a failed
	// kubelet after ten.
	Settle time.Duration
	// Progress is called when a step begins, and with the observations when a step fails; nil is allowed.
	Progress func(line string)

	// Functions for access to the network and the disk; nil means the real ones.
	Get  func(ctx context.Context, url string) (status int, body []byte, err error)
	Dial func(ctx context.Context, socket string) error
	Disk func(path string) (disk.Stats, error)
}

// Limits of the requests.
const (
	askLimit  = 3 * time.Second
	bodyLimit = 8 << 20
)

func (s Enabler) progress(format string, args ...any) {
	if s.Progress != nil {
		s.Progress(fmt.Sprintf(format, args...))
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
	// No proxy from the environment, because the requests are for this node.
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

// command runs a program of the host.
func (s Enabler) command(ctx context.Context, argv ...string) (string, error) {
	out, err := s.Host.Run(ctx, argv[0], argv[1:]...)
	return strings.TrimSpace(string(out)), err
}
