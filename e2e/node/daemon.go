package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/e2e/host"
)

// A daemon is a program of pullgate, from the binary that was built, with a folder for its files.
type daemon struct {
	*host.Process
	metricsServer
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

func newDaemon(program, name, dir string) (*daemon, error) {
	path, err := Program(program)
	if err != nil {
		return nil, err
	}
	metrics, err := newMetricsServer()
	if err != nil {
		return nil, err
	}
	return &daemon{metricsServer: metrics, name: name, dir: dir, program: path}, os.MkdirAll(dir, 0o700)
}

func (d *daemon) configure(kind string, settings ...string) error {
	text := fmt.Sprintf("apiVersion: config.pullgate.dev/v1alpha1\nkind: %s\nmetrics: {listen: %s}\n%s\n",
		kind, d.MetricsAddress(), strings.Join(settings, "\n"))
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
	d.Process, err = host.StartCommand(ctx, d.name, d.path(d.name+".log"), d.healthy, cmd)
	return err
}

// bind binds the socket with a name as systemd does, before the program starts. It is open until release.
func (d *daemon) bind(name string) error {
	path := d.path(name + ".sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return err
	}
	if d.socket, err = l.File(); err != nil {
		return errors.Join(err, l.Close())
	}
	d.socketName, d.release = name, func() error { return errors.Join(d.socket.Close(), l.Close()) }
	return os.Chmod(path, 0o600)
}

func (d *daemon) path(name string) string { return filepath.Join(d.dir, name) }

// Dir is where its configuration, state and log are.
func (d *daemon) Dir() string { return d.dir }

// Usage returns what its process has used.
func (d *daemon) Usage() (host.Usage, error) { return host.UsageOf(d.PID()) }
