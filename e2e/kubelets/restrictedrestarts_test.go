package kubelets_test

import (
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/host"
)

const createFailed = "CreateContainerError"

const exempt = "exempt"

// restrictedRestarts shows that stricter policies stop no running workload: pods that started before keep their
// containers, and restart one that ends, after pullgated has received a policy and after it, the runtime or the kubelet
// was restarted. A new pod is denied each time.
//
// Each case has a pod whose container ends, because a kubelet waits before it restarts a container for the second time.
// Shows: 000-32
func restrictedRestarts(s *scenario) {
	const (
		set     = "a reload that sets the folder"
		gate    = "a restart of pullgated"
		runtime = "a restart of containerd"
		kubelet = "a restart of the kubelet"
		recheck = "a reload that sets recheckRestarts"

		readOnly = `read-only-root.*readOnlyRootFilesystem`
	)
	app := s.public("app:1")
	plain := use("a", app)
	s.newPolicies()
	s.Cleanup(s.withoutPolicies)
	exempted := "exempt: {namespaces: [" + s.namespace(exempt) + "]}"
	s.runSteps(runs("pulls", plain, downloads))
	stay := s.stay(plain, nothing, set, gate, runtime, kubelet, recheck)
	denied := func(after string) {
		s.Helper()
		s.runSteps(step{name: "new, after " + after, pod: plain, want: createFailed, message: readOnly})
	}

	s.restriction("read-only-root", "spec: "+onSecurity(`readOnlyRootFilesystem: {require: true}`))
	s.configure(exempted)
	// No validator was asked before, and none is asked about an exempt pod or a container that was started before.
	s.runSteps(runs("in an exempt namespace", use(exempt, app), nothing))
	s.runsStatic(app, ifNotPresent)
	s.restartsIn(stay, set)
	if n := s.validations(); n != 0 {
		s.Errorf("validators were asked about exempt pods: the metrics count %v; want 0", n)
	}
	denied(set)
	if s.validations() == 0 {
		s.Error("validators were asked about a pod, and the metrics count nothing")
	}
	s.must(s.gate.Restart(s.Context()))
	s.restartsIn(stay, gate)
	denied(gate)
	s.must(s.Containerd.Restart(s.Context()))
	s.restartsIn(stay, runtime)
	denied(runtime)
	s.must(s.restartKubelet(s.Context(), quick()))
	s.restartsIn(stay, kubelet)
	denied(kubelet)

	s.configure(exempted, "recheckRestarts: true")
	s.killIn(stay, recheck, func(o *outcome) { s.waitForEvent(o.pod, `Failed: .*`+readOnly) })

	// A reboot gives all pods new sandboxes. It comes last: a kubelet waits before it restarts what a reboot has ended.
	s.restriction("no-host-network", "spec: {spec: {securityContext: {hostNetwork: {require: false}}}}")
	s.configure(exempted)
	s.powerCycle()
	for _, o := range stay {
		s.replaced(o, "a reboot")
	}
	fresh := s.create(plain)
	s.kept = append(s.kept, &outcome{want: createFailed, image: app, pod: fresh})
	s.waitForEvent(fresh, `FailedCreatePodSandBox: .*no-host-network.*hostNetwork`)
}

func (s *scenario) waitForEvent(p *corev1.Pod, pattern string) {
	s.Helper()
	if !host.Within(patience, func() bool { return regexp.MustCompile(pattern).MatchString(s.events(p)) }) {
		s.Fatalf("the events of %s are %s; want one that matches %s", p.Name, s.events(p), pattern)
	}
}

// replaced waits until a pod runs with another container than the one it had when it was looked at last.
func (s *scenario) replaced(o *outcome, after string) {
	s.Helper()
	before := o.pod.Status.ContainerStatuses[0].ContainerID
	if !host.Within(patience, func() bool {
		return s.look(o).state == running && o.pod.Status.ContainerStatuses[0].ContainerID != before
	}) {
		s.Fatalf("after %s: %s%s; want it running with another container than %s",
			after, o, s.events(o.pod), before)
	}
}

// stay starts a pod for each case side by side, which may cause these requests, and leaves them on the node.
func (s *scenario) stay(p pod, requests string, cases ...string) map[string]*outcome {
	s.Helper()
	since := s.registryOf(p.image).Mark()
	made := make([]*corev1.Pod, len(cases))
	for i := range cases {
		made[i] = s.create(p)
	}
	all := map[string]*outcome{}
	for i, name := range cases {
		all[name] = s.see(runs("for "+name, p, requests), made[i], since)
	}
	return all
}

func (s *scenario) restartsIn(stay map[string]*outcome, one string) {
	s.Helper()
	s.killIn(stay, one, func(o *outcome) { s.replaced(o, one) })
}

// killIn kills the container of one case, and calls wait. The pods of all other cases must still have their containers.
func (s *scenario) killIn(stay map[string]*outcome, one string, wait func(*outcome)) {
	s.Helper()
	o := stay[one]
	others := slices.DeleteFunc(slices.Collect(maps.Values(stay)), func(other *outcome) bool { return other == o })
	before := map[string]string{}
	for _, other := range others {
		before[other.pod.Name] = other.pod.Status.ContainerStatuses[0].ContainerID
	}
	s.must(s.runtimeClient().KillContainers(s.Context(), string(o.pod.UID)))
	wait(o)
	if after := s.containers(others); !maps.Equal(before, after) {
		s.Errorf("after %s the other pods have the containers %v; want %v, those from before", one, after, before)
	}
}

// validations returns how often validators were asked, and what they found, as the metrics count it.
func (s *scenario) validations() float64 {
	s.Helper()
	return s.metric("pullgate_admission_answers_total") + s.metric("pullgate_admission_seconds_count")
}

// waitFor waits until a metric has a value. pullgated reads the folder of policies every few seconds.
func (s *scenario) waitFor(metric string, value float64) {
	s.Helper()
	if !host.Within(patience, func() bool { return s.metric(metric) == value }) {
		s.Fatalf("%s is %v; want %v", metric, s.metric(metric), value)
	}
}
