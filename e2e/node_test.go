package e2e_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"

	"github.com/pullgate/pullgate/e2e/node"
)

// imported imports an image directly in containerd, under the name by which it would be pulled.
func (s *suite) imported(p node.Pushed) {
	s.Helper()
	archive := filepath.Join(s.TempDir(), "image.tar")
	s.must(p.Archive(archive, p.Name))
	s.must(s.node.Containerd.Import(s.Context(), archive))
}

// An image that appears without a pull is preloaded, with untrackedImages: Verify only one from before the first start.
// Shows: 001-13, 001-32
func TestUntrackedImages(t *testing.T) {
	onEach(t, func(t runtimeTest) {
		b := bare(t)
		before := b.private("untracked/before:1", node.Image{})
		b.imported(before)
		for setting, want := range map[string]string{"Preloaded": node.Running, "Verify": node.NeverPulled} {
			s := begin(t, "untrackedImages: "+setting)
			s.run(pod("team-b", before, node.Never), before, node.Running, 0)
			later := s.private("untracked/later-"+map[string]string{"Preloaded": "p", "Verify": "v"}[setting]+":1", node.Image{})
			s.imported(later)
			if want == node.Running {
				s.untilShown(later)
			}
			s.run(pod("team-b", later, node.Never), later, want, 0)
			s.run(pod("team-b", before, node.Never), before, node.Running, 0)
		}
	})
}

// untilShown waits until a pod without a credential may use an image. After a start, pullgated marks an import that two
// scans have seen while a kubelet uses it.
func (s *suite) untilShown(image node.Pushed) {
	s.Helper()
	p := pod("team-b", image, node.Never)
	s.must(s.k.Sandbox(s.Context(), p))
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		s.must(s.k.RuntimeReady(s.Context()))
		id := testkit.Value(s.k.Precheck(s.Context(), p))(s)
		if id != "" {
			break
		}
		if time.Now().After(end) {
			s.Fatalf("%s is not shown a minute after its import", image.Name)
		}
	}
	s.must(s.k.Remove(s.Context(), p))
}

// After a loss or damage of the store, no image counts as preloaded until the operator ends distrust.
func TestLostStoreAllowsNothing(t *testing.T) {
	on(t, func(t runtimeTest) {
		b := bare(t)
		pre := b.private("distrust/pre:1", node.Image{})
		b.imported(pre)
		s := begin(t)
		app := s.private("distrust/app:1", node.Image{})
		s.run(pod("team-b", pre, node.Never), pre, node.Running, 0)
		s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
		for _, how := range []string{"removed", "damaged"} {
			s.must(s.gate.Stop())
			s.damageStore(how)
			s.must(s.gate.Start(t.Context()))
			s.wantMetric(1, "pullgate_store_distrusted")
			s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
			s.run(pod("team-b", pre, node.Never), pre, node.NeverPulled, 0)
			s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, 1)
			s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, 2)
			static := pod("kube-system", pre, node.Never)
			static.Source = "file"
			s.run(static, pre, node.Running, 0)
			s.must(s.gate.Restart(t.Context()))
			s.wantMetric(1, "pullgate_store_distrusted")
			s.run(pod("team-b", pre, node.Never), pre, node.NeverPulled, 0)
		}
		s.must(s.gate.Stop())
		s.must(s.gate.Start(t.Context(), "--accept-present-images"))
		s.wantMetric(0, "pullgate_store_distrusted")
		s.run(pod("team-b", pre, node.Never), pre, node.Running, 0)
		s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
	}, containerd24)
}
