package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Pullgated is the daemon, from the binary that was built.
type Pullgated struct {
	*host.Process
	metricsServer
	dir      string
	program  string
	upstream string
	socket   *os.File // nil: it makes its own
}

// Program returns the path of a program that make build has built.
func Program(name string) (string, error) {
	path, err := host.Upward(filepath.Join("bin", name))
	if err != nil {
		return "", fmt.Errorf("bin/%s is not built; run make build", name)
	}
	return path, nil
}

// StartPullgated starts the daemon below dir, before a runtime. settings are lines of YAML that are
// added to its configuration.
func StartPullgated(ctx context.Context, dir, runtime string, settings ...string) (*Pullgated, error) {
	program, err := Program("pullgated")
	if err != nil {
		return nil, err
	}
	metrics, err := newMetricsServer()
	if err != nil {
		return nil, err
	}
	p := &Pullgated{metricsServer: metrics, dir: dir, program: program, upstream: runtime}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := p.Configure(settings...); err != nil {
		return nil, err
	}
	return p, p.Start(ctx)
}

// Configure writes the configuration for the next start.
func (p *Pullgated) Configure(settings ...string) error {
	lines := append([]string{
		"apiVersion: config.pullgate.dev/v1alpha1",
		"kind: PullgateConfiguration",
		"listen: " + p.Endpoint(),
		"runtimeEndpoint: " + p.upstream,
		"stateDir: " + p.path("state"),
		"metrics: {listen: " + p.MetricsAddress() + "}",
	}, settings...)
	return os.WriteFile(p.path("config.yaml"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// Start starts it again after it was stopped or killed, with more arguments for this time.
func (p *Pullgated) Start(ctx context.Context, args ...string) (err error) {
	args = append([]string{"--config", p.path("config.yaml"), "-v", "2"}, args...)
	if p.socket == nil {
		p.Process, err = host.Start(ctx, "pullgated", p.path("pullgated.log"), p.healthy, p.program, args...)
		return err
	}
	p.Process, err = host.StartCommand(ctx, "pullgated", p.path("pullgated.log"), p.healthy, activated(ctx, p.socket, "cri", p.program, args...))
	return err
}

// KeepSocket stops it and starts it on a socket that stays open over every later stop and start, as systemd keeps
// it. release gives the socket up.
func (p *Pullgated) KeepSocket(ctx context.Context) (release func() error, err error) {
	if err := p.Stop(); err != nil {
		return nil, err
	}
	if p.socket, release, err = bindSocket(p.path("cri.sock")); err != nil {
		return nil, err
	}
	return release, p.Start(ctx)
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

// Use makes the next start run another program, such as another version.
func (p *Pullgated) Use(program string) { p.program = program }

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

func (p *Pullgated) path(name string) string { return filepath.Join(p.dir, name) }

// Dir is where its configuration, state and log are.
func (p *Pullgated) Dir() string { return p.dir }

// Endpoint is what the kubelet dials.
func (p *Pullgated) Endpoint() string { return "unix://" + p.path("cri.sock") }
