package kubelets_test

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// denied are the words of a registry that refuses, as containerd passes them on.
const denied = `401 Unauthorized|authorization failed|pull access denied`

// The control: without pullgate any tenant runs an image that was pulled with the secret of another one. If it fails,
// the other test cases show nothing.
func controlWithoutPullgate(s *scenario) {
	app := s.private("app:1")
	s.runSteps(
		step{name: "A, with its secret", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, requests: downloads},
		step{name: "B without a secret", pod: pod{team: "b", image: app}, want: running},
		step{name: "B without a secret, Never", pod: pod{team: "b", image: app, policy: never}, want: running},
		step{name: "B with an invalid secret", pod: pod{team: "b", image: app, secrets: with(node.Mallory())}, want: running},
	)
}

// The owner continues as before, and so does every pod with the same credential. Others are refused, with
// the error of the registry.
func tenants(s *scenario) {
	app := s.private("app:1")
	elsewhere := []secret{{login: node.Alice(), registry: "registry.example.com"}}
	byDigest := app
	byDigest.Name = strings.TrimSuffix(app.Name, ":1") + "@" + app.Digest
	s.runSteps(
		step{
			name: "A, with its secret", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, requests: downloads,
			message: `Pulling: Pulling image (?s:.*)Pulled: Successfully pulled image`, text: s.Name() + "app:1",
		},
		step{name: "A again", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, requests: s.recheck(), message: `Pulled: `},
		step{name: "C, the same credential in a secret of its own", pod: pod{team: "c", image: app, secrets: with(node.Alice())}, want: running, requests: s.recheck()},
		step{name: "B without a secret", pod: pod{team: "b", image: app}, want: pullFailed, requests: refusals, message: `Failed to pull image.*(` + denied + `)`},
		step{name: "B without a secret, Never", pod: pod{team: "b", image: app, policy: never}, want: neverPulled, message: `ErrImageNeverPull: .*is not present with pull policy of Never`},
		step{name: "B with an invalid secret", pod: pod{team: "b", image: app, secrets: with(node.Mallory())}, want: pullFailed, requests: refusals, message: denied},
		step{name: "B with an invalid secret, Never", pod: pod{team: "b", image: app, policy: never, secrets: with(node.Mallory())}, want: neverPulled},
		step{name: "B with a secret for another registry", pod: pod{team: "b", image: app, secrets: elsewhere}, want: pullFailed, requests: refusals, message: denied},
		step{name: "C by digest", pod: pod{team: "c", image: byDigest, secrets: with(node.Alice())}, want: running, requests: s.recheck()},
		step{name: "B by digest", pod: pod{team: "b", image: byDigest}, want: pullFailed, requests: refusals, message: denied},
		step{name: "B by digest, Never", pod: pod{team: "b", image: byDigest, policy: never}, want: neverPulled},
		step{name: "D, another credential that the registry takes", pod: pod{team: "d", image: app, secrets: with(node.Dora())}, want: running, requests: manifest},
		step{name: "D again", pod: pod{team: "d", image: app, secrets: with(node.Dora())}, want: running, requests: s.recheck()},
		// Which of the two comes first is the kubelet's choice; the invalid one may be tried.
		step{name: "D with an invalid secret before the valid one", pod: pod{team: "d", image: app, secrets: with(node.Mallory(), node.Dora())}, want: running, requests: anything},
	)
}

// An image that was pulled anonymously is open to every pod.
func public(s *scenario) {
	app, first := s.public("app:1"), s.public("first-with-a-secret:1")
	s.runSteps(
		step{name: "A without a secret", pod: pod{team: "a", image: app}, want: running, requests: downloads},
		step{name: "B without a secret", pod: pod{team: "b", image: app}, want: running},
		step{name: "B with a secret", pod: pod{team: "b", image: app, secrets: with(node.Mallory())}, want: running},
		step{name: "B, Never", pod: pod{team: "b", image: app, policy: never}, want: running},

		step{name: "A with a secret that the registry does not ask for", pod: pod{team: "a", image: first, secrets: with(node.Alice())}, want: running, requests: downloads},
		step{name: "B, Never, before another pull without a secret", pod: pod{team: "b", image: first, policy: never}, want: neverPulled},
		step{name: "B without a secret", pod: pod{team: "b", image: first}, want: running, requests: manifest},
		step{name: "C without a secret, from then on", pod: pod{team: "c", image: first}, want: running},
		step{name: "C, Never", pod: pod{team: "c", image: first, policy: never}, want: running},
	)
}

// Always asks the registry every time and sees a tag that has moved. IfNotPresent keeps what it has,
// until a pull moves the tag on the node: one with Always, or one that has to prove itself.
func tags(s *scenario) {
	one, two := node.Image{Content: s.Name() + " one"}, node.Image{Content: s.Name() + " two"}
	app, proving := s.push(s.Private, "app:1", one), s.push(s.Private, "proving:1", one)
	a := func(image node.Pushed, policy corev1.PullPolicy) pod {
		return pod{team: "a", image: image, policy: policy, secrets: with(node.Alice())}
	}
	s.runSteps(
		step{name: "A, Always", pod: a(app, always), want: running, requests: downloads, text: one.Content},
		step{name: "A, Always, again", pod: a(app, always), want: running, requests: manifest, text: one.Content},
		step{name: "B, Always, without a secret", pod: pod{team: "b", image: app, policy: always}, want: pullFailed, requests: refusals, message: denied},
		step{name: "A pulls the second image", pod: a(proving, ifNotPresent), want: running, requests: anything, text: one.Content},
	)
	s.push(s.Private, "app:1", two)
	s.push(s.Private, "proving:1", two)
	if s.recheck() == manifest {
		// A call that counts as a pull asks the registry, which has another image under the tag now.
		s.runSteps(step{name: "A, IfNotPresent, after the tag has moved", pod: a(app, ifNotPresent), want: running, requests: downloads, text: two.Content})
	} else {
		s.runSteps(step{name: "A, IfNotPresent, after the tag has moved", pod: a(app, ifNotPresent), want: running, requests: nothing, text: one.Content})
	}
	s.runSteps(
		step{name: "A, Always, after the tag has moved", pod: a(app, always), want: running, requests: anything, text: two.Content},
		step{name: "A, IfNotPresent, after its pull moved the tag here", pod: a(app, ifNotPresent), want: running, requests: s.recheck(), text: two.Content},
		step{name: "B without a secret", pod: pod{team: "b", image: app}, want: pullFailed, requests: refusals, message: denied},
	)
	s.runSteps(
		step{name: "D proves itself, which moves the tag here", pod: pod{team: "d", image: proving, secrets: with(node.Dora())}, want: running, requests: anything, text: two.Content},
		step{name: "A has to prove itself for what the tag is now", pod: a(proving, ifNotPresent), want: running, requests: manifest, text: two.Content},
		step{name: "A again", pod: a(proving, ifNotPresent), want: running, requests: s.recheck(), text: two.Content},
	)
}

// recheck is what a re-pull of a proved image costs: nothing, but on kubelets whose re-pull cannot be
// distinguished from a pull that the policy Always asks for, unless the pod source knows the policy.
func (s *scenario) recheck() string {
	if s.cluster.Release() == kubelet130 && !s.sourced {
		return manifest
	}
	return nothing
}
