package kubelets_test

import (
	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
)

// The kubelet removes unused images when space gets short. Their records go with them; those of others stay.
// Shows: 001-24
func collected(s *scenario) {
	app, stays := s.private("app:1"), s.private("stays:1")
	critical := func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" } // which is never evicted
	s.keep(runs("A, with its secret", use("a", stays, alice).but(critical), downloads))
	s.runSteps(
		runs("A, with its secret", use("a", app, alice), downloads),
		runs("D proves itself", use("d", app, dora), manifest),
	)
	// More than there can be, because the file system is the machine's. 100% would mean no threshold.
	s.must(s.restartKubelet(s.Context(), cluster.Settings{
		"evictionHard":      map[string]string{"imagefs.available": "99%"},
		"imageMinimumGCAge": "1s",
		// Else it measures no file system.
		"localStorageCapacityIsolation": true,
	}))
	k := s.runtimeClient()
	removed := func() bool {
		there := testkit.Value(k.HasImage(s.Context(), app.Name))(s)
		return !there
	}
	if !host.Within(patience, removed) {
		s.Fatalf("the kubelet does not remove %s", app.Name)
	}
	s.must(s.restartKubelet(s.Context(), quick()))

	s.runSteps(
		runs("C on the image that stayed", use("c", stays, alice), s.recheck()),
		refuses("B on the image that stayed", use("b", stays)),
		runs("A on the removed image", use("a", app, alice), downloads),
		refuses("B on the image that came back", use("b", app)),
		runs("D, proved before, has to prove itself again", use("d", app, dora), manifest),
	)
}
