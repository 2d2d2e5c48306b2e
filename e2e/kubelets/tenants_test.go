package kubelets_test

import "github.com/pullgate/pullgate/e2e/node"

// The control: without pullgate any tenant runs what another one's secret has pulled. If this does not
// hold, the rest proves nothing.
func hole(s *story) {
	app := s.private("app:1")
	s.tell(
		step{"A, with its secret", pod{team: "a", image: app, secrets: with(node.Alice())}, running, downloads},
		step{"B without a secret", pod{team: "b", image: app}, running, nothing},
		step{"B without a secret, Never", pod{team: "b", image: app, policy: never}, running, nothing},
	)
}

// The owner goes on as before, and so does who has the same credential. Others are refused, with
// the registry's own words.
func tenants(s *story) {
	app := s.private("app:1")
	s.tell(
		step{"A, with its secret", pod{team: "a", image: app, secrets: with(node.Alice())}, running, downloads},
		step{"A again", pod{team: "a", image: app, secrets: with(node.Alice())}, running, s.recheck()},
		step{"C, the same credential in a secret of its own", pod{team: "c", image: app, secrets: with(node.Alice())}, running, s.recheck()},
		step{"B without a secret", pod{team: "b", image: app}, pullFailed, refusals},
		step{"B without a secret, Never", pod{team: "b", image: app, policy: never}, neverPulled, nothing},
	)
}

// recheck is what a re-pull of a proved image costs: nothing, but on kubelets whose re-pull cannot be
// told from a pull that the policy Always asks for.
func (s *story) recheck() string {
	if s.cluster.Release() == kubelet130 {
		return manifest
	}
	return nothing
}
