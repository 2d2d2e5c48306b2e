package nodeinstall

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/doctor"
	"github.com/pullgate/pullgate/internal/operator/nodeenable"
)

const (
	// pollEvery is the interval between checks.
	pollEvery = 500 * time.Millisecond
	// startWithin is how long pullgated may take to answer after a start. It waits for nothing but its disk.
	startWithin = 30 * time.Second
	// failuresAllowed is how many checks in a row may find a kubelet that is not healthy: an administrator may restart it.
	failuresAllowed = 20
)

// A health is which start of pullgated is meant.
type health struct {
	invocation string
	restarts   int
}

func (i Installer) unit(ctx context.Context, name string) (doctor.Unit, error) {
	found, err := i.Host.Units(ctx, name)
	if err != nil {
		return doctor.Unit{}, err
	}
	return found[0], nil
}

// startDaemon starts or restarts pullgated, and waits until it answers as a version.
func (i Installer) startDaemon(ctx context.Context, version string) (*health, error) {
	was, err := i.unit(ctx, service)
	if err != nil {
		return nil, err
	}
	began := i.now()
	// Without --no-block the command waits as long as a program that never says that it is ready.
	if err := i.command(ctx, "systemctl", "restart", "--no-block", service); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, errors.New("it took too long"))
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	last := errors.New("it was not asked")
	for counted := was.Restarts; ; {
		h, err := i.answers(ctx, was.Invocation, version)
		if err == nil {
			return h, nil
		}
		if ctx.Err() == nil { // else the end of the wait is the cause
			last = err
		}
		if u, unitErr := i.unit(ctx, service); unitErr == nil {
			counted = min(counted, u.Restarts) // systemd resets it at most restarts
			// It has ended twice. A kubelet closes a connection that is not answered for 5 s: the former version has to be back.
			if n := u.Restarts - counted; n > 1 || n == 1 && u.Sub == "auto-restart" {
				return nil, i.withLog(ctx, began, was.Invocation,
					fmt.Errorf("pullgated %s ends again and again: %w", version, err))
			}
		}
		select {
		case <-ctx.Done():
			return nil, i.withLog(ctx, began, was.Invocation,
				fmt.Errorf("pullgated %s does not answer within %s: %w", version, startWithin, last))
		case <-tick.C:
		}
	}
}

func (i Installer) answers(ctx context.Context, before, version string) (*health, error) {
	u, err := i.unit(ctx, service)
	if err != nil {
		return nil, err
	}
	if u.Invocation == before || u.Active != "active" {
		return nil, fmt.Errorf("%s is %s (%s)", service, u.Active, u.Sub)
	}
	now, err := i.configured()
	if err != nil {
		return nil, err
	}
	if now.Admin.Listen == "" { // it can only be seen that systemd was told that it is ready
		return &health{u.Invocation, u.Restarts}, nil
	}
	s, err := i.Ask(ctx, now.Admin.Listen)
	if err != nil {
		return nil, err
	}
	if s.GetVersion() != version {
		return nil, fmt.Errorf("version %s answers", s.GetVersion())
	}
	return &health{u.Invocation, u.Restarts}, nil
}

// health returns the running start of pullgated.
func (c *change) health(ctx context.Context) (*health, error) {
	return c.answers(ctx, "", c.to.Version)
}

// withLog adds the end of pullgated's log since a time to an error, or what systemd says if it could not start it.
// Lines of a former start are left out.
func (i Installer) withLog(ctx context.Context, since time.Time, former string, err error) error {
	out, logErr := i.Host.Run(context.WithoutCancel(ctx), "journalctl", "--unit="+service, "--quiet", "--no-pager",
		fmt.Sprintf("--since=@%.6f", float64(max(0, since.UnixMicro()))/1e6), "--lines=100", "--output=json",
		"--output-fields=MESSAGE,PRIORITY,_SYSTEMD_UNIT,_SYSTEMD_INVOCATION_ID,INVOCATION_ID")
	if logErr != nil {
		return err
	}
	var its, systemd []string
	for text := range bytes.Lines(out) {
		var line struct {
			Message    string `json:"MESSAGE"`
			Priority   string `json:"PRIORITY"`
			Unit       string `json:"_SYSTEMD_UNIT"`
			Invocation string `json:"_SYSTEMD_INVOCATION_ID"`
			About      string `json:"INVOCATION_ID"` // which start is meant by a line of systemd
		}
		if json.Unmarshal(text, &line) != nil || former != "" && former == cmp.Or(line.About, line.Invocation) {
			continue // the first is also a line that is not text
		}
		if line.Unit == service {
			its = append(its, line.Message)
		} else if line.Priority < "6" { // others say that it starts or stops
			systemd = append(systemd, line.Message)
		}
	}
	if len(its) == 0 {
		its = systemd
	}
	if len(its) == 0 {
		return err
	}
	return fmt.Errorf("%w; its log: %s", err, strings.Join(its[max(0, len(its)-5):], "; "))
}

// watch looks at pullgated and the kubelet until it is over. A pullgated that was started again has failed.
func (c *change) watch(ctx context.Context, over func() bool) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	failures := 0
	for {
		if c.base == nil { // the change goes on after a kill
			var err error
			if c.base, err = c.health(ctx); err != nil {
				return c.withLog(ctx, time.Time{}, "", err)
			}
		}
		now, err := c.health(ctx)
		switch {
		case err == nil && *now != *c.base:
			return c.withLog(ctx, time.Time{}, "",
				errors.New("pullgated was started again: it has ended, or its watchdog has ended it"))
		case err == nil:
			err = c.enabler(time.Minute).Healthy(ctx)
		}
		if err == nil {
			failures = 0
		} else if failures++; failures > failuresAllowed {
			return c.withLog(ctx, time.Time{}, "", err)
		}
		if err == nil && over() {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// enabler returns what points the kubelet, for a pullgated as its configuration file describes it.
func (i Installer) enabler(wait time.Duration) nodeenable.Enabler {
	e := i.Enabler
	e.Host, e.Wait, e.Progress = i.Host, wait, i.Progress
	if now, err := i.configured(); err == nil {
		e.Daemon = nodeenable.DaemonOf(now)
	}
	e.Daemon.Path = configuration
	return e
}

// running is enabler for a pullgated as it describes itself.
func (i Installer) running(ctx context.Context) (nodeenable.Enabler, error) {
	e := i.enabler(time.Minute)
	now, err := i.configured()
	if err != nil || now.Admin.Listen == "" {
		return e, err
	}
	s, err := i.Ask(ctx, now.Admin.Listen)
	if err != nil {
		return e, program.WithHint(err, "see systemctl status pullgated")
	}
	d, err := nodeenable.RunningDaemon(now, configuration, s)
	e.Daemon = d
	return e, err
}
