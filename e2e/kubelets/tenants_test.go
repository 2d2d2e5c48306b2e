package kubelets_test

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// denied are the words of a registry that refuses, as containerd passes them on.
const denied = `401 Unauthorized|authorization failed|pull access denied`

// The control: without pullgate any tenant runs what another one's secret has pulled. If this does not
// hold, the rest proves nothing.
func hole(s *story) {
	app := s.private("app:1")
	s.tell(
		step{who: "A, with its secret", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, asks: downloads},
		step{who: "B without a secret", pod: pod{team: "b", image: app}, want: running},
		step{who: "B without a secret, Never", pod: pod{team: "b", image: app, policy: never}, want: running},
		step{who: "B with a wrong secret", pod: pod{team: "b", image: app, secrets: with(node.Mallory())}, want: running},
	)
}

// The owner goes on as before, and so does whoever has the same credential. Others are refused, with
// the registry's own words.
func tenants(s *story) {
	app := s.private("app:1")
	elsewhere := []secret{{login: node.Alice(), registry: "registry.example.com"}}
	s.tell(
		step{
			who: "A, with its secret", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, asks: downloads,
			says: `Pulling: Pulling image (?s:.*)Pulled: Successfully pulled image`, text: s.Name() + "app:1",
		},
		step{who: "A again", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, asks: s.recheck(), says: `Pulled: `},
		step{who: "C, the same credential in a secret of its own", pod: pod{team: "c", image: app, secrets: with(node.Alice())}, want: running, asks: s.recheck()},
		step{who: "B without a secret", pod: pod{team: "b", image: app}, want: pullFailed, asks: refusals, says: `Failed to pull image.*(` + denied + `)`},
		step{who: "B without a secret, Never", pod: pod{team: "b", image: app, policy: never}, want: neverPulled, says: `ErrImageNeverPull: .*is not present with pull policy of Never`},
		step{who: "B with a wrong secret", pod: pod{team: "b", image: app, secrets: with(node.Mallory())}, want: pullFailed, asks: refusals, says: denied},
		step{who: "B with a wrong secret, Never", pod: pod{team: "b", image: app, policy: never, secrets: with(node.Mallory())}, want: neverPulled},
		step{who: "B with a secret for another registry", pod: pod{team: "b", image: app, secrets: elsewhere}, want: pullFailed, asks: refusals, says: denied},
		step{who: "D, another credential that the registry takes", pod: pod{team: "d", image: app, secrets: with(node.Dora())}, want: running, asks: manifest},
		step{who: "D again", pod: pod{team: "d", image: app, secrets: with(node.Dora())}, want: running, asks: s.recheck()},
		// Which of the two comes first is the kubelet's choice; the wrong one may be asked about.
		step{who: "D with a wrong secret before the right one", pod: pod{team: "d", image: app, secrets: with(node.Mallory(), node.Dora())}, want: running, asks: anything},
	)
}

// What is pulled anonymously is everybody's.
func public(s *story) {
	app, first := s.public("app:1"), s.public("first-with-a-secret:1")
	s.tell(
		step{who: "A without a secret", pod: pod{team: "a", image: app}, want: running, asks: downloads},
		step{who: "B without a secret", pod: pod{team: "b", image: app}, want: running},
		step{who: "B with a secret", pod: pod{team: "b", image: app, secrets: with(node.Mallory())}, want: running},
		step{who: "B, Never", pod: pod{team: "b", image: app, policy: never}, want: running},

		step{who: "A with a secret that the registry does not ask for", pod: pod{team: "a", image: first, secrets: with(node.Alice())}, want: running, asks: downloads},
		step{who: "B, Never, before anybody asked without", pod: pod{team: "b", image: first, policy: never}, want: neverPulled},
		step{who: "B without a secret", pod: pod{team: "b", image: first}, want: running, asks: manifest},
		step{who: "C without a secret, from then on", pod: pod{team: "c", image: first}, want: running},
		step{who: "C, Never", pod: pod{team: "c", image: first, policy: never}, want: running},
	)
}

// Always asks the registry every time and sees a tag that has moved. IfNotPresent keeps what it has,
// until somebody's pull moves the tag on the node: one with Always, or one that has to prove itself.
func tags(s *story) {
	one, two := node.Image{Content: s.Name() + " one"}, node.Image{Content: s.Name() + " two"}
	app, proving := s.push(s.Private, "app:1", one), s.push(s.Private, "proving:1", one)
	a := func(image node.Pushed, policy corev1.PullPolicy) pod {
		return pod{team: "a", image: image, policy: policy, secrets: with(node.Alice())}
	}
	s.tell(
		step{who: "A, Always", pod: a(app, always), want: running, asks: downloads, text: one.Content},
		step{who: "A, Always, again", pod: a(app, always), want: running, asks: manifest, text: one.Content},
		step{who: "B, Always, without a secret", pod: pod{team: "b", image: app, policy: always}, want: pullFailed, asks: refusals, says: denied},
		step{who: "A pulls the second image", pod: a(proving, ifNotPresent), want: running, asks: anything, text: one.Content},
	)
	s.push(s.Private, "app:1", two)
	s.push(s.Private, "proving:1", two)
	if s.recheck() == manifest {
		// What is taken for a pull asks the registry, which has another image under the tag by now.
		s.tell(step{who: "A, IfNotPresent, after the tag has moved", pod: a(app, ifNotPresent), want: running, asks: downloads, text: two.Content})
	} else {
		s.tell(step{who: "A, IfNotPresent, after the tag has moved", pod: a(app, ifNotPresent), want: running, asks: nothing, text: one.Content})
	}
	s.tell(
		step{who: "A, Always, after the tag has moved", pod: a(app, always), want: running, asks: anything, text: two.Content},
		step{who: "A, IfNotPresent, after its pull moved the tag here", pod: a(app, ifNotPresent), want: running, asks: s.recheck(), text: two.Content},
		step{who: "B without a secret", pod: pod{team: "b", image: app}, want: pullFailed, asks: refusals, says: denied},
	)
	s.tell(
		step{who: "D proves itself, which moves the tag here", pod: pod{team: "d", image: proving, secrets: with(node.Dora())}, want: running, asks: anything, text: two.Content},
		step{who: "A has to prove itself for what the tag is now", pod: a(proving, ifNotPresent), want: running, asks: manifest, text: two.Content},
		step{who: "A again", pod: a(proving, ifNotPresent), want: running, asks: s.recheck(), text: two.Content},
	)
}

// recheck is what a re-pull of a proved image costs: nothing, but on kubelets whose re-pull cannot be
// told from a pull that the policy Always asks for, unless the pod source tells the policy.
func (s *story) recheck() string {
	if s.cluster.Release() == kubelet130 && !s.sourced {
		return manifest
	}
	return nothing
}
