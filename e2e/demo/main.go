// Command demo shows what pullgate does, on a real containerd with a real registry and real containers:
// the same steps without pullgate and with it. It ends with a table, and with exit code 1
// if a step did not end as expected.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pullgate/pullgate/e2e/node"
)

func main() {
	// It cleans up on every end, also if the reader of its output closes the pipe.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// A demo is one run of the program.
type demo struct {
	node    *node.Node
	gate    *node.Pullgated
	app     node.Pushed
	kubelet *node.Kubelet
	rows    [][4]string
	failed  int
}

func run(ctx context.Context) (err error) {
	if err := node.Check(); err != nil {
		return err
	}
	began := time.Now()
	fmt.Println("Starting a containerd and two registries of our own; the machine's own runtime is not used …")
	n, err := node.New(ctx, node.Options{})
	if err != nil {
		return err
	}
	s := &demo{node: n}
	defer func() {
		fmt.Println("\nCleaning up …")
		if s.kubelet != nil {
			s.kubelet.Close()
		}
		err = errors.Join(err, n.Close())
	}()
	if s.app, err = n.PushPrivate(ctx, "team-a/app:1", node.Image{Content: "the secret program of team A"}); err != nil {
		return err
	}
	fmt.Printf("Team A has pushed %s; the registry asks for a credential.\n", s.app.Name)
	for _, part := range []func(context.Context) error{s.unprotected, s.protected, s.outage, s.crash, s.shadow} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	s.table(time.Since(began))
	if s.failed > 0 {
		return fmt.Errorf("%d steps did not end as expected", s.failed)
	}
	return nil
}

func (s *demo) pod(namespace, name, policy string, secrets ...node.Login) *node.Pod {
	return &node.Pod{Namespace: namespace, Name: name, Image: s.app.Name, Policy: policy, Secrets: secrets}
}

// owner is a pod of team A, with its secret, partner one of team C with the same credential, and thief one of team B.
func (s *demo) owner(policy string) *node.Pod { return s.pod("team-a", "owner", policy, node.Alice()) }

func (s *demo) partner(policy string) *node.Pod {
	return s.pod("team-c", "partner", policy, node.Alice())
}

func (s *demo) thief(policy string, secrets ...node.Login) *node.Pod {
	return s.pod("team-b", "thief", policy, secrets...)
}

func (s *demo) dial(ctx context.Context, endpoint string) error {
	k, err := node.NewKubelet(ctx, endpoint)
	if err != nil {
		return err
	}
	if s.kubelet != nil {
		s.kubelet.Close()
	}
	s.kubelet = k
	return nil
}

func (s *demo) unprotected(ctx context.Context) error {
	chapter("1. Without pullgate: the kubelet talks to containerd")
	if err := s.dial(ctx, s.node.Containerd.Endpoint()); err != nil {
		return err
	}
	s.step(ctx, "control: A pulls with its secret", s.owner(node.IfNotPresent), node.Running, download)
	s.step(ctx, "control: B without a secret, IfNotPresent", s.thief(node.IfNotPresent), node.Running, nothing)
	s.step(ctx, "control: B without a secret, Never", s.thief(node.Never), node.Running, nothing)
	fmt.Println("\n  B runs the program of A, and the registry was never asked.")
	return s.kubelet.RemoveImage(ctx, s.app.Name) // the next chapter begins without it
}

func (s *demo) protected(ctx context.Context) (err error) {
	chapter("2. With pullgate between them")
	if s.gate, err = s.node.Protect(ctx); err != nil {
		return err
	}
	if err := s.dial(ctx, s.gate.Endpoint()); err != nil {
		return err
	}
	s.step(ctx, "A pulls with its secret", s.owner(node.IfNotPresent), node.Running, download)
	s.step(ctx, "B without a secret, IfNotPresent", s.thief(node.IfNotPresent), node.PullFailed, refusals)
	s.step(ctx, "B without a secret, Never", s.thief(node.Never), node.NeverPulled, nothing)
	s.step(ctx, "C, the same credential in another secret", s.partner(node.IfNotPresent), node.Running, nothing)
	s.step(ctx, "B with a wrong credential", s.thief(node.IfNotPresent, node.Mallory()), node.PullFailed, refusals)
	return nil
}

func (s *demo) outage(ctx context.Context) error {
	chapter("3. The registry is stopped")
	if err := s.node.Private.Down(); err != nil {
		return err
	}
	s.step(ctx, "outage: A starts", s.owner(node.IfNotPresent), node.Running, nothing)
	s.step(ctx, "outage: C starts", s.partner(node.IfNotPresent), node.Running, nothing)
	s.step(ctx, "outage: B does not", s.thief(node.IfNotPresent, node.Mallory()), node.PullFailed, nothing)
	return s.node.Private.Up()
}

func (s *demo) crash(ctx context.Context) (err error) {
	chapter("4. pullgated is killed in the middle of a pull")
	next := node.Image{Content: "the next program of team A"}
	if s.app, err = s.node.PushPrivate(ctx, "team-a/app:2", next); err != nil {
		return err
	}
	owner := s.owner(node.IfNotPresent)
	if err := s.kubelet.Sandbox(ctx, owner); err != nil {
		return err
	}
	asked, release := s.node.Private.HoldBlobs()
	defer release()
	pulled := make(chan node.Outcome, 1)
	go func() { pulled <- s.kubelet.EnsureImage(ctx, owner) }()
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case <-asked:
	case <-limit.Done():
		return errors.New("no blob was asked for within a minute")
	}
	if err := s.gate.Kill(); err != nil {
		return err
	}
	o := <-pulled
	s.check("SIGKILL while the registry holds a blob back", "the kubelet sees "+o.String(), o.State == node.PullFailed)
	release()
	// Whether containerd completes the pull by itself is a matter of milliseconds.
	direct, err := node.NewKubelet(ctx, s.node.Containerd.Endpoint())
	if err != nil {
		return err
	}
	defer direct.Close()
	o = direct.Pull(ctx, owner)
	s.check("meanwhile: the pull is completed behind its back",
		"containerd has the image now, and pullgated no record of who proved it", o.State == node.Running)
	if err := s.gate.Start(ctx); err != nil {
		return err
	}
	if err := s.dial(ctx, s.gate.Endpoint()); err != nil {
		return err
	}
	s.step(ctx, "restarted: B still needs proof, Never", s.thief(node.Never), node.NeverPulled, nothing)
	s.step(ctx, "restarted: B still needs proof, IfNotPresent", s.thief(node.IfNotPresent), node.PullFailed, refusals)
	s.step(ctx, "restarted: A proves it and runs", s.owner(node.IfNotPresent), node.Running, question)
	return s.kubelet.Remove(ctx, owner)
}

func (s *demo) shadow(ctx context.Context) error {
	chapter("5. noPullImageSecretRecheck: true, the shadow mode")
	if err := s.gate.Restart(ctx, "noPullImageSecretRecheck: true"); err != nil {
		return err
	}
	if err := s.dial(ctx, s.gate.Endpoint()); err != nil {
		return err
	}
	s.step(ctx, "shadow: B runs, as without pullgate", s.thief(node.IfNotPresent), node.Running, nothing)
	missed, err := s.gate.Metric("image_pull_secret_recheck_miss_count", `outcome="unverified"`)
	if err != nil {
		return err
	}
	s.check("shadow: it is counted as one that would need proof",
		fmt.Sprintf("image_pull_secret_recheck_miss{outcome=\"unverified\"} = %v", missed), missed == 1)
	return nil
}
