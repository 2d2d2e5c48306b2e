package dispatcher

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
)

const (
	ownImage, ownVersion = "registry.example.com/pullgate:v1", "v1"
	configuration        = "apiVersion: config.pullgate.dev/v1alpha1\nkind: PullgateConfiguration\n"
)

// A behaviour is what happens on a node to which a pod comes.
type behaviour string

const (
	works     behaviour = "works"
	takesBack behaviour = "takes back"
	dies      behaviour = "dies without a word"
	hangs     behaviour = "hangs"
	lies      behaviour = "says that it is installed, and is not"
	degraded  behaviour = "is installed, and degraded"
	deaf      behaviour = "is not heard of after the change"
)

// A sim is an API server with nodes, in a time of its own. It takes patches as an API server does.
type sim struct {
	*testing.T

	now       time.Time
	version   int
	nodes     map[string]*corev1.Node
	pods      map[string]*corev1.Pod
	since     map[string]time.Time // by pod: of its last step
	does      map[string]behaviour
	heard     map[string]time.Time // by node: its lease
	rollouts  map[string]*api.Rollout
	read      map[string]*rollout // of rollouts
	created   int
	requests  []api.Request // of the pods that were created
	confirmed int
	crash     func() bool // ends the process before a write
	began     func(changeNode)
	refuses   map[string]string // why the API server refuses the pods of nodes
	failed    map[types.UID]time.Time
}

func newSim(t *testing.T, nodes int) *sim {
	t.Helper()
	s := &sim{
		T: t, now: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC), nodes: map[string]*corev1.Node{},
		pods: map[string]*corev1.Pod{}, since: map[string]time.Time{}, does: map[string]behaviour{},
		heard: map[string]time.Time{}, rollouts: map[string]*api.Rollout{}, read: map[string]*rollout{},
		crash: func() bool { return false }, began: func(changeNode) {}, failed: map[types.UID]time.Time{},
	}
	for i := range nodes {
		s.join(fmt.Sprintf("node-%02d", i))
	}
	s.now = s.now.Add(time.Hour)
	return s
}

func (s *sim) next() string {
	s.version++
	return strconv.Itoa(s.version)
}

func (s *sim) join(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name + s.next()), ResourceVersion: s.next(), Labels: map[string]string{"pool": "a"},
		CreationTimestamp: metav1.NewTime(s.now),
	}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", MachineID: "machine-" + s.next(), BootID: "first"}
	s.nodes[name] = n
	s.does[name] = works
	s.ready(name, true)
	return n
}

func (s *sim) ready(name string, is bool) {
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
	}
	s.condition(s.nodes[name], corev1.NodeCondition{Type: corev1.NodeReady, Status: status})
}

func (s *sim) condition(n *corev1.Node, c corev1.NodeCondition) {
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(s.now), metav1.NewTime(s.now)
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(o corev1.NodeCondition) bool {
		if o.Type == c.Type && o.Status == c.Status {
			c.LastTransitionTime = o.LastTransitionTime
		}
		return o.Type == c.Type
	})
	n.Status.Conditions = append(n.Status.Conditions, c)
	n.ResourceVersion = s.next()
}

func (s *sim) says(n *corev1.Node, version string, mode api.Mode, more string) {
	c := corev1.NodeCondition{Type: podsource.ConditionType, Status: corev1.ConditionTrue, Reason: "Enforcing"}
	if mode == api.ModeShadow {
		c.Status, c.Reason = corev1.ConditionFalse, "Shadow"
	}
	c.Message = "pullgate " + version + ", configuration sha256:00: what it does" + more
	s.condition(n, c)
}

func (s *sim) rollout(name string, change func(*api.RolloutSpec)) *api.Rollout {
	r := &api.Rollout{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), ResourceVersion: s.next(), CreationTimestamp: metav1.NewTime(s.now),
	}}
	r.Spec = api.RolloutSpec{
		Version: ownVersion, NodeSelector: &metav1.LabelSelector{}, Mode: api.ModeEnforce, Configuration: configuration,
		Unsigned: true,
	}
	s.rollouts[name] = r
	s.edit(name, change)
	return r
}

func (s *sim) edit(name string, change func(*api.RolloutSpec)) {
	r := s.rollouts[name]
	if change != nil {
		change(&r.Spec)
	}
	r.Generation++
	r.ResourceVersion = s.next()
}

func (s *sim) delete(name string) {
	r := s.rollouts[name]
	r.DeletionTimestamp = new(metav1.NewTime(s.now))
	r.ResourceVersion = s.next()
}

func roundTrip[T any](t *testing.T, from T) T {
	t.Helper()
	var to T
	testkit.Must(t, json.Unmarshal(testkit.Value(json.Marshal(from))(t), &to))
	return to
}

func (s *sim) world() *world {
	w := &world{
		now: s.now, pods: map[string][]*corev1.Pod{}, leases: map[string]time.Time{}, namespace: "pullgate",
		refused: map[string]refusal{}, failed: s.failed,
	}
	for _, n := range s.nodes {
		x := strip(n.DeepCopy())
		w.nodes = append(w.nodes, x)
		if why := s.refuses[n.Name]; why != "" && x.last() != nil {
			w.refused[podName(x.attempt, x)] = refusal{n.Name, why}
		}
	}
	for _, p := range s.pods {
		w.pods[p.Spec.NodeName] = append(w.pods[p.Spec.NodeName], p.DeepCopy())
	}
	for _, r := range s.rollouts {
		if x := s.read[r.Name]; x == nil || x.ResourceVersion != r.ResourceVersion {
			s.read[r.Name] = newRollout(new(roundTrip(s.T, *r)), ownImage, ownVersion)
		}
		w.rollouts = append(w.rollouts, s.read[r.Name])
	}
	w.sort()
	for _, name := range w.needLease() {
		w.leases[name] = s.heard[name]
	}
	return w
}

// step passes time, plays the nodes, and lets the dispatcher decide and write.
func (s *sim) step(d time.Duration) (wrote int) {
	s.now = s.now.Add(d)
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		s.play(s.pods[name])
	}
	for name, n := range s.nodes {
		if strip(n).ready && s.does[name] != deaf {
			s.heard[name] = s.now
			s.beat(n)
		}
	}
	actions, _ := s.world().decide()
	for _, a := range actions {
		if s.crash() {
			break
		}
		if s.apply(a) {
			wrote++
		}
	}
	return wrote
}

// beat is the heartbeat of the condition.
func (s *sim) beat(n *corev1.Node) {
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		beats := c.Type == podsource.ConditionType && c.Reason != reasonNotInstalled
		if beats && s.now.Sub(c.LastHeartbeatTime.Time) > 15*time.Minute {
			c.LastHeartbeatTime, n.ResourceVersion = metav1.NewTime(s.now), s.next()
		}
	}
}

// pass runs for a time, in which soaks pass.
func (s *sim) pass(d time.Duration) {
	for end, idle := s.now.Add(d), 0; s.now.Before(end); {
		idle++
		if s.step(min(time.Second*time.Duration(1+idle/10), end.Sub(s.now))) > 0 || s.running() > 0 {
			idle = 0
		}
	}
}

// settle runs until nothing happens any more, for half a minute.
func (s *sim) settle() {
	for idle, began := 0, s.now; idle < 30; idle++ {
		if s.step(time.Second) > 0 || s.running() > 0 {
			idle = 0
		}
		if s.now.Sub(began) > 10*time.Hour {
			s.Fatalf("still busy after ten hours: %v", s.rollouts)
		}
	}
}

func (s *sim) running() (n int) {
	for _, x := range s.nodes {
		if strip(x).running() {
			n++
		}
	}
	return n
}

func (s *sim) apply(a action) bool {
	switch a := a.(type) {
	case changeNode:
		if t := a.attempt; t != nil && t.Outcome == "" && (a.node.attempt == nil || *a.node.attempt != *t) {
			s.began(a)
		}
		return s.patch(a.node.Name, a.patch())
	case notInstalled:
		// The patch is a strategic one: the condition is the only one in it.
		var p corev1.Node
		testkit.Must(s.T, json.Unmarshal(a.patch(s.now), &p))
		s.condition(s.nodes[a.node.Name], p.Status.Conditions[0])
	case createPod:
		if s.pods[a.pod.Name] != nil || s.refuses[a.pod.Spec.NodeName] != "" {
			return false
		}
		p := roundTrip(s.T, *a.pod)
		p.UID = types.UID(s.next())
		p.Status.Phase = corev1.PodPending
		s.pods[p.Name], s.since[p.Name] = &p, s.now
		s.created++
		s.requests = append(s.requests, requestOf(s.T, &p))
	case confirmPod:
		if p := s.pods[a.pod.Name]; p != nil && p.UID == a.pod.UID {
			p.Annotations[api.ConfirmAnnotation] = a.attempt
			s.since[p.Name] = s.now
			s.confirmed++
		}
	case deletePod:
		if p := s.pods[a.pod.Name]; p != nil && p.UID == a.pod.UID {
			delete(s.pods, p.Name)
		}
	case setStatus:
		r := s.rollouts[a.rollout.Name]
		if r == nil || r.ResourceVersion != a.rollout.ResourceVersion {
			return false
		}
		r.Status, r.ResourceVersion = roundTrip(s.T, a.status), s.next()
	case setFinalizer:
		r := s.rollouts[a.rollout.Name]
		if r == nil || r.ResourceVersion != a.rollout.ResourceVersion {
			return false
		}
		r.Finalizers, r.ResourceVersion = a.finalizers(), s.next()
		if len(r.Finalizers) == 0 && r.DeletionTimestamp != nil {
			delete(s.rollouts, r.Name)
		}
	}
	return true
}

func (s *sim) patch(name string, patch []byte) bool {
	n := s.nodes[name]
	var of struct {
		Metadata struct {
			ResourceVersion string    `json:"resourceVersion"`
			UID             types.UID `json:"uid"`
		} `json:"metadata"`
	}
	testkit.Must(s.T, json.Unmarshal(patch, &of))
	if n == nil || n.ResourceVersion != of.Metadata.ResourceVersion || n.UID != of.Metadata.UID {
		return false
	}
	merged := testkit.Value(jsonpatch.MergePatch(testkit.Value(json.Marshal(n))(s.T), patch))(s.T)
	var is corev1.Node
	testkit.Must(s.T, json.Unmarshal(merged, &is))
	is.ResourceVersion = s.next()
	s.nodes[name] = &is
	return true
}

func requestOf(t *testing.T, p *corev1.Pod) (r api.Request) {
	t.Helper()
	testkit.Must(t, json.Unmarshal([]byte(p.Annotations[api.RequestAnnotation]), &r))
	return r
}

// play is the kubelet and the pod.
func (s *sim) play(p *corev1.Pod) {
	n := s.nodes[p.Spec.NodeName]
	if n == nil || s.now.Sub(s.since[p.Name]) < 2*time.Second || ended(p) {
		return
	}
	if !strip(n).ready {
		return
	}
	r := requestOf(s.T, p)
	does := s.does[n.Name]
	ready, _ := readiness(p)
	step := func() { s.since[p.Name] = s.now }
	switch {
	case p.Status.Phase == corev1.PodPending:
		p.Status.Phase, p.Status.StartTime = corev1.PodRunning, new(metav1.NewTime(s.now))
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{},
		}}}
		step()
	case does == hangs:
	case does == takesBack:
		s.end(p, corev1.PodFailed, api.LastWords{
			Attempt: r.Attempt, Stage: "Compare", Outcome: api.OutcomeTakenBack, Message: "the answers\x1b[31m differ",
		})
	case does == dies:
		s.end(p, corev1.PodFailed, api.LastWords{})
	case r.Action == api.ActionRemove:
		s.end(p, corev1.PodSucceeded, api.LastWords{Attempt: r.Attempt, Outcome: api.OutcomeRemoved})
	case does == lies:
		s.end(p, corev1.PodSucceeded, api.LastWords{Attempt: r.Attempt, Outcome: api.OutcomeInstalled})
	case !ready:
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.now),
		}}
		more := ""
		if does == degraded {
			more = "; the store of pull records is distrusted"
		}
		s.says(n, r.Version, r.Mode, more)
		step()
	case p.Annotations[api.ConfirmAnnotation] == r.Attempt:
		s.end(p, corev1.PodSucceeded, api.LastWords{Attempt: r.Attempt, Outcome: api.OutcomeInstalled})
	case s.now.Sub(s.since[p.Name]) > testkit.Value(time.ParseDuration(r.ConfirmWithin))(s):
		s.end(p, corev1.PodFailed, api.LastWords{
			Attempt: r.Attempt, Stage: "AwaitingConfirmation", Outcome: api.OutcomeTakenBack, Message: "not confirmed",
		})
	}
}

func (s *sim) end(p *corev1.Pod, phase corev1.PodPhase, w api.LastWords) {
	text, _ := json.Marshal(w)
	if w.Outcome == "" {
		text = []byte(strings.Repeat("\x1b[2J garbage ", 400))
	}
	p.Status.Phase = phase
	p.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(s.now),
	}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: string(text), ExitCode: 1, Reason: "Error"},
	}}}
}

// installed returns the names of the nodes that have a version and mode by their records.
func (s *sim) installed(version string, mode api.Mode) (names []string) {
	for _, n := range s.world().nodes {
		if r := n.record(); r != nil && r.Version == version && r.Mode == mode {
			names = append(names, n.Name)
		}
	}
	return names
}

func (s *sim) wantStatus(name, phase string, want api.NodeCounts) {
	s.Helper()
	got := s.rollouts[name].Status
	if got.Phase != phase || got.Nodes != want {
		s.Errorf("status of %s is %s (%s), %+v, failures %+v; want %s, %+v", name, got.Phase, got.Message, got.Nodes,
			got.Failures, phase, want)
	}
}

func waves(all ...any) (list []intstr.IntOrString) {
	for _, v := range all {
		switch v := v.(type) {
		case int:
			list = append(list, intstr.FromInt(v))
		case string:
			list = append(list, intstr.FromString(v))
		}
	}
	return list
}
