package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
)

// A Pullgated is the daemon, from the binary that was built.
type Pullgated struct {
	*host.Process
	dir      string
	program  string
	upstream string
	metrics  string
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
	port, err := host.FreePort()
	if err != nil {
		return nil, err
	}
	p := &Pullgated{dir: dir, program: program, upstream: runtime, metrics: fmt.Sprintf("127.0.0.1:%d", port)}
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
		"metrics: {listen: " + p.metrics + "}",
	}, settings...)
	return os.WriteFile(p.path("config.yaml"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// Start starts it again after it was stopped or killed, with more arguments for this time.
func (p *Pullgated) Start(ctx context.Context, args ...string) (err error) {
	healthy := func() error {
		_, err := p.get("/healthz")
		return err
	}
	args = append([]string{"--config", p.path("config.yaml"), "-v", "2"}, args...)
	if p.socket == nil {
		p.Process, err = host.Start(ctx, "pullgated", p.path("pullgated.log"), healthy, p.program, args...)
		return err
	}
	// Only the process itself knows its ID before it runs.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, p.program}, args...)...)
	cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES=cri")
	cmd.ExtraFiles = []*os.File{p.socket}
	p.Process, err = host.StartCommand(ctx, "pullgated", p.path("pullgated.log"), healthy, cmd)
	return err
}

// KeepSocket stops it and starts it on a socket that stays open over every later stop and start, as systemd keeps
// it. release gives the socket up.
func (p *Pullgated) KeepSocket(ctx context.Context) (release func() error, err error) {
	if err := p.Stop(); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: p.path("cri.sock")})
	if err != nil {
		return nil, err
	}
	if p.socket, err = l.File(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return func() error { return errors.Join(p.socket.Close(), l.Close()) }, p.Start(ctx)
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

func (p *Pullgated) path(name string) string { return filepath.Join(p.dir, name) }

// Dir is where its configuration, state and log are.
func (p *Pullgated) Dir() string { return p.dir }

// Endpoint is what the kubelet dials.
func (p *Pullgated) Endpoint() string { return "unix://" + p.path("cri.sock") }

// MetricsAddress is the host and port that its metrics are scraped from.
func (p *Pullgated) MetricsAddress() string { return p.metrics }

func (p *Pullgated) get(path string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + p.metrics + path)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, resp.Status, body)
	}
	return string(body), err
}

// Scrape returns the metrics page.
func (p *Pullgated) Scrape() (string, error) { return p.get("/metrics") }

// Ready asks /readyz.
func (p *Pullgated) Ready() error {
	_, err := p.get("/readyz")
	return err
}

// Metric returns the sum of all series of a name that carry every given label, written name="value".
func (p *Pullgated) Metric(name string, labels ...string) (float64, error) {
	page, err := p.Scrape()
	if err != nil {
		return 0, err
	}
	total := 0.0
	for line := range strings.Lines(page) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(series, "{"); !ok || bare != name || !hasAll(series, labels) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		total += v
	}
	return total, nil
}

func hasAll(series string, labels []string) bool {
	for _, l := range labels {
		if !strings.Contains(series, l) {
			return false
		}
	}
	return true
}
