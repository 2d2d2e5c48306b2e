package kubelets_test

import (
	"context"
	"fmt"
	"time"

	"github.com/pullgate/pullgate/e2e/node"
)

// A proof older than credentialValidity is renewed by the next pod. registryUnavailableGrace prolongs it in an outage.
// Shows: 001-23
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
	owner := use("a", app, alice)
	want := neverPulled
	if s.sourced { // the registry will not be asked for it, so that the grace has begun
		want = running
	}

	install(expires, "registryUnavailableGrace: 1h")
	s.runSteps(runs("A, with its secret", owner, downloads))
	expired()
	s.runSteps(
		step{name: "A, Never, its proof expired", pod: owner.pulls(never), want: want},
		runs("A, its proof expired", owner, manifest),
	)
	expired()
	s.must(r.Down())
	s.runSteps(
		runs("A, its proof expired and the registry down", owner, nothing),
		fails("D, not proved", use("d", app, dora), `connection refused`),
		fails("B without a secret", use("b", app), `connection refused`),
	)

	install(expires)
	s.runSteps(
		fails("A, its proof expired, the registry down, no grace", owner, `connection refused`),
		hides("A, Never, its proof expired, no grace", owner.pulls(never)),
	)
	s.must(r.Up())
	s.runSteps(runs("A, the registry back", owner, manifest))
}
