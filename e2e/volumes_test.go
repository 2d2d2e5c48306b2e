package e2e_test

import (
	"strings"
	"testing"

	"github.com/pullgate/pullgate/e2e/node"
)

// An image that is mounted is judged as one that is run: at its pre-check, and again with every
// container that mounts it.
func TestImageVolumes(t *testing.T) { on(t, imageVolumes, containerd24) }

func imageVolumes(t runtimeTest) {
	s := begin(t)
	app := s.public("volumes/app:1", node.Image{Entrypoint: []string{"/bin/sh", "-c", "cat /volume0/content; exec sleep 3600"}})
	data := s.private("volumes/data:1", node.Image{Content: "the data of team A"})
	mounts := func(namespace, policy string, secrets ...node.Login) *node.Pod {
		p := pod(namespace, app, policy, secrets...)
		p.Mounts = []string{data.Name}
		return p
	}
	s.run(pod("team-b", app, node.IfNotPresent), app, node.Running, -1)

	owner := mounts("team-a", node.IfNotPresent, node.Alice())
	s.keep(owner, data, node.Running, -1)
	if out, err := s.k.Output(t.Context(), owner, 1); err != nil || out != "the data of team A" {
		t.Errorf("container of the owner printed %q, %v; want what the volume holds", out, err)
	}
	s.keep(owner, data, node.Running, 0)
	s.must(s.k.Remove(t.Context(), owner))
	s.run(mounts("team-c", node.IfNotPresent, node.Alice()), data, node.Running, 0)

	// The control, for a pod that has no proof.
	direct := s.dial(s.node.Containerd.Endpoint())
	control := mounts("team-b", node.Never)
	if o := direct.Run(t.Context(), control); o.State != node.Running {
		t.Fatalf("control: %v; want Running", o)
	}
	s.must(direct.Remove(t.Context(), control))

	s.run(mounts("team-b", node.Never), data, node.NeverPulled, 0)
	s.run(mounts("team-b", node.IfNotPresent), data, node.PullFailed, 1)
	s.run(mounts("team-b", node.IfNotPresent, node.Mallory()), data, node.PullFailed, -1)

	// Past the pre-check of the volume, as if its answer had been another.
	past := mounts("team-b", node.IfNotPresent)
	s.must(s.k.Sandbox(t.Context(), past))
	o := s.k.EnsureImage(t.Context(), past)
	if o = s.k.Create(t.Context(), past, o); o.State != node.CreateFailed || !strings.Contains(o.Text, "PermissionDenied") {
		t.Errorf("container with a volume of team A = %v; want PermissionDenied", o)
	}
	if left := containersOf(s, direct, past); len(left) > 0 {
		t.Errorf("containers were created in spite of it: %v", left)
	}
	s.must(s.k.Remove(t.Context(), past))
}
