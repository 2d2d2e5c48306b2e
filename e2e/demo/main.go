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

	"github.com/pullgate/pullgate/e2e/host"
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

type demo struct {
	ctx     context.Context //nolint:containedctx // ends the program
	node    *node.Node
	gate    *node.Pullgated
	app     node.Pushed
	kubelet *node.Kubelet
	rows    [][4]string
	failed  int
}

func run(ctx context.Context) (err error) {
	began := time.Now()
	fmt.Println("Starting a containerd and two registries of our own; the machine's own runtime is not used …")
	n, err := node.New(ctx, node.Options{})
	if err != nil {
		return err
	}
	s := &demo{ctx: ctx, node: n}
	defer func() {
		fmt.Println("\nCleaning up …")
		if s.kubelet != nil {
			s.kubelet.Close()
		}
		err = errors.Join(err, n.Close())
	}()
	defer host.Catch(&err)
	s.app = host.Must(n.Private.Push(ctx, "team-a/app:1", node.Image{Content: "the secret program of team A"}))
	fmt.Printf("Team A has pushed %s; the registry asks for a credential.\n", s.app.Name)
	for _, part := range []func(){s.unprotected, s.protected, s.outage, s.crash, s.shadow} {
		part()
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

func (s *demo) dial(endpoint string) {
	k := host.Must(node.NewKubelet(s.ctx, endpoint))
	if s.kubelet != nil {
		s.kubelet.Close()
	}
	s.kubelet = k
}

func (s *demo) unprotected() {
	chapter("1. Without pullgate: the kubelet talks to containerd")
	s.dial(s.node.Containerd.Endpoint())
	s.step("control: A pulls with its secret", s.owner(node.IfNotPresent), node.Running, download)
	s.step("control: B without a secret, IfNotPresent", s.thief(node.IfNotPresent), node.Running, nothing)
	s.step("control: B without a secret, Never", s.thief(node.Never), node.Running, nothing)
	fmt.Println("\n  B runs the program of A, and the registry was never asked.")
	host.Check(s.kubelet.RemoveImage(s.ctx, s.app.Name)) // the next chapter begins without it
}

func (s *demo) protected() {
	chapter("2. With pullgate between them")
	s.gate = host.Must(s.node.Protect(s.ctx, s.node.Containerd.Endpoint()))
	s.dial(s.gate.Endpoint())
	s.step("A pulls with its secret", s.owner(node.IfNotPresent), node.Running, download)
	s.step("B without a secret, IfNotPresent", s.thief(node.IfNotPresent), node.PullFailed, refusals)
	s.step("B without a secret, Never", s.thief(node.Never), node.NeverPulled, nothing)
	s.step("C, the same credential in another secret", s.partner(node.IfNotPresent), node.Running, nothing)
	s.step("B with a wrong credential", s.thief(node.IfNotPresent, node.Mallory()), node.PullFailed, refusals)
}

func (s *demo) outage() {
	chapter("3. The registry is stopped")
	host.Check(s.node.Private.Down())
	s.step("outage: A starts", s.owner(node.IfNotPresent), node.Running, nothing)
	s.step("outage: C starts", s.partner(node.IfNotPresent), node.Running, nothing)
	s.step("outage: B does not", s.thief(node.IfNotPresent, node.Mallory()), node.PullFailed, nothing)
	host.Check(s.node.Private.Up())
}

func (s *demo) crash() {
	chapter("4. pullgated is killed in the middle of a pull")
	next := node.Image{Content: "the next program of team A"}
	s.app = host.Must(s.node.Private.Push(s.ctx, "team-a/app:2", next))
	owner := s.owner(node.IfNotPresent)
	host.Check(s.kubelet.Sandbox(s.ctx, owner))
	asked, release := s.node.Private.HoldBlobs()
	defer release()
	pulled := make(chan node.Outcome, 1)
	go func() { pulled <- s.kubelet.EnsureImage(s.ctx, owner) }()
	limit, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	select {
	case <-asked:
	case <-limit.Done():
		host.Check(errors.New("no blob was asked for within a minute"))
	}
	host.Check(s.gate.Kill())
	o := <-pulled
	s.check("SIGKILL while the registry holds a blob back", "the kubelet sees "+o.String(), o.State == node.PullFailed)
	release()
	// Whether containerd completes the pull by itself is a matter of milliseconds.
	direct := host.Must(node.NewKubelet(s.ctx, s.node.Containerd.Endpoint()))
	defer direct.Close()
	o = direct.Pull(s.ctx, owner)
	s.check("meanwhile: the pull is completed behind its back",
		"containerd has the image now, and pullgated no record of who proved it", o.State == node.Running)
	host.Check(s.gate.Start(s.ctx))
	s.dial(s.gate.Endpoint())
	s.step("restarted: B still needs proof, Never", s.thief(node.Never), node.NeverPulled, nothing)
	s.step("restarted: B still needs proof, IfNotPresent", s.thief(node.IfNotPresent), node.PullFailed, refusals)
	s.step("restarted: A proves it and runs", s.owner(node.IfNotPresent), node.Running, question)
	host.Check(s.kubelet.Remove(s.ctx, owner))
}

func (s *demo) shadow() {
	chapter("5. noPullImageSecretRecheck: true, the shadow mode")
	host.Check(s.gate.Restart(s.ctx, "noPullImageSecretRecheck: true"))
	s.dial(s.gate.Endpoint())
	s.step("shadow: B runs, as without pullgate", s.thief(node.IfNotPresent), node.Running, nothing)
	missed := host.Must(s.gate.Metric("image_pull_secret_recheck_miss_count", `outcome="unverified"`))
	s.check("shadow: it is counted as one that would need proof",
		fmt.Sprintf("image_pull_secret_recheck_miss{outcome=\"unverified\"} = %v", missed), missed == 1)
}
