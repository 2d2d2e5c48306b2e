package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// A checkpoint image makes some containerds create a container on the image that the checkpoint names,
// not on the one that was asked for. The tenant only has to know the digest of a manifest that is on the
// node: a registry of its own reports that it has it, and nothing is fetched.
func TestCheckpointImageNamesAnotherImage(t *testing.T) {
	on(t, func(t runtimeTest) {
		restores := t.restores()
		s := begin(t)
		direct := s.dial(s.node.Containerd.Endpoint())
		app := s.private("checkpoint/app:1", node.Image{})
		owner := pod("team-a", app, node.IfNotPresent, node.Alice())
		s.keep(owner, app, node.Running, -1)

		s.claim("evil/base", app.Digest)
		base := s.node.Public.Host() + "/evil/base@" + app.Digest
		bait := s.public("evil/bait:1", checkpoint("bait", base, base))
		trap := s.public("evil/checkpoint:1", checkpoint("trap", base, base))

		// The control: asked directly, containerd creates a container of team B on team A's image.
		thief := pod("team-b", bait, node.IfNotPresent)
		s.must(direct.Sandbox(t.Context(), thief))
		o := s.asked(app, 0, func() node.Outcome { return direct.Start(t.Context(), thief) })
		created := imageOf(s, direct, o.Container)
		if restores && created != app.ID {
			t.Fatalf("control: container is on %s, %v; want %s, the image of team A", created, o, app.ID)
		}
		if !restores && created != bait.ID {
			t.Fatalf("control: container is on %s, %v; want %s, the image asked for", created, o, bait.ID)
		}
		s.must(direct.Remove(t.Context(), thief))

		// Through pullgated the gate forwards the creation, because the image asked for is public. The container is restored.
		thief = pod("team-b", trap, node.IfNotPresent)
		s.must(s.k.Sandbox(t.Context(), thief))
		o = s.asked(app, 0, func() node.Outcome { return s.k.Start(t.Context(), thief) })
		if restores {
			if o.State != node.CreateFailed || !strings.Contains(o.Text, "PermissionDenied") {
				t.Errorf("checkpoint image of team B: %v; want CreateContainerError with PermissionDenied", o)
			}
			if left := containersOf(s, direct, thief); len(left) > 0 {
				t.Errorf("denied containers are still there: %v", left)
			}
			s.wantMetric(1, "pullgate_denials_total", `call="CreateContainer"`)
			s.wantMetric(1, "pullgate_container_creations_refused_total", `reason="restored"`)
		} else if got := imageOf(s, s.k, o.Container); got != trap.ID {
			t.Errorf("checkpoint image of team B: %v on %s; want a container on itself", o, got)
		}
		s.must(s.k.Remove(t.Context(), thief))

		// containerd has given team A's image another name meanwhile. Neither opens it.
		s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
		s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, 1)
		other := node.Pushed{Built: app.Built, Name: base, Repository: "evil/base"}
		s.run(pod("team-b", other, node.Never), app, node.NeverPulled, 0)

		// The owner may use the image, and may not restore a checkpoint of it either.
		own := *owner
		own.Image = trap.Name
		if o := s.k.Start(t.Context(), &own); restores && o.State != node.CreateFailed {
			t.Errorf("checkpoint image of team A: %v; want CreateContainerError", o)
		}
		s.must(s.k.Remove(t.Context(), owner))
	}, debian, containerd21, containerd22, containerd24)
}

// With allowRestores the image that the runtime reports is judged. Without criu the container does not start.
func TestCheckpointImageWithAllowRestores(t *testing.T) {
	on(t, func(t runtimeTest) {
		s := begin(t, "allowRestores: true")
		app := s.private("allowed/app:1", node.Image{})
		owner := pod("team-a", app, node.IfNotPresent, node.Alice())
		s.keep(owner, app, node.Running, -1)
		s.claim("allowed/base", app.Digest)
		base := s.node.Public.Host() + "/allowed/base@" + app.Digest
		trap := s.public("allowed/checkpoint:1", checkpoint("trap", base, base))
		s.restore(s.k, trap, func(o node.Outcome) {
			if o.State != node.CreateFailed || !strings.Contains(o.Text, "PermissionDenied") {
				t.Errorf("checkpoint image of team B: %v; want CreateContainerError with PermissionDenied", o)
			}
		})
		own := *owner
		own.Image = trap.Name
		if o := s.k.Start(t.Context(), &own); o.State == node.CreateFailed || imageOf(s, s.k, o.Container) != app.ID {
			t.Errorf("checkpoint image of team A: %v; want a container on %s", o, app.ID)
		}
		s.must(s.k.Remove(t.Context(), owner))
	}, containerd21)
}

// claim makes the public registry report a manifest of a repository that does not have it.
func (s *suite) claim(repository, digest string) {
	s.Helper()
	path := "/v2/" + repository + "/manifests/" + digest
	s.node.Public.Fault(func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodHead || req.URL.Path != path {
			return false
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Header().Set("Docker-Content-Digest", digest)
		w.Header().Set("Content-Length", "1234")
		return true
	})
	s.Cleanup(func() { s.node.Public.Fault(nil) })
}

// checkpoint is an image that claims to be the checkpoint of a container on one image, which is to get a name.
func checkpoint(content, base, name string) node.Image {
	dump := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			panic(fmt.Sprintf("encode %v: %v", v, err))
		}
		return string(text)
	}
	return node.Image{
		Content:     content + " on " + base + " as " + name,
		Annotations: map[string]string{"org.criu.checkpoint.container.name": "main"},
		Files: map[string]string{
			"spec.dump":   dump(map[string]any{"ociVersion": "1.0.0", "annotations": map[string]string{}}),
			"config.dump": dump(map[string]string{"rootfsImageName": name, "rootfsImageRef": base, "name": "main"}),
			"status.dump": dump(map[string]any{
				"metadata": map[string]string{"name": "main"}, "image": map[string]string{"image": base},
				"annotations": map[string]string{"made": "up"}, "labels": map[string]string{"made": "up"},
			}),
		},
	}
}

func imageOf(s *suite, k *node.Kubelet, container string) string {
	s.Helper()
	if container == "" {
		return ""
	}
	status := testkit.Value(k.Runtime.ContainerStatus(s.Context(), container, false))(s)
	return s.idUnder(k, status.GetStatus().GetImageRef())
}

func containersOf(s *suite, k *node.Kubelet, p *node.Pod) []*runtimeapi.Container {
	s.Helper()
	all, err := k.Runtime.ListContainers(s.Context(), &runtimeapi.ContainerFilter{PodSandboxId: p.SandboxID()})
	s.must(err)
	return all
}
