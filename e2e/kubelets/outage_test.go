package kubelets_test

import (
	"context"
	"net/http"
	"time"

	"github.com/pullgate/pullgate/e2e/node"
)

// While the registry is down, slow, or answers with an error, pods whose credential is proved start, but not with
// Always, nor where that cannot be told. Others wait; their events show whether the registry denied them or could not
// be reached. No pod without a proof starts.
// Shows: 001-17, 001-22
func outage(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", node.Image{})
	owner := use("a", app, alice)
	s.runSteps(runs("A, with its secret", owner, downloads))
	answer := func(status int) func() { return func() { r.Answer(status) } }
	for _, f := range []struct {
		name  string
		begin func()
		event string
	}{
		{"down", func() { s.must(r.Down()) }, `connection refused`},
		{"answering 429", answer(http.StatusTooManyRequests), `429 Too Many Requests`},
		{"answering 500", answer(http.StatusInternalServerError), `500 Internal Server Error`},
		{"answering 503", answer(http.StatusServiceUnavailable), `503 Service Unavailable`},
		{"answering 401", answer(http.StatusUnauthorized), denied},
		{"answering 403", answer(http.StatusForbidden), `403 Forbidden`},
		{"answering 404", answer(http.StatusNotFound), `not found`},
	} {
		f.begin()
		proved := running
		if s.recheck() == manifest {
			proved = pullFailed // its re-pull looks like a pull with Always
		}
		s.runStepsAtOnce(
			step{name: "A, the registry " + f.name, pod: owner, want: proved},
			fails("A, Always, the registry "+f.name, owner.pulls(always), f.event),
			fails("D, not proved, the registry "+f.name, use("d", app, dora), f.event),
			fails("B without a secret, the registry "+f.name, use("b", app), f.event),
			hides("B, Never, the registry "+f.name, use("b", app).pulls(never)),
		)
		r.Answer(0)
		s.must(r.Up())
	}
	r.Fault(func(_ http.ResponseWriter, req *http.Request) bool {
		wait, done := context.WithTimeout(req.Context(), 2*time.Second)
		defer done()
		<-wait.Done()
		return false
	})
	s.runSteps(
		runs("A, the registry slow", owner, s.recheck()),
		refuses("B without a secret, the registry slow", use("b", app)),
		runs("D, not proved, the registry slow", use("d", app, dora), manifest),
	)
}
