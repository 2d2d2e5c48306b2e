package kubelets_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// reserved is what the pod of another namespace reads of a fenced repository.
const reserved = `is reserved for other namespaces on this node; ask its operator`

// Files of kind ImageAccess give tenant B a right to images of A, or take it from all but A. Tenant C has none.
func access(s *scenario) {
	r := s.registry()
	s.newPolicies()
	s.Cleanup(s.withoutPolicies)
	s.enforce()
	if s.verifiesItself() { // the kubelet's own records know no files: docs/image-access.md
		s.must(s.restartKubelet(s.Context(), cluster.Settings{
			"imagePullCredentialsVerificationPolicy": "NeverVerify", "registryPullQPS": 50, "registryBurst": 100,
		}))
		s.Cleanup(func() { s.must(s.restartKubelet(context.WithoutCancel(s.Context()), quick())) })
	}
	shares(s, r)
	lends(s, r)
	fences(s, r)
	s.expires(r)
	if n := testkit.Value(s.gate.Metric("pullgate_image_uses_total", "right", "access"))(s); n == 0 {
		s.Errorf("no use by a file is counted")
	}
}

// right writes a file of kind ImageAccess about repositories, or removes it without a spec, and has pullgated read it.
func (s *scenario) right(name, spec string) {
	s.Helper()
	path := filepath.Join(s.policies, name+".yaml")
	if spec == "" {
		s.must(os.Remove(path))
	} else {
		s.must(os.WriteFile(path, []byte("apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\nmetadata: {name: "+
			name+"}\nspec: {"+spec+"}\n"), 0o644))
	}
	s.reload()
}

// of returns the part of a spec that names the repository of an image and a tenant.
func (s *scenario) of(image node.Pushed, team string) string {
	return fmt.Sprintf("images: [%q], from: [{namespaces: [%s]}], grant: ", repositoryOf(image), s.namespace(team))
}

func repositoryOf(image node.Pushed) string { return strings.TrimSuffix(image.Name, ":1") }

func byDigest(image node.Pushed) node.Pushed {
	image.Name = repositoryOf(image) + "@" + image.Digest
	return image
}

func byID(image node.Pushed) node.Pushed {
	image.Name = image.ID
	return image
}

// removed removes an image past kubelet and pullgated.
func (s *scenario) removed(image node.Pushed) {
	s.Helper()
	k := s.runtimeClient()
	s.must(k.RemoveImage(s.Context(), image.Name))
}

// shares: B uses what A has proved, while a proof is valid and the file is there.
func shares(s *scenario, r *node.Registry) {
	one, two := node.Image{Content: s.Name() + " one"}, node.Image{Content: s.Name() + " two"}
	app := s.push(r, "shared:1", one)
	a, b, c := use("a", app, alice), use("b", app), use("c", app)
	s.right("share", s.of(app, "b")+"Share")
	s.runSteps(
		refuses("B, shared, absent", b),
		hides("B, Never, shared, absent", b.pulls(never)),
		runs("A pulls what is shared", a, downloads),
		runs("B, shared", b, nothing).prints(one.Content),
		runs("B, Never, shared", b.pulls(never), nothing),
		refuses("B, Always, shared", b.pulls(always)),
		refuses("C, of which the file says nothing", c),
		hides("C, Never", c.pulls(never)),
		runs("B by digest", use("b", byDigest(app)), nothing),
		refuses("C by digest", use("c", byDigest(app))),
		hides("B by ID", use("b", byID(app)).pulls(never)),
	)
	if s.mountsImages() {
		free := s.public("access-free:1")
		mount := func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = free.Name
			mounts(imageVolume(app, ifNotPresent), func(m *corev1.VolumeMount) { m.MountPath = "/mounted" })(p)
		}
		s.runSteps(
			runs("B mounts what is shared", b.but(mount), nothing),
			refuses("C mounts what is shared", c.but(mount)),
		)
	}
	s.push(r, "shared:1", two)
	s.runSteps(
		runs("B, after the tag has moved at the registry", b, nothing).prints(one.Content),
		runs("A, Always", a.pulls(always), anything).prints(two.Content),
		runs("B, on what the tag is now", b, nothing).prints(two.Content),
	)
	s.must(r.Down())
	s.runSteps(runs("B, the registry down", b, nothing))
	s.must(s.gate.Restart(s.Context()))
	s.runSteps(runs("B, Never, the registry down, after a restart", b.pulls(never), nothing))
	s.must(r.Up())
	s.removed(app)
	s.runSteps(
		refuses("B, the image removed", b),
		runs("A brings it back", a, anything),
		runs("B, back", b, nothing),
	)
	s.right("share", "")
	s.runSteps(
		refuses("B, the file gone", b),
		hides("B, Never, the file gone", b.pulls(never)),
		runs("A, the file gone", a, s.recheck()),
	)
}

// lends: B's pulls get a credential, which B never sees.
func lends(s *scenario, r *node.Registry) {
	app, second, third := s.push(r, "lent:1", node.Image{}), s.push(r, "lent-2:1", node.Image{}),
		s.push(r, "lent-3:1", node.Image{})
	path := filepath.Join(s.Dir, "lent-of-"+s.name+".json")
	credential := func(l node.Login) {
		s.must(os.WriteFile(path, fmt.Appendf(nil, `{"auths":{%q:{"username":%q,"password":%q}}}`, r.Host(), l.Username,
			l.Password), 0o600))
	}
	credential(alice)
	b, c := use("b", app), use("c", app)
	s.right("lend", fmt.Sprintf("images: [%q], from: [{namespaces: [%s]}], grant: Lend, "+
		"credentials: {dockerConfigFile: %s}", repositoryOf(app)+"*", s.namespace("b"), path))
	s.runSteps(
		hides("B, Never, lent, absent", b.pulls(never)),
		refuses("C, lent to B, absent", c),
		runs("B, lent, absent", b, downloads),
		runs("B, lent", b, nothing),
		runs("B, Never, lent", b.pulls(never), nothing),
		runs("B, Always, lent", b.pulls(always), manifest),
		refuses("C, lent to B", c),
		hides("C, Never, lent to B", c.pulls(never)),
		refuses("B with an invalid secret of its own, Always", use("b", app, mallory).pulls(always)),
	)
	s.removed(app)
	s.runSteps(runs("B, lent, the image removed", b, downloads))
	s.ctl("revoke", "--repository", repositoryOf(app), "--yes")
	s.runSteps(
		hides("B, Never, what was lent is revoked", b.pulls(never)),
		runs("B, what was lent is revoked", b, manifest),
	)
	s.must(r.Down())
	s.runSteps(
		step{
			name: "B, lent, absent, the registry down", pod: use("b", second), want: unavailable,
			message: `the registry is unavailable; ask the operator`,
		},
		runs("B, lent, the registry down", b, nothing),
	)
	s.must(r.Up())
	credential(mallory)
	s.runSteps(
		step{
			name: "B, what is lent is invalid", pod: use("b", third), want: pullFailed, requests: refusals,
			message: `the registry denied the credential that this node lends`,
		},
		runs("B, present, what is lent is invalid", b, nothing),
	)
	s.right("lend", "")
	s.runSteps(refuses("B, the file gone", b), hides("B, Never, the file gone", b.pulls(never)))
}

// fences: nobody but A uses the image, by whatever right.
func fences(s *scenario, r *node.Registry) {
	private, open, absent := s.push(r, "fenced:1", node.Image{}), s.public("fenced-open:1"),
		s.push(r, "fenced-absent:1", node.Image{})
	before := s.preloaded["preloaded/never"]
	s.runSteps(
		runs("C without a secret, before the Fence", use("c", open), downloads),
		runs("C, Never, preloaded, before the Fence", use("c", before).pulls(never), nothing),
	)
	s.right("fence", fmt.Sprintf("images: [%q, %q, %q, %q], from: [{namespaces: [%s]}], grant: Fence",
		repositoryOf(private), repositoryOf(open), repositoryOf(absent), repositoryOf(before), s.namespace("a")))
	stop := s.disturb()
	told := `is not present with pull policy of Never`
	if s.sourced {
		told = `ImageFenced: pullgate: repository .* ` + reserved
	}
	for _, tc := range []struct {
		what string
		pod  pod
	}{
		{"open", use("c", open)},
		{"absent", use("c", absent, dora)},
		{"preloaded", use("c", before)},
		{"by digest", use("c", byDigest(open))},
	} {
		s.runSteps(
			fails("C, fenced, "+tc.what, tc.pod, reserved),
			fails("C, Always, fenced, "+tc.what, tc.pod.pulls(always), reserved),
			hides("C, Never, fenced, "+tc.what, tc.pod.pulls(never)).says(told),
		)
	}
	s.runSteps(
		hides("C by ID, fenced", use("c", byID(open)).pulls(never)),
		runs("A, within the Fence", use("a", private, alice), downloads),
		fails("D, its own credential", use("d", private, dora), reserved),
		runs("A, open", use("a", open), nothing),
		runs("A, Never, preloaded", use("a", before).pulls(never), nothing),
	)
	stop()
	s.must(os.WriteFile(filepath.Join(s.policies, "wrong.yaml"), []byte("kind: ImageAccess\n"), 0o644))
	s.reload()
	s.must(os.Remove(filepath.Join(s.policies, "fence.yaml")))
	s.reload()
	s.runSteps(hides("C, Never, the folder is invalid", use("c", open).pulls(never)))
	s.must(os.Remove(filepath.Join(s.policies, "wrong.yaml")))
	s.reload()
	s.runSteps(
		runs("C, the Fence gone", use("c", open), nothing),
		runs("C, Never, preloaded, the Fence gone", use("c", before).pulls(never), nothing),
	)
}

// disturb writes and removes files of the folder, valid and invalid, until stop is called.
func (s *scenario) disturb() (stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	go func() {
		path, tick := filepath.Join(s.policies, "noise.yaml"), time.NewTicker(500*time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			text := "kind: ImageAccess\n"
			if i%2 == 0 {
				text = fmt.Sprintf("apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\nmetadata: {name: noise}\n"+
					"spec: {images: [noise.example/a%d], from: [{namespaces: [noise]}], grant: Share}\n", i)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				done <- err
				return
			}
			select {
			case <-ctx.Done():
				done <- os.Remove(path)
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		s.Helper()
		cancel()
		s.must(<-done)
	}
}

// expires: a Share ends with the last proof, and a Lend renews it.
func (s *scenario) expires(r *node.Registry) {
	s.Helper()
	const validity = 20 * time.Second // B comes within it
	app := s.push(r, "expiring:1", node.Image{})
	s.right("share", s.of(app, "b")+"Share")
	s.must(s.gate.Restart(s.Context(), append(s.admission(), fmt.Sprintf("credentialValidity: %s", validity),
		"registryUnavailableGrace: 0s")...))
	if s.sourced {
		s.waitUntilSynced()
	}
	s.runSteps(runs("A pulls what expires", use("a", app, alice), downloads))
	time.Sleep(validity)
	s.runSteps(
		refuses("B, the proof expired", use("b", app)),
		hides("B, Never, the proof expired", use("b", app).pulls(never)),
	)
	s.runSteps(
		runs("A renews it", use("a", app, alice).pulls(always), manifest),
		runs("B, Never, the proof renewed", use("b", app).pulls(never), nothing),
	)
}

// ctl runs pullgatectl.
func (s *scenario) ctl(args ...string) {
	s.Helper()
	program := testkit.Value(node.Program("pullgatectl"))(s)
	args = append(args, "--endpoint", "unix://"+filepath.Join(s.gate.Dir(), "admin.sock"))
	testkit.Value(host.Run(s.Context(), program, args...))(s)
}
