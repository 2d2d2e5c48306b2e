package e2e_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// imported imports an image directly in containerd, under the name by which it would be pulled.
func (s *suite) imported(p node.Pushed) {
	s.Helper()
	archive := filepath.Join(s.TempDir(), "image.tar")
	s.must(p.Archive(s.Context(), archive, p.Name))
	s.must(s.node.Containerd.Import(s.Context(), archive))
}

// What is on the node before the first start of pullgated is preloaded, as far as the policy allows.
func TestPreloadedImages(t *testing.T) { onEach(t, preloadedImages) }

func preloadedImages(t runtimeTest) {
	b := bare(t)
	app, listed := b.private("preloaded/app:1", node.Image{}), b.private("preloaded/listed/app:1", node.Image{})
	b.imported(app)
	b.imported(listed)
	list := "preloadedImagesVerificationAllowlist: [\"" + b.node.Private.Host() + "/preloaded/listed/*\"]"
	for _, tc := range []struct {
		name        string
		settings    []string
		app, listed string
	}{
		{"default", nil, node.Running, node.Running},
		{"preloaded", []string{"imagePullCredentialsVerificationPolicy: NeverVerifyPreloadedImages"}, node.Running, node.Running},
		{"never", []string{"imagePullCredentialsVerificationPolicy: NeverVerify"}, node.Running, node.Running},
		{"always", []string{"imagePullCredentialsVerificationPolicy: AlwaysVerify"}, node.NeverPulled, node.NeverPulled},
		{"list", []string{"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages", list}, node.NeverPulled, node.Running},
		{"shadow", []string{"imagePullCredentialsVerificationPolicy: AlwaysVerify", "noPullImageSecretRecheck: true"}, node.Running, node.Running},
		{"exempt namespace", []string{"imagePullCredentialsVerificationPolicy: AlwaysVerify", "exempt: {namespaces: [team-b]}"}, node.Running, node.Running},
	} {
		t.run(tc.name, func(t runtimeTest) {
			s := begin(t, tc.settings...)
			s.run(pod("team-b", app, node.Never), app, tc.app, 0)
			s.run(pod("team-b", listed, node.Never), listed, tc.listed, 0)
			static := pod("kube-system", app, node.Never)
			static.Source = "file"
			s.run(static, app, node.Running, 0)
		})
	}
}

// The same content pulled by a tenant under another repository leaves the preloaded name usable, and
// makes the tenant's name no less private.
func TestPreloadedContentUnderATenantsName(t *testing.T) {
	onEach(t, preloadedContentUnderATenantsName)
}

func preloadedContentUnderATenantsName(t runtimeTest) {
	b := bare(t)
	app := b.private("content/app:1", node.Image{Content: "the same content"})
	b.imported(app)
	s := begin(t)
	same := s.private("content/tenant/app:1", node.Image{Content: "the same content"})
	if same.ID != app.ID {
		t.Fatalf("IDs %s and %s differ; want the same image", same.ID, app.ID)
	}
	s.run(pod("team-a", same, node.IfNotPresent, node.Alice()), same, node.Running, -1)
	s.run(pod("team-b", app, node.Never), app, node.Running, 0)
	s.run(pod("team-b", same, node.Never), same, node.NeverPulled, 0)
	s.run(pod("team-b", same, node.IfNotPresent), same, node.PullFailed, 1)
	s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
	s.run(pod("team-b", app, node.IfNotPresent), app, node.Running, 0)
}

// A name that appears on an image that needed a proof is not marked preloaded.
func TestNewNameOnAProvedImage(t *testing.T) { onEach(t, newNameOnAProvedImage) }

func newNameOnAProvedImage(t runtimeTest) {
	s := begin(t)
	app := s.private("renamed/app:1", node.Image{})
	s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
	alias := node.Pushed{Built: app.Built, Name: "imported.test/renamed/app:1", Repository: "renamed/app"}
	s.must(s.node.Containerd.Tag(t.Context(), app.Name, alias.Name))
	for _, when := range []string{"at once", "after a restart"} {
		s.run(pod("team-b", alias, node.Never), alias, node.NeverPulled, 0)
		s.run(pod("team-b", alias, node.IfNotPresent), alias, node.PullFailed, 0)
		s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
		if t.Failed() {
			t.Fatal("so it was", when)
		}
		s.must(s.gate.Restart(t.Context()))
	}
}

// An image that appears without a pull is preloaded by default, and needs proof with untrackedImages: Verify. Images
// that were present at the first start are preloaded in both cases.
func TestUntrackedImages(t *testing.T) { onEach(t, untrackedImages) }

func untrackedImages(t runtimeTest) {
	b := bare(t)
	before := b.private("untracked/before:1", node.Image{})
	b.imported(before)
	for setting, want := range map[string]string{"Preloaded": node.Running, "Verify": node.NeverPulled} {
		s := begin(t, "untrackedImages: "+setting)
		s.run(pod("team-b", before, node.Never), before, node.Running, 0)
		later := s.private("untracked/later-"+map[string]string{"Preloaded": "p", "Verify": "v"}[setting]+":1", node.Image{})
		s.imported(later)
		s.run(pod("team-b", later, node.Never), later, want, 0)
		s.run(pod("team-b", before, node.Never), before, node.Running, 0)
	}
}

// Image garbage collection takes the records of an image with it and leaves the others.
func TestRemovedImageNeedsProofAgain(t *testing.T) { onEach(t, removedImageNeedsProofAgain) }

func removedImageNeedsProofAgain(t runtimeTest) {
	s := begin(t)
	app, stays := s.private("removed/app:1", node.Image{}), s.private("removed/stays:1", node.Image{})
	for _, i := range []node.Pushed{app, stays} {
		s.run(pod("team-a", i, node.IfNotPresent, node.Alice()), i, node.Running, -1)
	}
	s.wantMetric(2, "pullgate_pull_records")
	s.must(s.k.RemoveImage(t.Context(), app.ID))
	s.wantMetric(1, "pullgate_pull_records")
	s.run(pod("team-c", stays, node.IfNotPresent, node.Alice()), stays, node.Running, 0)
	s.run(pod("team-d", app, node.IfNotPresent, node.Dora()), app, node.Running, -1)
	s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, 2)
}

// Restarts of pullgated, orderly or not, of containerd, and of the kubelet: containers of running pods
// restart without a registry, and nothing is opened.
func TestRestarts(t *testing.T) { onEach(t, restarts) }

func restarts(t runtimeTest) {
	s := begin(t)
	app := s.private("restarts/app:1", node.Image{})
	runs := pod("team-a", app, node.IfNotPresent, node.Alice())
	s.keep(runs, app, node.Running, -1)
	check := func(what string) {
		t.Helper()
		t.Log("after:", what)
		s.must(s.node.Private.Down())
		// Never sends no credential: the pod uses what it has been granted.
		runs.Policy = node.Never
		s.keep(runs, app, node.Running, 0)
		runs.Policy = node.IfNotPresent
		s.keep(runs, app, node.Running, 0)
		s.run(pod("team-c", app, node.IfNotPresent, node.Alice()), app, node.Running, 0)
		s.run(pod("team-b", app, node.Never), app, node.NeverPulled, 0)
		s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, 0)
		s.must(s.node.Private.Up())
	}
	check("the start")
	s.must(s.gate.Restart(t.Context()))
	check("a restart of pullgated")
	s.must(s.gate.Kill())
	s.must(s.gate.Start(t.Context()))
	check("a kill of pullgated")
	s.must(s.node.Containerd.Stop())
	if _, err := s.k.Precheck(t.Context(), runs); err == nil {
		t.Error("pre-check without a runtime = nil; want Unavailable")
	}
	if err := s.gate.Ready(); err == nil {
		t.Error("/readyz without a runtime = ok; want not ready")
	}
	s.must(s.node.Containerd.Start(t.Context()))
	s.back(2 * time.Second)
	check("a restart of containerd")

	// A kubelet that restarts gives every pod a new config.seen, which no sandbox carries: no pod is
	// known by it, and none starts because of that.
	thief := pod("team-b", app, node.Never)
	s.must(s.k.Sandbox(t.Context(), thief))
	thief.Seen()
	s.keep(thief, app, node.NeverPulled, 0)
	thief.Policy = node.IfNotPresent
	s.keep(thief, app, node.PullFailed, 1)
	s.must(s.k.Remove(t.Context(), thief))
	runs.Seen()
	s.must(s.node.Private.Down())
	s.keep(runs, app, node.Running, 0)
	s.must(s.node.Private.Up())
	check("a restart of the kubelet")
	s.must(s.k.Remove(t.Context(), runs))
}

// A container that ends is started again with the same calls; a pod that may use its image
// continues while the registry is unavailable.
func TestContainerThatEndsIsRestarted(t *testing.T) { onEach(t, containerThatEndsIsRestarted) }

func containerThatEndsIsRestarted(t runtimeTest) {
	s := begin(t)
	app := s.private("ends/app:1", node.Image{})
	p := pod("team-a", app, node.IfNotPresent, node.Alice())
	p.Command = []string{"/bin/sh", "-c", "cat /content; exit 7"}
	requests := -1
	for range 3 {
		o := s.keep(p, app, node.Running, requests)
		if code, err := s.k.Wait(t.Context(), o.Container); err != nil || code != 7 {
			t.Fatalf("exit code = %d, %v; want 7", code, err)
		}
		if requests != 0 {
			requests = 0
			s.must(s.node.Private.Down())
		}
	}
	s.must(s.node.Private.Up())
	s.must(s.k.Remove(t.Context(), p))
}

// back waits until calls pass again, at most the limit.
func (s *suite) back(limit time.Duration) {
	s.Helper()
	if !host.Within(limit, func() bool { return s.k.RuntimeReady(s.Context()) == nil }) {
		s.Fatalf("calls do not pass %v after the runtime is back: %v", limit, s.k.RuntimeReady(s.Context()))
	}
}

// ready waits until pullgated is synced with the runtime, which may answer with errors while it starts.
func (s *suite) ready(limit time.Duration) {
	s.Helper()
	if !host.Within(limit, func() bool { return s.gate.Ready() == nil }) {
		s.Fatalf("not ready %v after the runtime is back: %v", limit, s.gate.Ready())
	}
}

// After a loss or damage of the store, a new one starts in distrust: no image on the node counts as
// preloaded until the operator ends distrust.
func TestLostStoreAllowsNothing(t *testing.T) { onEach(t, lostStoreOpensNothing) }

func lostStoreOpensNothing(t runtimeTest) {
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
}

// In shadow mode a missing proof denies nothing, proofs are recorded, and pods that enforcing would have affected are
// counted.
func TestShadowMode(t *testing.T) { onEach(t, shadowMode) }

func shadowMode(t runtimeTest) {
	s := begin(t, "noPullImageSecretRecheck: true")
	app := s.private("shadow/app:1", node.Image{})
	s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
	s.wantMetric(1, "pullgate_pull_records")
	for range 3 { // once for each pod and image, however often it asks
		p := pod("team-b", app, node.IfNotPresent)
		s.keep(p, app, node.Running, 0)
		s.keep(p, app, node.Running, 0)
		s.must(s.k.Remove(t.Context(), p))
	}
	s.wantMetric(3, "image_pull_secret_recheck_miss_count", `outcome="unverified"`)
	s.wantMetric(0, "pullgate_prechecks_hidden_total")
	s.wantMetric(0, "pullgate_denials_total")
	s.run(pod("team-c", app, node.Always, node.Alice()), app, node.Running, 2)
	s.wantMetric(1, "image_pull_secret_recheck_hit_count")
	s.run(pod("team-d", app, node.Always, node.Dora()), app, node.Running, 2)
	s.wantMetric(1, "image_pull_secret_recheck_miss_count", `outcome="verified"`)
	s.run(pod("team-b", app, node.Always), app, node.PullFailed, 1)
	s.wantMetric(1, "image_pull_secret_recheck_miss_count", `outcome="denied"`)
	// What was recorded counts once enforcing is on.
	s.must(s.gate.Restart(t.Context(), "noPullImageSecretRecheck: false"))
	s.run(pod("team-d", app, node.IfNotPresent, node.Dora()), app, node.Running, 0)
	s.run(pod("team-b", app, node.IfNotPresent), app, node.PullFailed, 1)
}
