// Package host runs programs on the machine that the tests run on, and finds what they need there: free
// ports, locks, files of the checkout.
package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startLimit is how long a part may take until it answers.
const startLimit = 60 * time.Second

// A Process is one part that runs as a program of its own.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Start runs a program with its output in a log file and waits until ready reports success.
func Start(
	ctx context.Context, name, log string, ready func() error, program string, args ...string,
) (*Process, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...)
	if filepath.IsAbs(program) {
		// What was built with it comes before what the machine has: a containerd finds its shim so.
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	}
	return StartCommand(ctx, name, log, ready, cmd)
}

// StartCommand is Start for a program that needs more than arguments.
func StartCommand(ctx context.Context, name, log string, ready func() error, cmd *exec.Cmd) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the program has its own copy
	cmd.Stdout, cmd.Stderr = out, out
	// A group of its own, so that an interrupt at the terminal reaches us alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	if err := p.Wait(ctx, ready); err != nil {
		return nil, errors.Join(fmt.Errorf("%s did not start: %w; its last output:\n%s", name, err, Tail(log, 15)), p.Kill())
	}
	return p, nil
}

// Wait asks ready repeatedly until it reports success. It gives up after a minute, or if the process ends.
func (p *Process) Wait(ctx context.Context, ready func() error) error {
	if ready == nil {
		return nil
	}
	var err error
	Within(startLimit, func() bool {
		if err = ready(); err != nil && !p.Alive() {
			err = errors.New("it ended")
		}
		return err == nil || !p.Alive() || ctx.Err() != nil
	})
	return err
}

// Log returns all that the process has printed.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// PID is the process's ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Alive reports whether the process runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() error { return p.signal(syscall.SIGKILL, 30*time.Second) }

// Stop ends the process with SIGTERM and waits for its end.
func (p *Process) Stop() error { return p.signal(syscall.SIGTERM, 30*time.Second) }

func (p *Process) signal(s syscall.Signal, limit time.Duration) error {
	if p == nil || !p.Alive() {
		return nil
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.name, err)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within %v of %v", p.name, limit, s)
	}
}

// Tail returns the last lines of a file.
func Tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return "    " + strings.Join(all[max(0, len(all)-lines):], "\n    ")
}

// Run runs a short program to its end and returns what it printed.
func Run(ctx context.Context, program string, args ...string) (string, error) {
	var out, diag bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), args[0], err, diag.String())
	}
	return out.String(), nil
}

// Get returns the content of a URL.
func Get(url string) (text string, err error) {
	return GetBy(&http.Client{Timeout: 30 * time.Second}, url)
}

// GetBy is Get by a client.
func GetBy(client *http.Client, url string) (text string, err error) {
	defer Catch(&err)
	resp, err := client.Get(url)
	Check(err)
	defer func() { _ = resp.Body.Close() }()
	body := Must(io.ReadAll(resp.Body))
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, resp.Status, body)
	}
	return string(body), err
}

// Answers returns what reports whether Get of a URL succeeds.
func Answers(url string) func() error {
	return func() error {
		_, err := Get(url)
		return err
	}
}

// FreePort returns a port of the loopback address that no process listens on. It is below those that the kernel gives
// to connections and to listeners without a port. No process of this user gets it again before 18,000 others, which a
// file counts: several packages of tests run at the same time, and the caller does not listen yet.
func FreePort() (port int, err error) {
	defer Catch(&err)
	const first, ports = 12_000, 18_000
	name := filepath.Join(os.TempDir(), fmt.Sprintf("pullgate-ports-%d", os.Getuid()), "last")
	defer Must(Lock(name + ".lock"))()
	text, _ := os.ReadFile(name) // absent at first
	last, _ := strconv.Atoi(string(text))
	for range 100 {
		last = (last + 1) % ports
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+last)); err == nil {
			Check(os.WriteFile(name, []byte(strconv.Itoa(last)), 0o600))
			return first + last, l.Close()
		}
	}
	return 0, err
}

// FreePorts returns some ports as FreePort does.
func FreePorts(n int) (ports []int, err error) {
	for len(ports) < n && err == nil {
		var p int
		if p, err = FreePort(); !slices.Contains(ports, p) {
			ports = append(ports, p)
		}
	}
	return ports, err
}

// OwnAddress returns an address of this machine that is not loopback, as nodes and endpoints of services must have.
func OwnAddress() (_ string, err error) {
	defer Catch(&err)
	for _, a := range Must(net.InterfaceAddrs()) {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return n.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no IPv4 address but loopback, which nodes and services cannot have")
}
