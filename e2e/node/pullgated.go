package node

import (
	"context"
	"os"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Pullgated is the daemon before a runtime.
type Pullgated struct {
	*daemon
	upstream string
}

// StartPullgated starts the daemon below dir before a runtime, with more lines of YAML in its configuration.
func StartPullgated(ctx context.Context, dir, runtime string, settings ...string) (p *Pullgated, err error) {
	defer host.Catch(&err)
	p = &Pullgated{daemon: newDaemon("pullgated", "pullgated", dir), upstream: runtime}
	p.flags = []string{"-v", "2"}
	host.Check(p.Configure(settings...))
	return p, p.Start(ctx)
}

// RunPullgated is StartPullgated until the test ends.
func RunPullgated(tb testing.TB, dir, runtime string, settings ...string) *Pullgated {
	tb.Helper()
	p, err := StartPullgated(tb.Context(), dir, runtime, settings...)
	testkit.Must(tb, err)
	p.endWith(tb, func() error { return p.Stop() })
	return p
}

// Configure writes the configuration for the next start.
func (p *Pullgated) Configure(settings ...string) error {
	return p.configure("PullgateConfiguration", append([]string{
		"listen: " + p.Endpoint(), "runtimeEndpoint: " + p.upstream, "stateDir: " + p.path("state"),
	}, settings...)...)
}

// KeepSocket starts it again on a socket that stays open over restarts, as with systemd, until release.
func (p *Pullgated) KeepSocket(ctx context.Context) (release func() error, err error) {
	defer host.Catch(&err)
	host.Check(p.Stop())
	p.bind("cri")
	return p.release, p.Start(ctx)
}

// Replace makes the next start run another file of the program, as an upgrade does.
func (p *Pullgated) Replace() (err error) {
	defer host.Catch(&err)
	content := host.Must(os.ReadFile(p.program))
	next := p.path("pullgated.a")
	if p.program == next {
		next = p.path("pullgated.b")
	}
	p.program = next
	host.Check(os.RemoveAll(next))
	return os.WriteFile(next, content, 0o700)
}

// Restart stops and starts it, with other settings if any are given.
func (p *Pullgated) Restart(ctx context.Context, settings ...string) (err error) {
	defer host.Catch(&err)
	if host.Check(p.Stop()); len(settings) > 0 {
		host.Check(p.Configure(settings...))
	}
	return p.Start(ctx)
}

// Endpoint is what the kubelet dials.
func (p *Pullgated) Endpoint() string { return "unix://" + p.path("cri.sock") }
