package kubelets_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// pullgate is installed on a node in use: pods keep their containers, and what is present stays open by default.
// Shows: 001-31
func installed(s *scenario) {
	app := s.private("app:1")
	stay := []*outcome{s.keep(runs("A, with its secret", use("a", app, alice), downloads))}
	before := s.containers(stay)
	s.preload()
	s.must(s.protect(s.Context()))
	s.runSteps(runs("B on an image from before", use("b", app).pulls(never), nothing))
	if after := s.containers(stay); !maps.Equal(before, after) {
		s.Errorf("the pod that ran has the container %v; want %v, that from before", after, before)
	}
}

// What the kubelet pulls while it does not use pullgated needs proof when it does again, also after a restart of
// pullgated.
func bypassed(s *scenario) {
	app, again := s.private("app:1"), s.private("again:1")
	s.must(s.kubelet.Stop())
	s.must(s.unprotected(s.Context()))
	s.runSteps(runs("A, with its secret, past pullgated", use("a", app, alice), downloads))
	s.must(s.restartKubelet(s.Context(), quick()))
	judged := func(app node.Pushed) {
		s.Helper()
		s.runSteps(
			hides("B, Never, on what came past pullgated", use("b", app).pulls(never)),
			refuses("B without a secret", use("b", app)),
			runs("C, with the secret", use("c", app, alice), manifest),
		)
	}
	judged(app)
	s.must(s.kubelet.Stop())
	s.must(s.unprotected(s.Context()))
	s.runSteps(runs("A, with its secret, past pullgated again", use("a", again, alice), downloads))
	s.must(s.gate.Restart(s.Context()))
	s.must(s.restartKubelet(s.Context(), quick()))
	judged(again)
}

// After each kind of restart, running pods continue with the containers they have, new ones are judged as
// before, and nothing is opened. The registry is down meanwhile, so that it cannot be the reason why a pod starts.
// Shows: 001-19, 001-31
func restarts(s *scenario) {
	r := s.registry()
	app, free := s.push(r, "app:1", node.Image{}), s.public("free:1")
	owner := use("a", app, alice)
	if s.recheck() == manifest { // its re-pull looks like a pull with Always, and would wait for the registry
		defer func() {
			s.must(s.gate.Restart(context.WithoutCancel(s.Context()), s.settings("registryOutageFallback: false")...))
		}()
		s.must(s.gate.Restart(s.Context(), s.settings("registryOutageFallback: true")...))
	}
	stay := []*outcome{
		s.keep(runs("A, with its secret", owner, downloads)),
		s.keep(runs("B on a public image", use("b", free), downloads)),
	}
	s.must(r.Down())
	before := s.containers(stay)
	check := func(what string) {
		s.Helper()
		s.runStepsAtOnce(
			runs("A, new, after "+what, owner, nothing),
			runs("B on the public image, after "+what, use("b", free).pulls(never), nothing),
			fails("B without a secret, after "+what, use("b", app), `connection refused`),
			hides("B, Never, after "+what, use("b", app).pulls(never)),
		)
		if after := s.containers(stay); !maps.Equal(before, after) {
			s.Errorf("after %s the pods that ran have containers %v; want %v, those from before", what, after, before)
		}
	}
	check("nothing")
	s.must(s.restartKubelet(s.Context(), quick()))
	check("a restart of the kubelet")
	s.must(s.gate.Restart(s.Context()))
	check("a restart of pullgated")
	s.must(s.gate.Kill())
	s.must(s.gate.Start(s.Context()))
	check("a kill of pullgated")
	s.must(s.Containerd.Restart(s.Context()))
	check("a restart of containerd")

	s.powerCycle()
	for _, o := range stay {
		s.replaced(o, "a reboot")
	}
	before = s.containers(stay)
	check("a reboot")
}

func (s *scenario) powerCycle() {
	s.Helper()
	s.must(s.kubelet.Kill())
	s.must(s.gate.Kill())
	s.must(s.Containerd.Reboot(s.Context()))
	s.must(s.gate.Start(s.Context()))
	s.must(s.kubelet.Start(s.Context(), s.gate.Endpoint(), quick()))
}

func (s *scenario) containers(pods []*outcome) map[string]string {
	s.Helper()
	ids := map[string]string{}
	for _, o := range pods {
		s.look(o)
		ids[o.pod.Name] = ""
		for _, c := range o.pod.Status.ContainerStatuses {
			if c.State.Running != nil {
				ids[o.pod.Name] = c.ContainerID
			}
		}
	}
	return ids
}

// pullgated is killed while pods start, each time at another moment. In the end every pod is what it should be.
func kills(s *scenario) {
	app := s.private("app:1")
	owner := use("a", app, alice)
	s.runSteps(runs("A, with its secret", owner, downloads))
	var good, bad []*outcome
	for i := range 5 {
		fresh := s.private(fmt.Sprintf("fresh-%d:1", i))
		for _, p := range []pod{
			owner,
			use("a", fresh, alice),
			use("b", app),
			use("b", fresh),
			use("b", app).pulls(never),
		} {
			o := &outcome{image: p.image, pod: s.create(p), want: running}
			if p.team == "a" {
				good = append(good, o)
			} else {
				o.want = "refused"
				bad = append(bad, o)
			}
			s.kept = append(s.kept, o)
		}
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
		s.must(s.gate.Kill())
		time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
		s.must(s.gate.Start(s.Context()))
	}
	left := 0
	settled := func() bool {
		left = 0
		for _, o := range slices.Concat(good, bad) {
			s.look(o)
			if o.want != running && o.state == running {
				s.Fatalf("%s; want it refused", o)
			}
			if o.state != running && (o.want == running || o.state != pullFailed && o.state != neverPulled) {
				left++
			}
		}
		return left == 0
	}
	if !host.Within(3*time.Minute, settled) {
		for _, o := range slices.Concat(good, bad) {
			s.Logf("%s; want %s", o, o.want)
		}
		s.Fatalf("%d pods are not what they should be", left)
	}
}

// A static pod starts while there is no API server, whichever pod pulled its image.
// Shows: 001-37
func static(s *scenario) {
	app := s.private("app:1")
	s.runSteps(runs("A, with its secret", use("a", app, alice), downloads))
	s.must(s.kubelet.Stop())
	s.must(s.cluster.StopAPI())
	s.must(s.kubelet.Start(s.Context(), s.gate.Endpoint(), quick()))
	s.runsStatic(s.preloaded["preloaded/never"], never)
	s.runsStatic(s.preloaded["preloaded/ifnotpresent"], ifNotPresent)
	// A kubelet that verifies makes no exception for static pods.
	s.must(s.restartKubelet(s.Context(), s.withoutNative()))
	s.runsStatic(app, never)
	s.runsStatic(app, ifNotPresent)
	s.must(s.cluster.StartAPI(s.Context()))
	s.must(s.restartKubelet(s.Context(), quick()))
	if s.sourced { // else a kubelet of 1.30 is judged as if there were no source
		s.waitUntilSynced()
	}
	s.runSteps(
		refuses("B without a secret, afterwards", use("b", app)),
		runs("A, afterwards", use("a", app, alice), s.recheck()),
	)
}

// runsStatic puts a static pod on the node, waits until the runtime runs it, and removes it.
func (s *scenario) runsStatic(image node.Pushed, policy corev1.PullPolicy) {
	s.Helper()
	name := s.manifest(use("kube", image).pulls(policy)).Name
	k := s.runtimeClient()
	runs := func() bool {
		n := testkit.Value(k.RunningIn(s.Context(), name+"-"+s.kubelet.Name()))(s)
		return n > 0
	}
	if !host.Within(patience, runs) {
		s.Fatalf("the static pod on %s, %s, does not run", image.Name, policy)
	}
	s.must(s.kubelet.RemoveManifest(name))
}

func (s *scenario) manifest(p pod) *corev1.Pod {
	s.Helper()
	s.pods++
	made := s.spec(fmt.Sprintf("static-%d", s.pods), p)
	made.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	made.Spec.NodeName = ""
	s.must(s.kubelet.Manifest(made))
	return made
}

func (s *scenario) runtimeClient() *node.Kubelet {
	s.Helper()
	k := testkit.Value(node.NewKubelet(s.Context(), s.Containerd.Endpoint()))(s)
	s.Cleanup(k.Close)
	return k
}
