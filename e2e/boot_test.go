package e2e_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/e2e/node"
)

// pullgated starts before its runtime: it serves at once, calls fail without a delay, and the steps of a first
// start are done when the runtime is reached.
func TestStartsBeforeTheRuntime(t *testing.T) { onEach(t, startsBeforeTheRuntime) }

func startsBeforeTheRuntime(t runtimeTest) {
	b := bare(t)
	pre := b.private("boot/pre:1", node.Image{})
	b.imported(pre)
	s := begin(t, "untrackedImages: Verify")
	s.must(s.node.Containerd.Stop())
	s.must(s.gate.Stop())
	s.forget() // as if it had never run
	s.must(s.gate.Start(t.Context()))
	p := pod("team-b", pre, node.Never)
	began := time.Now()
	if err := s.k.Sandbox(t.Context(), p); status.Code(err) != codes.Unavailable {
		t.Errorf("RunPodSandbox without a runtime = %v; want Unavailable", err)
	}
	// The client's own connection was broken by the restart too, and waits a second or more.
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v to fail; want it to fail fast", took)
	}
	if err := s.gate.Ready(); err == nil {
		t.Error("/readyz without a runtime = ok; want not ready")
	}
	s.must(s.node.Containerd.Start(t.Context()))
	s.back(2 * time.Second)
	s.run(pod("team-b", pre, node.Never), pre, node.Running, 0)
	s.ready(10 * time.Second)
	later := s.private("boot/later:1", node.Image{})
	s.imported(later)
	s.run(pod("team-b", later, node.Never), later, node.NeverPulled, 0)
}

// Everything on the node is killed at once, as by a power cut, while one pod runs and another pulls.
func TestEveryProcessIsKilledAtOnce(t *testing.T) { onEach(t, everythingIsKilledAtOnce) }

func everythingIsKilledAtOnce(t runtimeTest) {
	s := begin(t)
	app, next := s.private("cut/app:1", node.Image{}), s.private("cut/next:1", node.Image{})
	s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
	owner := pod("team-a", next, node.IfNotPresent, node.Alice())
	release := s.killedPull(owner, func() error { return errors.Join(s.gate.Kill(), s.node.Containerd.Kill()) })
	release()
	s.must(s.node.Containerd.Start(t.Context()))
	s.must(s.gate.Start(t.Context()))
	s.back(5 * time.Second)
	s.wantMetric(1, "pullgate_pull_intents")
	s.must(s.node.Private.Down())
	s.run(pod("team-c", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
	s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
	s.must(s.node.Private.Up())
	s.run(pod("team-b", next, node.IfNotPresent), next, node.PullFailed, 1)
	s.run(pod("team-a", next, node.IfNotPresent, node.Alice()), next, node.Running, -1)
	s.run(pod("team-b", next, node.Never), next, node.NeverPulled, 0)
	s.wantMetric(1, "pullgate_pull_intents") // a later success settles no lost pull
	s.must(s.k.Remove(t.Context(), owner))
}
