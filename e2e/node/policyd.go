package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Policyd is pullgate-policyd, from the binary that was built.
type Policyd struct {
	*host.Process
	metricsServer
	dir     string
	program string
	socket  *os.File
	release func() error
}

// StartPolicyd binds the socket for pullgated below dir, and starts pullgate-policyd on it with a policy folder.
// settings are lines of YAML that are added to its configuration.
func StartPolicyd(ctx context.Context, dir, policies string, settings ...string) (p *Policyd, err error) {
	program, err := Program("pullgate-policyd")
	if err != nil {
		return nil, err
	}
	metrics, err := newMetricsServer()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p = &Policyd{metricsServer: metrics, dir: dir, program: program}
	lines := append([]string{
		"apiVersion: config.pullgate.dev/v1alpha1",
		"kind: PolicydConfiguration",
		"policies: " + policies,
		"metrics: {listen: " + p.MetricsAddress() + "}",
	}, settings...)
	if err := os.WriteFile(p.path("policyd.yaml"), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	if err := p.Reopen(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// Reopen binds the socket again after Close, and starts it.
func (p *Policyd) Reopen(ctx context.Context) (err error) {
	if p.socket, p.release, err = bindSocket(p.path("policy.sock")); err != nil {
		return err
	}
	if err := p.Start(ctx); err != nil {
		return errors.Join(err, p.Close())
	}
	return nil
}

// Start starts it again after it was stopped or killed, on the socket that stayed open.
func (p *Policyd) Start(ctx context.Context) (err error) {
	cmd := activated(ctx, p.socket, "policy", p.program, "--config", p.path("policyd.yaml"))
	p.Process, err = host.StartCommand(ctx, "pullgate-policyd", p.path("policyd.log"), p.healthy, cmd)
	return err
}

// Close ends it, and removes its socket.
func (p *Policyd) Close() error { return errors.Join(p.Stop(), p.release()) }

func (p *Policyd) path(name string) string { return filepath.Join(p.dir, name) }

// Dir is where its configuration and its log are.
func (p *Policyd) Dir() string { return p.dir }

// Endpoint is admission.policydSocket of the pullgated that asks it.
func (p *Policyd) Endpoint() string { return "unix://" + p.path("policy.sock") }

// Usage returns what its process has used.
func (p *Policyd) Usage() (host.Usage, error) { return host.UsageOf(p.PID()) }
