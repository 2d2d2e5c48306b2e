package e2e_test

import (
	"strings"
	"testing"

	"github.com/pullgate/pullgate/e2e/node"
)

// A proof is for a repository and an image: other tags and digests of the repository with the same
// image need no further proof, and the proof allows no other pod the image.
func TestNamesOfOneRepository(t *testing.T) { onEach(t, namesOfOneRepository) }

func namesOfOneRepository(t runtimeTest) {
	s, alice := begin(t), node.Alice()
	app := s.private("names/app:1", node.Image{})
	named := func(suffix string) node.Pushed {
		p := app
		p.Name = strings.TrimSuffix(app.Name, ":1") + suffix
		return p
	}
	s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
	for _, name := range []node.Pushed{named("@" + app.Digest), named(":1@" + app.Digest), named(":no-such-tag@" + app.Digest)} {
		s.run(pod("team-c", name, node.IfNotPresent, node.Alice()), name, node.Running, 0)
		s.run(pod("team-b", name, node.Never), name, node.NeverPulled, 0)
		// containerd looks for a digest among the manifests and then among the blobs.
		s.run(pod("team-b", name, node.IfNotPresent), name, node.PullFailed, 2)
	}

	// Another tag of the same image is not on the node under that name yet: every pod asks the
	// registry, and who has done so once has proved nothing new.
	s.must(app.Push(t.Context(), named(":2").Name, &alice))
	s.run(pod("team-b", named(":2"), node.IfNotPresent), app, node.PullFailed, 1)
	s.run(pod("team-a", named(":2"), node.IfNotPresent, node.Alice()), app, node.Running, -1)
	s.run(pod("team-c", named(":2"), node.IfNotPresent, node.Alice()), app, node.Running, 0)
	s.run(pod("team-b", named(":2"), node.Never), app, node.NeverPulled, 0)
	s.wantMetric(1, "pullgate_pull_records")

	// A name without a tag is the tag latest; the kubelet adds it in some calls and not in others.
	latest := s.private("names/bare:latest", node.Image{})
	bare := latest
	bare.Name = strings.TrimSuffix(latest.Name, ":latest")
	s.run(pod("team-a", bare, node.IfNotPresent, node.Alice()), bare, node.Running, -1)
	for _, name := range []node.Pushed{bare, latest} {
		s.run(pod("team-c", name, node.IfNotPresent, node.Alice()), name, node.Running, 0)
		s.run(pod("team-b", name, node.Never), name, node.NeverPulled, 0)
		s.run(pod("team-b", name, node.IfNotPresent), name, node.PullFailed, 1)
	}
}
