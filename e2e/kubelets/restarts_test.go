package kubelets_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// pullgate is installed on a node that is in use: pods continue with the containers they have, and what is
// present by then stays open to every pod, by default.
func installed(s *scenario) {
	app := s.private("app:1")
	stay := []*outcome{s.keep(step{name: "A, with its secret", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, requests: downloads})}
	before := s.containers(stay)
	s.must(s.preload(s.Context()))
	s.must(s.protect(s.Context()))
	s.runSteps(step{name: "B on an image from before", pod: pod{team: "b", image: app, policy: never}, want: running})
	if after := s.containers(stay); !maps.Equal(before, after) {
		s.Errorf("the pod that ran has the container %v; want %v, that from before", after, before)
	}
}

// After each kind of restart, running pods continue with the containers they have, new ones are judged as
// before, and nothing is opened. The registry is down meanwhile, so that it cannot be the reason why a pod starts.
func restarts(s *scenario) {
	r := s.registry()
	app, free := s.push(r, "app:1", node.Image{}), s.public("free:1")
	owner := pod{team: "a", image: app, secrets: with(node.Alice())}
	stay := []*outcome{
		s.keep(step{name: "A, with its secret", pod: owner, want: running, requests: downloads}),
		s.keep(step{name: "B on a public image", pod: pod{team: "b", image: free}, want: running, requests: downloads}),
	}
	s.must(r.Down())
	before := s.containers(stay)
	check := func(what string) {
		s.Helper()
		s.runStepsAtOnce(
			step{name: "A, new, after " + what, pod: owner, want: running},
			step{name: "B on the public image, after " + what, pod: pod{team: "b", image: free, policy: never}, want: running},
			step{name: "B without a secret, after " + what, pod: pod{team: "b", image: app}, want: pullFailed, message: `connection refused`},
			step{name: "B, Never, after " + what, pod: pod{team: "b", image: app, policy: never}, want: neverPulled},
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

// powerCycle kills the kubelet, pullgated and containerd with all containers, and starts them again.
func (s *scenario) powerCycle() {
	s.Helper()
	s.must(s.kubelet.Kill())
	s.must(s.gate.Kill())
	s.must(s.Containerd.Reboot(s.Context()))
	s.must(s.gate.Start(s.Context()))
	s.must(s.kubelet.Start(s.Context(), s.gate.Endpoint(), quick()))
}

// containers are the IDs of the running containers of some pods, by pod.
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

// pullgated is killed while pods start, each time at another moment. In the end every pod is what it
// should be.
func kills(s *scenario) {
	app := s.private("app:1")
	owner := pod{team: "a", image: app, secrets: with(node.Alice())}
	s.runSteps(step{name: "A, with its secret", pod: owner, want: running, requests: downloads})
	var good, bad []*outcome
	for i := range 5 {
		fresh := s.private(fmt.Sprintf("fresh-%d:1", i))
		for _, p := range []pod{
			owner,
			{team: "a", image: fresh, secrets: with(node.Alice())},
			{team: "b", image: app},
			{team: "b", image: fresh},
			{team: "b", image: app, policy: never},
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
		s.Fatalf("%d pods are not what they should be\n%s", left, s.lastOutput())
	}
}

// A static pod starts while there is no API server, whichever pod pulled its image.
func static(s *scenario) {
	app := s.private("app:1")
	s.runSteps(step{name: "A, with its secret", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, requests: downloads})
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
		step{name: "B without a secret, afterwards", pod: pod{team: "b", image: app}, want: pullFailed, requests: refusals, message: denied},
		step{name: "A, afterwards", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, requests: s.recheck()},
	)
}

// runsStatic puts a static pod on the node, waits until the runtime runs it (there is nothing else to
// ask), and removes it.
func (s *scenario) runsStatic(image node.Pushed, policy corev1.PullPolicy) {
	s.Helper()
	name := s.manifest(pod{team: "kube", image: image, policy: policy}).Name
	k := s.runtimeClient()
	runs := func() bool {
		n, err := k.RunningIn(s.Context(), name+"-"+s.kubelet.Name())
		s.must(err)
		return n > 0
	}
	if !host.Within(patience, runs) {
		s.Fatalf("the static pod on %s, %s, does not run\n%s", image.Name, policy, s.lastOutput())
	}
	s.must(s.kubelet.RemoveManifest(name))
}

// manifest puts a static pod on the node.
func (s *scenario) manifest(p pod) *corev1.Pod {
	s.Helper()
	s.pods++
	made := s.spec(fmt.Sprintf("static-%d", s.pods), p)
	made.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	made.Spec.NodeName = ""
	s.must(s.kubelet.Manifest(made))
	return made
}

// runtimeClient talks to containerd, past pullgated.
func (s *scenario) runtimeClient() *node.Kubelet {
	s.Helper()
	k, err := node.NewKubelet(s.Context(), s.Containerd.Endpoint())
	s.must(err)
	s.Cleanup(k.Close)
	return k
}
