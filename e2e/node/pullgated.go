package node

import (
	"context"
	"errors"
	"os"
)

// A Pullgated is the daemon before a runtime.
type Pullgated struct {
	*daemon
	upstream string
}

// StartPullgated starts the daemon below dir, before a runtime. settings are lines of YAML that are
// added to its configuration.
func StartPullgated(ctx context.Context, dir, runtime string, settings ...string) (*Pullgated, error) {
	d, err := newDaemon("pullgated", "pullgated", dir)
	if err != nil {
		return nil, err
	}
	d.flags = []string{"-v", "2"}
	p := &Pullgated{daemon: d, upstream: runtime}
	if err := p.Configure(settings...); err != nil {
		return nil, err
	}
	return p, p.Start(ctx)
}

// Configure writes the configuration for the next start.
func (p *Pullgated) Configure(settings ...string) error {
	return p.configure("PullgateConfiguration", append([]string{
		"listen: " + p.Endpoint(), "runtimeEndpoint: " + p.upstream, "stateDir: " + p.path("state"),
	}, settings...)...)
}

// KeepSocket stops it and starts it on a socket that stays open over every later stop and start, as systemd keeps
// it. release gives the socket up.
func (p *Pullgated) KeepSocket(ctx context.Context) (release func() error, err error) {
	if err := errors.Join(p.Stop(), p.bind("cri")); err != nil {
		return nil, err
	}
	return p.release, p.Start(ctx)
}

// Replace makes the next start run another file of the program, as an upgrade does.
func (p *Pullgated) Replace() error {
	content, err := os.ReadFile(p.program)
	if err != nil {
		return err
	}
	next := p.path("pullgated.a")
	if p.program == next {
		next = p.path("pullgated.b")
	}
	p.program = next
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(next, content, 0o700)
}

// Restart stops and starts it, with other settings if any are given.
func (p *Pullgated) Restart(ctx context.Context, settings ...string) error {
	if err := p.Stop(); err != nil {
		return err
	}
	if len(settings) > 0 {
		if err := p.Configure(settings...); err != nil {
			return err
		}
	}
	return p.Start(ctx)
}

// Endpoint is what the kubelet dials.
func (p *Pullgated) Endpoint() string { return "unix://" + p.path("cri.sock") }
