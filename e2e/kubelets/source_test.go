package kubelets_test

import (
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
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

// The pod source is turned on, on a node in use, with the kubelet's own kubeconfig. Running pods continue.
func sourced(s *scenario) {
	app := s.private("app:1")
	stay := []*outcome{s.keep(runs("A, with its secret", use("a", app, alice), downloads))}
	before := s.containers(stay)
	s.machine.sourced = true
	s.must(s.gate.Restart(s.Context(), s.settings()...))
	s.waitUntilSynced()
	if after := s.containers(stay); after[stay[0].pod.Name] != before[stay[0].pod.Name] {
		s.Errorf("the pod that ran has the container %v; want %v, that from before", after, before)
	}
	// That credential was proved when its Secret was not known.
	s.runSteps(
		runs("A, Never", use("a", app, alice).pulls(never), nothing),
		hides("B, Never", use("b", app).pulls(never)),
	)
}

// waitForCondition waits until the node's condition has a status and a reason, beside those of the kubelet.
func (s *scenario) waitForCondition(status corev1.ConditionStatus, reason string) {
	s.Helper()
	began, found := time.Now(), map[corev1.NodeConditionType]corev1.NodeCondition{}
	is := func() bool {
		n := testkit.Value(s.core.Nodes().Get(s.Context(), s.kubelet.Name(), metav1.GetOptions{}))(s)
		clear(found)
		for _, c := range n.Status.Conditions {
			found[c.Type] = c
		}
		c := found["PullgateEnforcing"]
		return c.Status == status && c.Reason == reason
	}
	if !host.Within(patience, is) {
		s.Fatalf("the condition is %+v; want %s, %s", found["PullgateEnforcing"], status, reason)
	}
	for _, other := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure} {
		if found[other].Status == "" {
			s.Errorf("the kubelet's condition %s is gone", other)
		}
	}
	s.Logf("After %v: %s", time.Since(began).Round(time.Second), found["PullgateEnforcing"].Message)
}

func (s *scenario) waitUntilSynced() {
	s.Helper()
	s.waitFor("pullgate_pod_source_synced", 1)
}

// Only with the pod source pullgated knows that a pod with Never has the credential, in any namespace.
// Shows: 001-03
func exactly(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", node.Image{})
	absent := node.Pushed{Built: app.Built, Name: app.Name + "-absent", Repository: app.Repository}
	a := func(team string, policy corev1.PullPolicy, l ...node.Login) pod {
		return use(team, app, l...).pulls(policy)
	}
	s.runSteps(
		runs("A, Always", a("a", always, alice), downloads),
		runs("A, Never", a("a", never, alice), nothing),
		runs("C, Never, the same credential in another namespace", a("c", never, alice), nothing),
		runs("C, Never, an invalid secret before the valid one", a("c", never, mallory, alice), nothing),
		hides("B, Never, without a secret", a("b", never)).says(`this node checks pull credentials for each pod`),
		hides("B, Never, of an image that the node does not have", use("b", absent).pulls(never)).
			says(`this node checks pull credentials for each pod; see imagePullSecrets`),
		hides("B, Never, with an invalid secret", a("b", never, mallory)),
		hides("D, Never, with a credential without a proof", a("d", never, dora)),
		runs("D, IfNotPresent", a("d", ifNotPresent, dora), manifest),
		runs("D, Never, afterwards", a("d", never, dora), nothing),
		runs("C, IfNotPresent", a("c", ifNotPresent, alice), nothing).says(`already present on machine`),
		runs("A, Always, again", a("a", always, alice), manifest),
	)
	s.must(r.Down())
	s.runSteps(
		fails("A, Always, the registry down", a("a", always, alice), `connection refused`),
		runs("A, IfNotPresent, the registry down", a("a", ifNotPresent, alice), nothing),
	)
	s.must(r.Up())
}

// The new content of a Secret replaces its proofs while no registry can be reached. A recreated Secret is another one.
// Shows: 001-27
func rotation(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", node.Image{})
	owner := use("a", app, alice)
	s.runSteps(runs("A, with its secret", owner, downloads))
	s.must(r.Down())
	name := "pull-" + alice.Username
	s.content(name, node.Login{Username: alice.Username, Password: "canary-3b1e-rotated"}, false)
	s.runSteps(
		runs("A, Never, its Secret rotated", owner.pulls(never), nothing),
		runs("A, its Secret rotated", owner, nothing),
		fails("C with the content from before", use("c", app, alice), `connection refused`),
	)
	s.content(name, node.Login{Username: alice.Username, Password: "canary-8c44-recreated"}, true)
	s.runSteps(
		fails("A, its Secret recreated", owner, `connection refused`),
		hides("A, Never, its Secret recreated", owner.pulls(never)),
	)
	s.must(r.Up())
}

func (s *scenario) content(name string, l node.Login, recreate bool) {
	s.Helper()
	secrets := s.core.Secrets(s.namespace("a"))
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

// Without an API server known pods continue, also after a restart of pullgated. The node stays ready.
// Shows: 001-37
func apiServerOutage(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", imageThatEndsSoon())
	owner := use("a", app, alice)
	o := s.keep(runs("A's pod that ends at once", owner, downloads))
	s.must(r.Down())
	s.restarted(o, 1)
	starts := func() int {
		text := testkit.Value(s.kubelet.Output(o.pod.Namespace, o.pod.Name, string(o.pod.UID), "main"))(s)
		return strings.Count(text, "\n")
	}
	s.must(s.cluster.StopAPI())
	for _, what := range []string{"stopped", "was down when pullgated started"} {
		before := starts()
		if !host.Within(2*patience, func() bool { return starts() != before }) {
			s.Fatalf("no container was started after the API server %s", what)
		}
		s.waitFor("pullgate_pod_source_synced", 0)
		if !host.Within(patience, func() bool { return s.metric("pullgate_pod_source_errors_total") > 0 }) {
			s.Errorf("the metrics do not show that the API server %s", what)
		}
		s.must(s.gate.Ready())
		s.must(s.gate.Kill())
		s.must(s.gate.Start(s.Context()))
	}
	s.must(s.cluster.StartAPI(s.Context()))
	s.waitUntilSynced()
	s.runSteps(
		runs("A, Never, the API server back", owner.pulls(never), nothing),
		hides("B, Never, the API server back", use("b", app).pulls(never)),
	)
}

// After a restart of the kubelet its pods ask by a value that no sandbox carries. The API server has the pods. Before,
// the kubelet runs past pullgated, and the first container that it creates shows that in the node's condition.
func restartedKubelet(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", imageThatEndsSoon())
	s.runSteps(runs("A pulls", use("x", app, alice), downloads))
	o := s.keep(runs("A's pod that ends at once, Never", use("a", app, alice).pulls(never), nothing))
	s.must(r.Down())
	s.restarted(o, 1)
	s.gone("x")
	s.waitForCondition(corev1.ConditionTrue, "Enforcing")
	if s.isMain() {
		s.must(s.kubelet.Stop())
		s.must(s.unprotected(s.Context()))
		s.waitForCondition(corev1.ConditionFalse, "Bypassed")
	}
	s.must(s.restartKubelet(s.Context(), quick()))
	// A pod that has ended, but whose sandbox is still there, could be the one that asks.
	s.must(s.runtimeClient().RemoveStopped(s.Context()))
	before := s.look(o).restarts()
	if !host.Within(2*patience, func() bool { return s.look(o).restarts() > before }) {
		s.Fatalf("%s%s; want it still running", o, s.events(o.pod))
	}
}
