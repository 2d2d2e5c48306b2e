package e2e_test

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// A runtime may answer a pull with a repo digest instead of the image's ID, as CRI-O did up to 1.35.1. What a pod
// pulled is recorded for the image all the same, so no other pod uses it without a proof of its own.
func TestRuntimeThatAnswersWithARepoDigest(t *testing.T) {
	onEach(t, runtimeThatAnswersWithARepoDigest)
}

func runtimeThatAnswersWithARepoDigest(t runtimeTest) {
	s, shim := behindShim(t, node.DigestAnswers())
	app := s.private("digest/app:1", node.Image{})
	alice := node.Alice()

	// The control: the shim answers as it should, and without pullgated any tenant runs the image.
	control := s.private("digest/control:1", node.Image{})
	direct := s.dial(shim)
	ref, err := direct.Images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: control.Name}, &runtimeapi.AuthConfig{Username: alice.Username, Password: alice.Password}, nil)
	if err != nil || !strings.Contains(ref, "@sha256:") {
		t.Fatalf("control: the runtime answers the pull with %q, %v; want a repo digest", ref, err)
	}
	other := pod("team-b", control, node.Never)
	if o := direct.Run(t.Context(), other); o.State != node.Running {
		t.Fatalf("control: without pullgated another tenant's pod is %v; want it running", o)
	}
	s.must(direct.Remove(t.Context(), other))

	owner := pod("team-a", app, node.IfNotPresent, alice)
	s.keep(owner, app, node.Running, -1)
	for range 2 {
		s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
		s.run(pod("team-b", app, node.Never, node.Mallory()), app, node.NeverPulled, 0)
		s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, -1)
		s.run(pod("team-b", app, node.IfNotPresent, node.Mallory()), app, node.PullFailed, -1)
	}
	thief := pod("team-b", app, node.Never)
	s.must(s.k.Sandbox(t.Context(), thief))
	if o := s.k.Create(t.Context(), thief, node.Outcome{ImageID: app.ID}); !strings.Contains(o.Text, "PermissionDenied") {
		t.Errorf("another tenant's container = %v; want PermissionDenied", o)
	}
	s.must(s.k.Remove(t.Context(), thief))

	// Who proved the image uses it without the registry.
	s.keep(owner, app, node.Running, 0)
	s.run(pod("team-c", app, node.IfNotPresent, alice), app, node.Running, 0)
	s.must(s.k.Remove(t.Context(), owner))
	s.wantMetric(0, "pullgate_pulls_unresolved_total")
	s.wantMetric(1, "pullgate_pull_records")
	s.wantMetric(0, "pullgate_pull_intents")
}
