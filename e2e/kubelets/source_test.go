package kubelets_test

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// settings are lines of pullgated's configuration; with the pod source, if it is on.
func (m *machine) settings(lines ...string) []string {
	if m.sourced {
		lines = append(lines, "podSource: {kubeconfig: "+m.kubelet.Kubeconfig()+"}")
	}
	return lines
}

// The pod source is turned on, on a node in use: with the kubelet's own kubeconfig, and nothing else. Running
// pods continue.
func sourced(s *scenario) {
	app := s.private("app:1")
	stay := []*outcome{s.keep(step{name: "A, with its secret", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, requests: downloads})}
	before := s.containers(stay)
	s.machine.sourced = true
	s.must(s.gate.Restart(s.Context(), s.settings()...))
	s.waitUntilSynced()
	if after := s.containers(stay); after[stay[0].pod.Name] != before[stay[0].pod.Name] {
		s.Errorf("the pod that ran has the container %v; want %v, that from before", after, before)
	}
	// That credential was proved when its Secret was not known.
	s.runSteps(
		step{name: "A, Never", pod: pod{team: "a", image: app, policy: never, secrets: with(node.Alice())}, want: running},
		step{name: "B, Never", pod: pod{team: "b", image: app, policy: never}, want: neverPulled},
	)
}

// waitUntilSynced waits until the pod source is synced with the API server.
func (s *scenario) waitUntilSynced() {
	s.Helper()
	s.waitFor("pullgate_pod_source_synced", 1)
}

// Only with the pod source pullgated knows that a pod with Never has the credential, in any namespace.
func exactly(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", node.Image{})
	a := func(team string, policy corev1.PullPolicy, l ...node.Login) pod {
		return pod{team: team, image: app, policy: policy, secrets: with(l...)}
	}
	s.runSteps(
		step{name: "A, Always", pod: a("a", always, node.Alice()), want: running, requests: downloads},
		step{name: "A, Never", pod: a("a", never, node.Alice()), want: running},
		step{name: "C, Never, the same credential in another namespace", pod: a("c", never, node.Alice()), want: running},
		step{name: "C, Never, an invalid secret before the valid one", pod: a("c", never, node.Mallory(), node.Alice()), want: running},
		step{name: "B, Never, without a secret", pod: a("b", never), want: neverPulled},
		step{name: "B, Never, with an invalid secret", pod: a("b", never, node.Mallory()), want: neverPulled},
		step{name: "D, Never, with a credential without a proof", pod: a("d", never, node.Dora()), want: neverPulled},
		step{name: "D, IfNotPresent", pod: a("d", ifNotPresent, node.Dora()), want: running, requests: manifest},
		step{name: "D, Never, afterwards", pod: a("d", never, node.Dora()), want: running},
		step{name: "C, IfNotPresent", pod: a("c", ifNotPresent, node.Alice()), want: running, message: `already present on machine`},
		step{name: "A, Always, again", pod: a("a", always, node.Alice()), want: running, requests: manifest},
	)
	s.must(r.Down())
	s.runSteps(
		step{name: "A, Always, the registry down", pod: a("a", always, node.Alice()), want: pullFailed, message: `connection refused`},
		step{name: "A, IfNotPresent, the registry down", pod: a("a", ifNotPresent, node.Alice()), want: running},
	)
	s.must(r.Up())
}

// The new content of a Secret replaces its proofs while no registry can be reached. A recreated Secret is another one.
func rotation(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", node.Image{})
	owner := pod{team: "a", image: app, secrets: with(node.Alice())}
	neverOwner := owner
	neverOwner.policy = never
	s.runSteps(step{name: "A, with its secret", pod: owner, want: running, requests: downloads})
	s.must(r.Down())
	name := "pull-" + node.Alice().Username
	s.content(name, node.Login{Username: node.Alice().Username, Password: "canary-3b1e-rotated"}, false)
	s.runSteps(
		step{name: "A, Never, its Secret rotated", pod: neverOwner, want: running},
		step{name: "A, its Secret rotated", pod: owner, want: running},
		step{name: "C with the content from before", pod: pod{team: "c", image: app, secrets: with(node.Alice())}, want: pullFailed, message: `connection refused`},
	)
	s.content(name, node.Login{Username: node.Alice().Username, Password: "canary-8c44-recreated"}, true)
	s.runSteps(
		step{name: "A, its Secret recreated", pod: owner, want: pullFailed, message: `connection refused`},
		step{name: "A, Never, its Secret recreated", pod: neverOwner, want: neverPulled},
	)
	s.must(r.Up())
}

// content gives a Secret of team a another content, or recreates it.
func (s *scenario) content(name string, l node.Login, recreate bool) {
	s.Helper()
	secrets := s.cluster.Client.CoreV1().Secrets(s.namespace("a"))
	next := cluster.PullSecret(name, s.registries[0].Host(), l.Username, l.Password)
	var err error
	if recreate {
		s.must(secrets.Delete(s.Context(), name, metav1.DeleteOptions{}))
		_, err = secrets.Create(s.Context(), next, metav1.CreateOptions{})
	} else {
		_, err = secrets.Update(s.Context(), next, metav1.UpdateOptions{})
	}
	s.must(err)
}

// While there is no API server, known pods continue, also after a restart of pullgated, which then
// has no identities. The node stays ready.
func apiServerOutage(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", node.Image{Entrypoint: []string{"/bin/sh", "-c", "cat /content; sleep 1; exit 7"}})
	owner := pod{team: "a", image: app, secrets: with(node.Alice())}
	o := s.keep(step{name: "A's pod that ends at once", pod: owner, want: running, requests: downloads})
	s.must(r.Down())
	s.restarted(o, 1)
	starts := func() int {
		text, err := s.kubelet.Output(o.pod.Namespace, o.pod.Name, string(o.pod.UID), "main")
		s.must(err)
		return strings.Count(text, "\n")
	}
	s.must(s.cluster.StopAPI())
	for _, what := range []string{"stopped", "was down when pullgated started"} {
		before := starts()
		if !host.Within(2*patience, func() bool { return starts() != before }) {
			s.Fatalf("no container was started after the API server %s\n%s", what, s.lastOutput())
		}
		if s.metric("pullgate_pod_source_synced") != 0 || s.metric("pullgate_pod_source_errors_total") == 0 {
			s.Errorf("the metrics do not show that the API server %s", what)
		}
		s.must(s.gate.Ready())
		s.must(s.gate.Kill())
		s.must(s.gate.Start(s.Context()))
	}
	s.must(s.cluster.StartAPI(s.Context()))
	s.waitUntilSynced()
	owner.policy = never
	s.runSteps(
		step{name: "A, Never, the API server back", pod: owner, want: running},
		step{name: "B, Never, the API server back", pod: pod{team: "b", image: app, policy: never}, want: neverPulled},
	)
}

// After a restart of the kubelet its pods ask by a value that no sandbox carries. The API server has the pods that they
// may be.
func restartedKubelet(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", node.Image{Entrypoint: []string{"/bin/sh", "-c", "cat /content; sleep 1; exit 7"}})
	s.runSteps(step{name: "A pulls", pod: pod{team: "x", image: app, secrets: with(node.Alice())}, want: running, requests: downloads})
	o := s.keep(step{name: "A's pod that ends at once, Never", pod: pod{team: "a", image: app, policy: never, secrets: with(node.Alice())}, want: running})
	s.must(r.Down())
	s.restarted(o, 1)
	s.gone("x")
	s.must(s.restartKubelet(s.Context(), quick()))
	// A pod that has ended, but whose sandbox is still there, could be the one that asks.
	s.must(s.runtimeClient().RemoveStopped(s.Context()))
	before := s.look(o).restarts()
	if !host.Within(2*patience, func() bool { return s.look(o).restarts() > before }) {
		s.Fatalf("%s%s; want it still running\n%s", o, s.events(o.pod), s.lastOutput())
	}
}

// pullSlowly has a pod pull an image for some time, in which a kubelet that pulls one after the other pulls no
// other one. It returns when that has begun.
func (s *scenario) pullSlowly(d time.Duration) {
	s.Helper()
	r := s.registry()
	large := s.push(r, "large:1", node.Image{})
	asked, release := r.HoldBlobs()
	s.Cleanup(release)
	s.kept = append(s.kept, &outcome{want: running, image: large, pod: s.create(pod{team: "l", image: large, secrets: with(node.Alice())})})
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	select {
	case <-asked:
		time.AfterFunc(d, release)
	case <-ctx.Done():
		s.Fatalf("the large image is not pulled\n%s", s.lastOutput())
	}
}
