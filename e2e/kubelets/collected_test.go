package kubelets_test

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// The kubelet removes images that no pod uses when space for images gets short. With an image its
// records go, so that it needs proof once it is back; those of others stay.
func collected(s *scenario) {
	app, stays := s.private("app:1"), s.private("stays:1")
	a, d := with(node.Alice()), with(node.Dora())
	critical := func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" } // which is never evicted
	s.keep(step{name: "A, with its secret", pod: pod{team: "a", image: stays, secrets: a, change: critical}, want: running, requests: downloads})
	s.runSteps(
		step{name: "A, with its secret", pod: pod{team: "a", image: app, secrets: a}, want: running, requests: downloads},
		step{name: "D proves itself", pod: pod{team: "d", image: app, secrets: d}, want: running, requests: manifest},
	)
	// More than there can be: the file system is the machine's, and a threshold near what is free would be met
	// as soon as something else is removed. 100% would mean no threshold.
	s.must(s.restartKubelet(s.Context(), cluster.Settings{
		"evictionHard":      map[string]string{"imagefs.available": "99%"},
		"imageMinimumGCAge": "1s",
		// Else it measures no file system.
		"localStorageCapacityIsolation": true,
	}))
	k := s.runtimeClient()
	removed := func() bool {
		there, err := k.HasImage(s.Context(), app.Name)
		s.must(err)
		return !there
	}
	if !host.Within(patience, removed) {
		s.Fatalf("the kubelet does not remove %s\n%s", app.Name, s.lastOutput())
	}
	s.must(s.restartKubelet(s.Context(), quick()))

	s.runSteps(
		step{name: "C on the image that stayed", pod: pod{team: "c", image: stays, secrets: a}, want: running, requests: s.recheck()},
		step{name: "B on the image that stayed", pod: pod{team: "b", image: stays}, want: pullFailed, requests: refusals, message: denied},
		step{name: "A on the removed image", pod: pod{team: "a", image: app, secrets: a}, want: running, requests: downloads},
		step{name: "B on the image that came back", pod: pod{team: "b", image: app}, want: pullFailed, requests: refusals, message: denied},
		step{name: "D, proved before, has to prove itself again", pod: pod{team: "d", image: app, secrets: d}, want: running, requests: manifest},
	)
}
