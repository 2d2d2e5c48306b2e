package kubelets_test

import (
	"strings"

	"github.com/pullgate/pullgate/e2e/node"
)

// denied are the words of a registry that refuses, as containerd passes them on.
const denied = `401 Unauthorized|authorization failed|pull access denied`

// The control: without pullgate any tenant runs an image of another one. If it fails, the others show nothing.
func controlWithoutPullgate(s *scenario) {
	app := s.private("app:1")
	s.runSteps(
		runs("A, with its secret", use("a", app, alice), downloads),
		runs("B without a secret", use("b", app), nothing),
		runs("B without a secret, Never", use("b", app).pulls(never), nothing),
		runs("B with an invalid secret", use("b", app, mallory), nothing),
	)
}

// The owner and every pod with the same credential continue as before. Others get the error of the registry.
// Shows: 001-01, 001-02, 001-06, 001-12, 001-17, 001-21, 001-35, 001-40
func tenants(s *scenario) {
	app := s.private("app:1")
	elsewhere := use("b", app, alice)
	elsewhere.registry = "registry.example.com"
	byDigest := app
	byDigest.Name = strings.TrimSuffix(app.Name, ":1") + "@" + app.Digest
	s.runSteps(
		runs("A, with its secret", use("a", app, alice), downloads).
			says(`Pulling: Pulling image (?s:.*)Pulled: Successfully pulled image`).prints(s.Name()+"app:1"),
		runs("A again", use("a", app, alice), s.recheck()).says(`Pulled: `),
		runs("C, the same credential in a secret of its own", use("c", app, alice), s.recheck()),
		refuses("B without a secret", use("b", app)).says(`Failed to pull image.*(`+denied+`).*`+
			`; this node checks pull credentials for each pod; see imagePullSecrets`),
		hides("B without a secret, Never", use("b", app).pulls(never)).
			says(`ErrImageNeverPull: .*is not present with pull policy of Never`),
		refuses("B with an invalid secret", use("b", app, mallory)),
		hides("B with an invalid secret, Never", use("b", app, mallory).pulls(never)),
		refuses("B with a secret for another registry", elsewhere),
		runs("C by digest", use("c", byDigest, alice), s.recheck()),
		refuses("B by digest", use("b", byDigest)),
		hides("B by digest, Never", use("b", byDigest).pulls(never)),
		runs("D, another credential that the registry takes", use("d", app, dora), manifest),
		runs("D again", use("d", app, dora), s.recheck()),
		// Which of the two comes first is the kubelet's choice; the invalid one may be tried.
		runs("D with an invalid secret before the valid one", use("d", app, mallory, dora), anything),
	)
}

// An image that was pulled anonymously is open to every pod.
// Shows: 001-05, 001-15
func public(s *scenario) {
	app, first := s.public("app:1"), s.public("first-with-a-secret:1")
	s.runSteps(
		runs("A without a secret", use("a", app), downloads),
		runs("B without a secret", use("b", app), nothing),
		runs("B with a secret", use("b", app, mallory), nothing),
		runs("B, Never", use("b", app).pulls(never), nothing),

		runs("A with a secret that the registry does not ask for", use("a", first, alice), downloads),
		hides("B, Never, before another pull without a secret", use("b", first).pulls(never)),
		runs("B without a secret", use("b", first), manifest),
		runs("C without a secret, from then on", use("c", first), nothing),
		runs("C, Never", use("c", first).pulls(never), nothing),
	)
}

// Always sees a tag that has moved. IfNotPresent keeps what it has, until a pull moves the tag on the node.
// Shows: 001-04
func tags(s *scenario) {
	one, two := node.Image{Content: s.Name() + " one"}, node.Image{Content: s.Name() + " two"}
	app, proving := s.push(s.Private, "app:1", one), s.push(s.Private, "proving:1", one)
	appA, provingA := use("a", app, alice), use("a", proving, alice)
	s.runSteps(
		runs("A, Always", appA.pulls(always), downloads).prints(one.Content),
		runs("A, Always, again", appA.pulls(always), manifest).prints(one.Content),
		refuses("B, Always, without a secret", use("b", app).pulls(always)),
		runs("A pulls the second image", provingA, anything).prints(one.Content),
	)
	s.push(s.Private, "app:1", two)
	s.push(s.Private, "proving:1", two)
	moved := runs("A, IfNotPresent, after the tag has moved", appA, nothing).prints(one.Content)
	if s.recheck() == manifest {
		// A call that counts as a pull asks the registry, which has another image under the tag now.
		moved = runs(moved.name, appA, downloads).prints(two.Content)
	}
	s.runSteps(
		moved,
		runs("A, Always, after the tag has moved", appA.pulls(always), anything).prints(two.Content),
		runs("A, IfNotPresent, after its pull moved the tag here", appA, s.recheck()).prints(two.Content),
		refuses("B without a secret", use("b", app)),
		runs("D proves itself, which moves the tag here", use("d", proving, dora), anything).prints(two.Content),
		runs("A has to prove itself for what the tag is now", provingA, manifest).prints(two.Content),
		runs("A again", provingA, s.recheck()).prints(two.Content),
	)
}

// recheck is what a re-pull of a proved image costs: nothing, but on kubelets whose re-pull cannot be
// distinguished from a pull that the policy Always asks for, unless the pod source knows the policy.
func (s *scenario) recheck() string {
	if s.release == kubelet130 && !s.sourced {
		return manifest
	}
	return nothing
}
