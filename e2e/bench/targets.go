package main

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
	"syscall"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A target is what a client connects to.
type target struct {
	name    string
	version string
	process *exec.Cmd // nil: the runtime itself
	conn    *grpc.ClientConn
}

// start starts the runtime and the targets before it.
func start(ctx context.Context, dir string, o options) (targets []*target, closeAll func() error, err error) {
	socket := func(name string) string { return filepath.Join(dir, name+".sock") }
	var processes []*exec.Cmd
	closeAll = func() error {
		var err error
		for _, t := range targets {
			err = errors.Join(err, t.conn.Close())
		}
		for _, p := range processes {
			_ = p.Process.Signal(syscall.SIGTERM)
			_ = p.Wait() // ended by the signal
		}
		return err
	}
	launch := func(name, program string, args ...string) (*exec.Cmd, error) {
		p := exec.CommandContext(ctx, program, args...)
		p.Stderr = os.Stderr
		if name != "" {
			p.Stderr = nil
		}
		if err := p.Start(); err != nil {
			return nil, fmt.Errorf("start %s: %w", program, err)
		}
		processes = append(processes, p)
		return p, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, closeAll, err
	}
	if _, err := launch("", self, "serve", "runtime", socket("runtime"), "0"); err != nil {
		return nil, closeAll, err
	}
	add := func(name, version, at string, p *exec.Cmd) error {
		conn, err := dial(at)
		if err != nil {
			return err
		}
		targets = append(targets, &target{name, version, p, conn})
		return await(ctx, at)
	}
	if err := add(direct, "", socket("runtime"), nil); err != nil {
		return targets, closeAll, err
	}
	for _, t := range others(dir, self, socket, o) {
		if o.through != "" && !slices.Contains(strings.Split(o.through, ","), t.name) {
			continue
		}
		if t.config != "" {
			if err := os.WriteFile(filepath.Join(dir, t.name+".conf"), []byte(t.config), 0o600); err != nil {
				return targets, closeAll, err
			}
		}
		p, err := launch(t.name, t.program, t.args...)
		if err != nil {
			return targets, closeAll, err
		}
		if err := add(t.name, versionOf(ctx, t.program, t.version), socket(t.name), p); err != nil {
			return targets, closeAll, err
		}
	}
	return targets, closeAll, nil
}

// dial connects to a socket, with messages as bytes.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(criproxytest.RawCodec{}), grpc.MaxCallRecvMsgSize(limit)))
}

// A recipe is how a target is started.
type recipe struct {
	name, program string
	args          []string
	config        string
	version       []string
}

func others(dir, self string, socket func(string) string, o options) []recipe {
	conf := func(name string) string { return filepath.Join(dir, name+".conf") }
	all := []recipe{
		{"splice", self, []string{"serve", "splice", socket("splice"), socket("runtime")}, "", nil},
		{"mwitkow", self, []string{"serve", "mwitkow", socket("mwitkow"), socket("runtime")}, "", nil},
		{"siderolabs", self, []string{"serve", "siderolabs", socket("siderolabs"), socket("runtime")}, "", nil},
	}
	if o.pullgated != "" {
		all = append(all, recipe{
			"pullgated", o.pullgated,
			[]string{"--config", conf("pullgated")},
			"apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\nlisten: unix://" + socket("pullgated") + "\nruntimeEndpoint: unix://" + socket("runtime") +
				"\nstateDir: " + dir + "/state\nmetrics: {listen: \"\"}\nadmin: {listen: \"\"}\n",
			[]string{"--version"},
		})
	}
	return all
}

func versionOf(ctx context.Context, program string, args []string) string {
	if args == nil {
		return ""
	}
	out, _ := exec.CommandContext(ctx, program, args...).CombinedOutput()
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(first)
}

// await waits until a socket accepts connections.
func await(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return c.Close()
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", socket, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// used returns what a target has used so far; nothing for the direct connection.
func (t *target) used() (u host.Usage) {
	if t.process != nil {
		u, _ = host.UsageOf(t.process.Process.Pid)
	}
	return u
}
