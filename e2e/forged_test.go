package e2e_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// restores reports whether the containerd restores checkpoint images; to the others one is an ordinary image.
func (t runtimeTest) restores() bool {
	return t.containerd == containerd21 || t.containerd == containerd22
}

// forges reports whether a checkpoint can give any image of the node any name. docs/design/0022 has the versions.
func (t runtimeTest) forges() bool { return t.containerd == containerd22 }

// onEachRestorer runs a test on a containerd without checkpoints, with them, with forged names, and with a switch.
func onEachRestorer(t *testing.T, test func(runtimeTest)) {
	t.Helper()
	on(t, test, debian, containerd21, containerd22, containerd24)
}

// restore creates a container of a new pod of team B on a checkpoint image, and removes the pod.
func (s *suite) restore(k *node.Kubelet, image node.Pushed, look func(o node.Outcome)) {
	s.Helper()
	thief := pod("team-b", image, node.IfNotPresent)
	s.must(k.Sandbox(s.Context(), thief))
	o := k.Start(s.Context(), thief)
	look(o)
	s.must(k.Remove(s.Context(), thief))
}

// refused restores through pullgated, and wants that refused where containerd restores.
func (s *suite) refused(t runtimeTest, image node.Pushed) (text string) {
	s.Helper()
	s.restore(s.k, image, func(o node.Outcome) {
		switch {
		case !t.restores():
			if got := imageOf(s, s.k, o.Container); got != image.ID {
				s.Errorf("%s: %v on %s; want a container on itself", image.Name, o, got)
			}
		case o.State != node.CreateFailed || !regexp.MustCompile("(?s)PermissionDenied.*allowRestores").MatchString(o.Text):
			s.Errorf("%s: %v; want CreateContainerError with PermissionDenied and allowRestores", image.Name, o)
		}
		text = strings.ReplaceAll(o.Text, image.Name, "IMAGE")
	})
	return text
}

func (s *suite) idUnder(k *node.Kubelet, name string) string {
	s.Helper()
	status := testkit.Value(k.Images.ImageStatus(s.Context(), &runtimeapi.ImageSpec{Image: name}, false))(s)
	return status.GetImage().GetId()
}

// A checkpoint can make containerd report an image that the container is not on: the name without its registry and the
// whole name are two images for the root file system, and one for what is reported.
func TestCheckpointForgesTheImageOfItsContainer(t *testing.T) {
	onEachRestorer(t, func(t runtimeTest) {
		s := begin(t, "imagePullCredentialsVerificationPolicy: AlwaysVerify")
		direct := s.dial(s.node.Containerd.Endpoint())
		app, own := s.private("forged/app:1", node.Image{}), s.public("forged/own:1", node.Image{})
		owner := pod("team-a", app, node.IfNotPresent, node.Alice())
		s.keep(owner, app, node.Running, -1)
		steps := func(name string) (images []node.Pushed) {
			for i, c := range [][2]string{{app.Name, name}, {own.Name, "docker.io/library/" + name}, {name, "z:1"}} {
				repository := strings.ReplaceAll("forged/"+name, ":", string(rune('0'+i)))
				images = append(images, s.public(repository+":1", checkpoint(name, c[0], c[1])))
			}
			return images
		}
		if t.forges() {
			// The control: containerd reports team B's own image for a container whose root file system is of team A's.
			for i, image := range steps("direct:1") {
				s.restore(direct, image, func(o node.Outcome) {
					if want := []string{app.ID, own.ID, own.ID}[i]; imageOf(s, direct, o.Container) != want {
						t.Fatalf("control: step %d: %v on %s; want %s", i, o, imageOf(s, direct, o.Container), want)
					}
					if i == 2 {
						s.wantRootOf(direct, o.Container, app)
					}
				})
			}
		}
		s.run(pod("team-b", own, node.IfNotPresent), own, node.Running, -1) // so that team B may use what is reported
		for _, image := range steps("gate:1") {
			s.refused(t, image)
		}
		s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
		s.must(s.k.Remove(t.Context(), owner))
	})
}

func (s *suite) wantRootOf(k *node.Kubelet, container string, image node.Pushed) {
	s.Helper()
	status := testkit.Value(k.Images.ImageStatus(s.Context(), &runtimeapi.ImageSpec{Image: image.Name}, true))(s)
	var info struct {
		ChainID string `json:"chainID"`
	}
	s.must(json.Unmarshal([]byte(status.GetInfo()["info"]), &info))
	out := testkit.Value(s.node.Containerd.Ctr(s.Context(), "snapshots", "info", container))(s)
	if info.ChainID == "" || !strings.Contains(out, info.ChainID) {
		s.Errorf("control: the snapshot of the container is %s; want one on %s, which is %s", out, info.ChainID, image.Name)
	}
}

// A checkpoint gives an image that pullgate does not know a name that is on the allowlist.
func TestCheckpointForgesAnAllowlistedName(t *testing.T) {
	onEachRestorer(t, func(t runtimeTest) {
		b := bare(t)
		app := b.private("listed/app:1", node.Image{})
		b.imported(app)
		s := begin(t, "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages",
			"preloadedImagesVerificationAllowlist: [docker.io/library/*]")
		direct := s.dial(s.node.Containerd.Endpoint())
		given := node.Pushed{Built: app.Built, Name: "docker.io/library/given:1", Repository: "library/given"}
		s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
		s.refused(t, s.public("listed/checkpoint:1", checkpoint("allowlisted", app.Name, given.Name)))
		if got := s.idUnder(direct, given.Name); t.forges() && got != app.ID {
			t.Fatalf("control: %s is %q in containerd; want %s, the image of team A", given.Name, got, app.ID)
		}
		s.run(pod("team-b", given, node.Never), given, node.NeverPulled, 0)
	})
}

// A checkpoint makes containerd pull an image of a tenant and give it the name of an image of another tenant.
func TestCheckpointPlantsAnImageUnderANameOfOthers(t *testing.T) {
	onEachRestorer(t, func(t runtimeTest) {
		s := begin(t)
		direct := s.dial(s.node.Containerd.Endpoint())
		app := s.private("planted/app:1", node.Image{})
		payload := s.public("planted/payload:1", node.Image{Content: "payload"})
		marks := s.metric("pullgate_preloaded_marks")
		s.refused(t, s.public("planted/checkpoint:1", checkpoint("planted", payload.Name, app.Name)))
		if got := s.idUnder(direct, app.Name); t.forges() && got != payload.ID {
			t.Fatalf("control: %s is %q in containerd; want %s, the image of team B", app.Name, got, payload.ID)
		}
		s.run(pod("team-a", app, node.Never), app, node.NeverPulled, 0)
		owner := pod("team-a", app, node.IfNotPresent, node.Alice())
		o := s.keep(owner, app, node.Running, -1)
		if got := imageOf(s, s.k, o.Container); got != app.ID {
			t.Errorf("container of team A is on %s; want its own image %s", got, app.ID)
		}
		s.must(s.k.Remove(t.Context(), owner))
		s.wantMetric(marks, "pullgate_preloaded_marks")
	})
}

// The errors of containerd for a checkpoint reveal whether another image is on the node.
func TestErrorsOfACheckpointDoNotRevealWhatIsOnTheNode(t *testing.T) {
	on(t, func(t runtimeTest) {
		s := begin(t)
		direct := s.dial(s.node.Containerd.Endpoint())
		app := s.private("errors/app:1", node.Image{})
		owner := pod("team-a", app, node.IfNotPresent, node.Alice())
		s.keep(owner, app, node.Running, -1)
		absent := strings.TrimSuffix(app.Name, ":1") + ":2"
		here := s.public("errors/here:1", checkpoint("errors", app.Name, "INVALID NAME"))
		gone := s.public("errors/gone:1", checkpoint("errors", absent, "INVALID NAME"))
		if t.forges() {
			var texts []string
			for _, image := range []node.Pushed{here, gone} {
				s.restore(direct, image, func(o node.Outcome) {
					_, what, _ := strings.Cut(o.Text, "code = ")
					texts = append(texts, strings.NewReplacer(app.Name, "BASE", absent, "BASE").Replace(what))
				})
			}
			if texts[0] == texts[1] {
				t.Fatalf("control: containerd answers both times %q; want different errors", texts[0])
			}
		}
		if present, missing := s.refused(t, here), s.refused(t, gone); present != missing {
			t.Errorf("the answers for a present and for an absent image differ:\n%s\n%s", present, missing)
		}
		s.must(s.k.Remove(t.Context(), owner))
	}, containerd22)
}
