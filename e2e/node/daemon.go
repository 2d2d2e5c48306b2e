package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
)

// A daemon is a program of pullgate, from the binary that was built, with a folder for its files.
type daemon struct {
	*host.Process
	metrics string // the host and port of its metrics and probes
	name    string // of its files
	dir     string
	program string
	flags   []string // at every start
	// socket is what it gets as from systemd, where it stays open over every stop and start; nil if it makes its own.
	socket     *os.File
	socketName string
	release    func() error
}

// Program returns the path of a program that make build has built.
func Program(name string) (string, error) {
	path, err := host.Upward(filepath.Join("bin", name))
	if err != nil {
		return "", fmt.Errorf("bin/%s is not built; run make build", name)
	}
	return path, nil
}

func newDaemon(program, name, dir string) *daemon {
	host.Check(os.MkdirAll(dir, 0o700))
	metrics := fmt.Sprintf("127.0.0.1:%d", host.Must(host.FreePort()))
	return &daemon{metrics: metrics, name: name, dir: dir, program: host.Must(Program(program))}
}

func (d *daemon) configure(kind string, settings ...string) error {
	text := fmt.Sprintf("apiVersion: config.pullgate.dev/v1alpha1\nkind: %s\nmetrics: {listen: %s}\n%s\n",
		kind, d.metrics, strings.Join(settings, "\n"))
	return os.WriteFile(d.path(d.name+".yaml"), []byte(text), 0o600)
}

// Start starts it, the first time or again after it was stopped or killed, with more arguments for this time.
func (d *daemon) Start(ctx context.Context, args ...string) (err error) {
	args = slices.Concat([]string{"--config", d.path(d.name + ".yaml")}, d.flags, args)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), d.program, args...)
	if d.socket != nil { // only the process itself knows its ID before it runs
		args = append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, d.program}, args...)
		cmd = exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", args...)
		cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES="+d.socketName)
		cmd.ExtraFiles = []*os.File{d.socket}
	}
	d.Process, err = host.StartCommand(ctx, d.name, d.path(d.name+".log"), d.answers("/healthz"), cmd)
	return err
}

// endWith ends it by end at the end of a test, which logs its last output if it has failed.
func (d *daemon) endWith(tb testing.TB, end func() error) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := end(); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("the last output of %s:\n%s", d.name, host.Tail(d.path(d.name+".log"), 40))
		}
	})
}

// WantDoctor wants a finding of pullgatectl doctor, whose output is JSON, at a level and with all of these words.
func WantDoctor(tb testing.TB, output []byte, level, check string, words ...string) {
	tb.Helper()
	var answer struct {
		Findings []struct{ Check, Level, Found, Remediation string }
	}
	testkit.Must(tb, json.Unmarshal(output, &answer))
	for _, f := range answer.Findings {
		missing := func(w string) bool { return !strings.Contains(f.Found+" -> "+f.Remediation, w) }
		if f.Check == check && f.Level == level && !slices.ContainsFunc(words, missing) {
			return
		}
	}
	tb.Errorf("doctor prints\n%s\nwant %s %s … %s", output, level, check, strings.Join(words, " … "))
}

// bind binds the socket with a name as systemd does, before the program starts. It is open until release.
func (d *daemon) bind(name string) {
	path := d.path(name + ".sock")
	l := host.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))
	d.socket = host.Must(l.File())
	host.Check(os.Chmod(path, 0o600))
	d.socketName, d.release = name, func() error { return errors.Join(d.socket.Close(), l.Close()) }
}

func (d *daemon) path(name string) string { return filepath.Join(d.dir, name) }

// Dir is where its configuration, state and log are.
func (d *daemon) Dir() string { return d.dir }

// Usage returns what its process has used.
func (d *daemon) Usage() (host.Usage, error) { return host.UsageOf(d.PID()) }

// MetricsAddress is the host and port that its metrics are scraped from.
func (d *daemon) MetricsAddress() string { return d.metrics }

// Scrape returns the metrics page.
func (d *daemon) Scrape() (string, error) { return host.Get("http://" + d.metrics + "/metrics") }

// Ready asks /readyz.
func (d *daemon) Ready() error { return d.answers("/readyz")() }

func (d *daemon) answers(path string) func() error { return host.Answers("http://" + d.metrics + path) }

// Metric returns the sum of all series of a name that carry every given label, written name="value".
func (d *daemon) Metric(name string, labels ...string) (total float64, err error) {
	defer host.Catch(&err)
	page := host.Must(d.Scrape())
	for line := range strings.Lines(page) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		missing := func(label string) bool { return !strings.Contains(series, label) }
		if bare, _, _ := strings.Cut(series, "{"); ok && bare == name && !slices.ContainsFunc(labels, missing) {
			total += host.Must(strconv.ParseFloat(value, 64))
		}
	}
	return total, nil
}
