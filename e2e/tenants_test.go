package e2e_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/pullgate/pullgate/e2e/node"
)

// The control: without pullgate any tenant runs what another one's secret has pulled. If this does not
// hold, the rest proves nothing.
func TestUnprotectedRuntimeRunsAnyImage(t *testing.T) {
	onEach(t, unprotectedRuntimeRunsAnyImage)
}

func unprotectedRuntimeRunsAnyImage(t runtimeTest) {
	s := bare(t)
	s.k = s.dial(s.node.Containerd.Endpoint())
	app := s.private("control/app:1", node.Image{})
	s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
	s.run(pod("team-b", app, node.IfNotPresent), app, node.Running, 0)
	s.run(pod("team-b", app, node.Never), app, node.Running, 0)
	s.run(pod("team-b", app, node.Never, node.Mallory()), app, node.Running, 0)
}

func TestTenants(t *testing.T) { onEach(t, tenants) }

func tenants(t runtimeTest) {
	s := begin(t)
	app := s.private("tenants/app:1", node.Image{})
	other := s.private("tenants/other:1", node.Image{})

	s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
	s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
	s.run(pod("team-c", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)

	s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
	s.run(pod("team-b", app, node.Never, node.Mallory()), app, node.NeverPulled, 0)
	for _, secrets := range [][]node.Login{nil, {node.Mallory()}} {
		p := pod("team-b", app, node.IfNotPresent, secrets...)
		if o := s.run(p, app, node.PullFailed, -1); !strings.Contains(o.Text, "401 Unauthorized") && !strings.Contains(o.Text, "authorization failed") {
			t.Errorf("text = %q; want the registry's own reason", o.Text)
		}
	}
	// Standalone, Never runs only for a pod that has proved the image already.
	s.run(pod("team-a", app, node.Never, node.Alice()), app, node.NeverPulled, 0)
	p := pod("team-a", app, node.IfNotPresent, node.Alice())
	s.keep(p, app, node.Running, 0)
	p.Policy = node.Never
	s.keep(p, app, node.Running, 0)
	s.must(s.k.Remove(t.Context(), p))

	// Another valid credential is proved once, and then needs no registry.
	s.run(pod("team-d", app, node.IfNotPresent, node.Dora()), app, node.Running, 2)
	s.run(pod("team-d", app, node.IfNotPresent, node.Mallory(), node.Dora()), app, node.Running, -1)
	s.run(pod("team-d", app, node.IfNotPresent, node.Dora()), app, node.Running, 0)

	// Proof for one repository is none for another.
	s.run(pod("team-a", other, node.IfNotPresent, node.Alice()), other, node.Running, -1)
	s.run(pod("team-d", other, node.IfNotPresent, node.Dora()), other, node.Running, 2)

	s.wantMetric(0, "pullgate_pull_intents")
	s.wantMetric(2, "pullgate_pull_records")
	if got := s.metric("image_pull_secret_recheck_hit_count"); got < 4 {
		t.Errorf("image_pull_secret_recheck_hit = %v; want the starts without the registry", got)
	}
	if got := s.metric("image_pull_secret_recheck_miss_count", `outcome="denied"`); got < 2 {
		t.Errorf("image_pull_secret_recheck_miss denied = %v; want the refused ones", got)
	}
}

func TestPublicImageIsOpenAfterAnAnonymousPull(t *testing.T) {
	onEach(t, publicImageIsOpenAfterAnAnonymousPull)
}

func publicImageIsOpenAfterAnAnonymousPull(t runtimeTest) {
	s := begin(t)
	app := s.public("open/app:1", node.Image{})
	s.run(pod("team-a", app, node.IfNotPresent), app, node.Running, -1)
	s.run(pod("team-b", app, node.IfNotPresent), app, node.Running, 0)
	s.run(pod("team-b", app, node.Never), app, node.Running, 0)

	// First pulled with a secret that the registry does not care for: one anonymous pull opens it.
	tooled := s.public("open/tooled:1", node.Image{})
	s.run(pod("team-a", tooled, node.IfNotPresent, node.Alice()), tooled, node.Running, -1)
	s.run(pod("team-b", tooled, node.IfNotPresent), tooled, node.Running, 1)
	s.run(pod("team-b", tooled, node.Never), tooled, node.Running, 0)
}

// Two pulls of one image at once never share a result.
func TestConcurrentPullsOfGoodAndBadCredentials(t *testing.T) {
	onEach(t, concurrentPullsOfGoodAndBadCredentials)
}

func concurrentPullsOfGoodAndBadCredentials(t runtimeTest) {
	s := begin(t)
	app := s.private("concurrent/app:1", node.Image{})
	for round := range 15 {
		good := pod("good", app, node.IfNotPresent, node.Alice())
		bad := pod("bad", app, node.IfNotPresent, node.Mallory())
		s.must(s.k.Sandbox(t.Context(), good))
		s.must(s.k.Sandbox(t.Context(), bad))
		var wg sync.WaitGroup
		wg.Go(func() {
			if o := s.k.Start(t.Context(), good); o.State != node.Running {
				t.Errorf("round %d: good: %v; want Running", round, o)
			}
		})
		wg.Go(func() {
			if o := s.k.Start(t.Context(), bad); o.State != node.PullFailed {
				t.Errorf("round %d: bad: %v; want ErrImagePull", round, o)
			}
		})
		wg.Wait()
		s.must(s.k.Remove(t.Context(), good))
		s.must(s.k.Remove(t.Context(), bad))
		s.must(s.k.RemoveImage(t.Context(), app.Name))
	}
}

// The user of a container comes from an ImageStatus without annotations. If that were answered
// "absent" the container would silently run as root.
func TestContainersRunAsTheUserOfTheImage(t *testing.T) { onEach(t, containersRunAsTheUserOfTheImage) }

func containersRunAsTheUserOfTheImage(t runtimeTest) {
	s := begin(t)
	for user, uid := range map[string]string{"4711": "4711", "app": "4711", "": "0"} {
		app := s.private("user/app-"+user+"x:1", node.Image{User: user})
		for _, policy := range []string{node.IfNotPresent, node.Always} {
			p := pod("team-a", app, policy, node.Alice())
			s.keep(p, app, node.Running, -1)
			out, err := s.k.Output(t.Context(), p, 2)
			s.must(err)
			if !strings.HasSuffix(out, "\n"+uid) {
				t.Errorf("USER %q, %s: container printed %q; want uid %s", user, policy, out, uid)
			}
			s.must(s.k.Remove(t.Context(), p))
		}
	}
}
