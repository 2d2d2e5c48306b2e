package e2e_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// The answer to a pull is lost, because the client cancels or because its connection breaks, at any
// moment of the pull; containerd may complete it a little later. After that the image on the node needs
// proof. 200 repetitions.
// Shows: 001-28
func TestLostAnswersLeaveAnImageThatNeedsProof(t *testing.T) {
	onEach(t, func(t runtimeTest) {
		s := begin(t)
		app := s.private("lost/app:1", node.Image{})
		thief := pod("team-b", app, node.Never)
		s.must(s.k.Sandbox(t.Context(), thief))
		owner := pod("team-a", app, node.IfNotPresent, node.Alice())
		s.must(s.k.Sandbox(t.Context(), owner))

		const rounds = 200
		landed := 0
		longest := 90 * time.Millisecond // follows the duration of a pull, which depends on the machine
		for round := range rounds {
			after := rand.N(longest)
			if round%2 == 0 {
				s.pullAndCancel(owner, after)
			} else {
				s.pullAndHangUp(owner, after)
			}
			// containerd has been seen to complete a pull 14 ms after its client had gone.
			for end := time.Now().Add(30 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				id, err := s.k.Precheck(t.Context(), thief)
				if id != "" || err != nil {
					t.Fatalf("round %d, lost after %v: the thief's pre-check = %q, %v; want the empty answer", round, after, id, err)
				}
			}
			present, err := s.k.HasImage(t.Context(), app.Name)
			if s.must(err); present {
				landed++
				longest -= longest / 8
				if o := s.k.Start(t.Context(), thief); o.State != node.NeverPulled {
					t.Fatalf("round %d, lost after %v: %v; want ErrImageNeverPull", round, after, o)
				}
			}
			longest += longest / 50
			if round%40 == 39 {
				s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, -1)
			}
			s.must(s.k.RemoveImage(t.Context(), app.Name)) // which may not be there
		}
		t.Logf("in %d of %d rounds the image was there afterwards", landed, rounds)
		if landed == 0 || landed == rounds {
			t.Errorf("the image landed in %d of %d rounds; want both kinds, or the moments are badly chosen", landed, rounds)
		}

		// A scan at the next start does not take it for preloaded either.
		s.pullAndCancel(owner, 20*time.Millisecond)
		direct := s.dial(s.node.Containerd.Endpoint())
		o := direct.Pull(t.Context(), owner) // as if containerd had completed it
		if o.State != node.Running {
			t.Fatalf("pull behind pullgated's back: %v", o)
		}
		s.must(s.gate.Restart(t.Context()))
		s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
		s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, 1)
		s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
	})
}

func (s *suite) pullAndCancel(p *node.Pod, after time.Duration) {
	ctx, cancel := context.WithTimeout(s.Context(), after)
	defer cancel()
	s.k.Pull(ctx, p)
}

func (s *suite) pullAndHangUp(p *node.Pod, after time.Duration) {
	s.Helper()
	k := testkit.Value(node.NewKubelet(s.Context(), s.gate.Endpoint()))(s)
	var pull sync.WaitGroup
	pull.Go(func() { k.Pull(s.Context(), p) })
	time.Sleep(after)
	k.Close()
	pull.Wait()
}

// killedPull has a pod pull, and kills while the registry holds a blob back, until release is called.
func (s *suite) killedPull(p *node.Pod, kill func() error) (release func()) {
	s.Helper()
	s.must(s.k.Sandbox(s.Context(), p))
	asked, release := s.node.Private.HoldBlobs()
	s.Cleanup(release)
	pulled := make(chan node.Outcome, 1)
	go func() { pulled <- s.k.EnsureImage(s.Context(), p) }()
	<-asked
	s.must(kill())
	if o := <-pulled; o.State == node.Running {
		s.Errorf("the kubelet got %v for a pull that was killed", o)
	}
	return release
}

// pullgated is killed while the registry holds a blob back. Whenever containerd gets it, the image needs proof.
func TestKilledInTheMiddleOfAPull(t *testing.T) {
	onEach(t, func(t runtimeTest) {
		for _, when := range []string{"before", "after"} {
			t.run("released "+when+" the restart", func(t runtimeTest) {
				s := begin(t)
				app := s.private("killed/app-"+when+":1", node.Image{})
				owner := pod("team-a", app, node.IfNotPresent, node.Alice())
				release := s.killedPull(owner, s.gate.Kill)
				if when == "before" {
					answered := s.node.Private.Mark()
					release() // containerd may have given up
					host.Within(5*time.Second, func() bool { return s.node.Private.Mark() > answered })
				}
				s.must(s.gate.Start(t.Context()))
				release()
				s.wantMetric(1, "pullgate_pull_intents")
				s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
				s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, 1)
				s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
				s.run(pod("team-c", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
				s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
				s.must(s.k.Remove(t.Context(), owner))
			})
		}
	})
}
