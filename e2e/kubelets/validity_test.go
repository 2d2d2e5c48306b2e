package kubelets_test

import (
	"context"
	"fmt"
	"time"

	"github.com/pullgate/pullgate/e2e/node"
)

// A proof that is older than credentialValidity is renewed at the registry by the next pod. While the registry is
// down it is valid for registryUnavailableGrace longer, and without a grace it does not.
func expiry(s *scenario) {
	const validity = 3 * time.Second
	expires := fmt.Sprintf("credentialValidity: %s", validity)
	expired := func() { time.Sleep(validity) }
	install := func(settings ...string) {
		s.must(s.gate.Restart(context.WithoutCancel(s.Context()), s.settings(settings...)...))
		if s.sourced {
			s.waitUntilSynced()
		}
	}
	s.Cleanup(func() { install("credentialValidity: 0s") })
	r := s.registry()
	app := s.push(r, "app:1", node.Image{})
	owner := pod{team: "a", image: app, secrets: with(node.Alice())}
	ownerNever := owner
	ownerNever.policy = never
	want := neverPulled
	if s.sourced { // the registry will not be asked for it, so that the grace has begun
		want = running
	}

	install(expires, "registryUnavailableGrace: 1h")
	s.runSteps(step{name: "A, with its secret", pod: owner, want: running, requests: downloads})
	expired()
	s.runSteps(
		step{name: "A, Never, its proof expired", pod: ownerNever, want: want},
		step{name: "A, its proof expired", pod: owner, want: running, requests: manifest},
	)
	expired()
	s.must(r.Down())
	s.runSteps(
		step{name: "A, its proof expired and the registry down", pod: owner, want: running},
		step{name: "D, not proved", pod: pod{team: "d", image: app, secrets: with(node.Dora())}, want: pullFailed, message: `connection refused`},
		step{name: "B without a secret", pod: pod{team: "b", image: app}, want: pullFailed, message: `connection refused`},
	)

	install(expires)
	s.runSteps(
		step{name: "A, its proof expired, the registry down, no grace", pod: owner, want: pullFailed, message: `connection refused`},
		step{name: "A, Never, its proof expired, no grace", pod: ownerNever, want: neverPulled},
	)
	s.must(r.Up())
	s.runSteps(step{name: "A, the registry back", pod: owner, want: running, requests: manifest})
}
