package dispatcher

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pullgate/pullgate/internal/fleet/api"
)

// A world is what the API server has, and what this program is.
type world struct {
	now      time.Time
	rollouts []*rollout // the oldest first
	nodes    []*node    // by name
	pods     map[string][]*corev1.Pod
	leases   map[string]time.Time // when kubelets renewed theirs, of those that needLease returns

	namespace   string
	pullSecrets []corev1.LocalObjectReference
	refused     map[string]refusal      // by the name of the pod
	failed      map[types.UID]time.Time // when a pod was first seen as failed, of those that may be replaced

	ended   bool // an attempt has ended, and what it was is not recorded yet
	actions []action
	wake    time.Time // when something is due although nothing changes; zero if nothing is
}

// A refusal is why a pod could not be created, harmless.
type refusal struct{ node, why string }

// An action is a request to the API server. Each names the version of its object, or creates one of a fixed name, so
// that one that another process has made before fails.
type action interface{ what() string }

type (
	// changeNode writes all that is ours on a Node.
	changeNode struct {
		node      *node
		claim     string
		installed *api.Installed
		attempt   *api.Attempt
		untaint   bool
	}
	// notInstalled writes the condition of a node that cannot do so itself any more.
	notInstalled struct{ node *node }
	createPod    struct{ pod *corev1.Pod }
	confirmPod   struct {
		pod     *corev1.Pod
		attempt string
	}
	deletePod struct{ pod *corev1.Pod }
	setStatus struct {
		rollout *rollout
		status  api.RolloutStatus
	}
	setFinalizer struct {
		rollout *rollout
		has     bool
	}
)

func (changeNode) what() string   { return "patch of a Node" }
func (notInstalled) what() string { return "patch of the condition of a Node" }
func (createPod) what() string    { return "creation of a pod" }
func (confirmPod) what() string   { return "patch of a pod" }
func (deletePod) what() string    { return "deletion of a pod" }
func (setStatus) what() string    { return "patch of the status of a Rollout" }
func (setFinalizer) what() string { return "patch of the finalizers of a Rollout" }

func (w *world) do(a action) { w.actions = append(w.actions, a) }

// at makes the loop run again at a time.
func (w *world) at(t time.Time) {
	if w.wake.IsZero() || t.Before(w.wake) {
		w.wake = t
	}
}

// sort brings what caches have into the order that decisions are made in.
func (w *world) sort() {
	slices.SortFunc(w.rollouts, func(a, b *rollout) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(w.nodes, func(a, b *node) int { return cmp.Compare(a.Name, b.Name) })
}

// A member is a node of a Rollout.
type member struct {
	*node

	leaving bool // is not selected any more
	state   state
}

type state int

const (
	stateDone state = iota
	stateUnknown
	stateUpdating
	stateFailed
	stateSkipped
	statePending
)

// decide returns what to do now, and the time of the next decision if nothing changes before.
func (w *world) decide() ([]action, time.Time) {
	byName := map[string]*rollout{}
	for _, r := range w.rollouts {
		byName[r.Name] = r
	}
	members, conflicts := map[*rollout][]member{}, map[*rollout][]string{}
	known := map[string]bool{}
	for _, n := range w.nodes {
		known[n.Name] = true
		owner := w.owner(n, byName, conflicts)
		claimer := byName[n.claim()]
		switch {
		case owner != nil:
			members[owner] = append(members[owner], member{node: n})
		case claimer != nil:
			members[claimer] = append(members[claimer], member{node: n, leaving: true})
		}
		w.attend(n)
	}
	for name, pods := range w.pods {
		for _, p := range pods {
			if !known[name] && p.DeletionTimestamp == nil {
				w.do(deletePod{p})
			}
		}
	}
	for _, r := range w.rollouts {
		w.direct(r, members[r], conflicts[r])
	}
	return w.actions, w.wake
}

// owner returns the oldest Rollout that selects a node, nil if none does, and notes the others. A node stays with a
// Rollout that has it and is invalid, because nobody knows what it means.
func (w *world) owner(n *node, byName map[string]*rollout, conflicts map[*rollout][]string) (owner *rollout) {
	if r := byName[n.claim()]; r != nil && r.invalid != nil && !r.deleting() {
		return r
	}
	if !n.linux || n.DeletionTimestamp != nil {
		return nil
	}
	for _, r := range w.rollouts {
		switch {
		case r.deleting() || !r.selector.Matches(n.labels):
		case owner == nil:
			owner = r
		default:
			conflicts[r] = append(conflicts[r], n.Name)
		}
	}
	return owner
}

// rolloutOf returns the Rollout that has begun an attempt, nil if it is gone. It may have another plan since.
func (w *world) rolloutOf(a *api.Attempt) *rollout {
	for _, r := range w.rollouts {
		if string(r.UID) == a.Rollout {
			return r
		}
	}
	return nil
}

// needLease returns the nodes whose leases are needed to decide.
func (w *world) needLease() (names []string) {
	for _, n := range w.nodes {
		if !n.running() {
			continue
		}
		for _, p := range w.pods[n.Name] {
			ready, _ := readiness(p)
			confirmed := p.Annotations[api.ConfirmAnnotation] != ""
			if p.Name == podName(n.attempt, n) && (ready && !confirmed || p.Status.Phase == corev1.PodSucceeded) {
				names = append(names, n.Name)
			}
		}
	}
	return names
}

// attend continues the attempt of a node, and deletes the pods of others.
func (w *world) attend(n *node) {
	var own *corev1.Pod
	for _, p := range w.pods[n.Name] {
		a := n.last()
		switch {
		case a != nil && p.Name == podName(a, n):
			own = p
		case p.DeletionTimestamp == nil:
			w.do(deletePod{p})
		}
	}
	switch {
	case n.running():
		w.continueAttempt(n, own)
	case own != nil && own.DeletionTimestamp == nil && !w.kept(n, own):
		w.do(deletePod{own})
	case n.attempt != nil && n.attempt.Outcome == api.OutcomeRemoved:
		w.forget(n)
	}
}

// kept reports whether the pod of an attempt with an outcome is needed: until its failure is in the status, and after
// that if it has ended itself and is among the first failures.
func (w *world) kept(n *node, p *corev1.Pod) bool {
	r := w.rolloutOf(n.attempt)
	if r == nil || !n.failed(r.plan) {
		return false
	}
	listed := slices.ContainsFunc(r.Status.Failures, func(f api.Failure) bool {
		return f.Node == n.Name && f.Attempt == attemptID(n.attempt)
	})
	if listed {
		return ended(p)
	}
	return len(r.Status.Failures) < maxListed
}

// forget removes the record of a node that was taken off when its wave does not need it any more.
func (w *world) forget(n *node) {
	r := w.rolloutOf(n.attempt)
	if r == nil || r.plan != n.attempt.Plan || r.Status.WavesDone || n.attempt.Wave < r.Status.Wave {
		w.do(changeNode{node: n, claim: n.claim(), installed: n.installed})
	}
}

// poll is how often something is looked at of which no watch tells.
const poll = 2 * time.Second

func (w *world) continueAttempt(n *node, p *corev1.Pod) {
	a := n.attempt
	// A deadline that is further away was written by the node.
	late := w.now.After(a.Deadline.Time) || a.Deadline.Sub(w.now) > longestAttempt
	w.at(a.Deadline.Add(time.Second))
	if p == nil {
		r := w.rolloutOf(a)
		switch {
		case r == nil || r.plan != a.Plan:
			w.finish(n, api.OutcomeAbandoned, "")
		case late:
			w.finish(n, api.OutcomeUnknown, "Pod")
		default:
			w.do(createPod{w.newPod(r, n, a)})
		}
		return
	}
	why := ""
	switch {
	case p.Status.Phase == corev1.PodFailed:
		said := words(p)
		if said.Outcome != api.OutcomeTakenBack && said.Outcome != api.OutcomeNotStarted {
			if !late && w.replaceAfterRestart(n, p) {
				return
			}
			said.Outcome = api.OutcomeFailed
		}
		w.finish(n, said.Outcome, said.Stage)
		return
	case p.Status.Phase == corev1.PodSucceeded && a.Action == api.ActionRemove:
		if why = w.alive(n, p); why == "" {
			w.removed(n)
			return
		}
	case p.Status.Phase == corev1.PodSucceeded:
		if why = w.confirmable(n, p); why == "" {
			w.finish(n, api.OutcomeInstalled, "")
			return
		}
	case p.DeletionTimestamp == nil && a.Action == api.ActionInstall && p.Annotations[api.ConfirmAnnotation] == "":
		if ready, _ := readiness(p); !ready {
			break
		}
		if why = w.confirmable(n, p); why == "" && !late {
			w.do(confirmPod{p, attemptID(a)})
			return
		}
	}
	if late {
		w.finish(n, api.OutcomeUnknown, cmp.Or(words(p).Stage, "Pod"))
	} else if why != "" {
		w.at(w.now.Add(poll))
	}
}

// bootIDGracePeriod is how long after the end of a pod the API server may hear that its node was restarted. A kubelet
// reports that within ten seconds.
const bootIDGracePeriod = 30 * time.Second

// maxRestarts is how many restarts of a node lead to another pod: a node can report any number of them.
const maxRestarts = 3

// replaceAfterRestart reports whether an attempt gets another pod because its node was restarted, or whether that is
// not known yet. The new pod reports what the node has done since.
func (w *world) replaceAfterRestart(n *node, p *corev1.Pod) bool {
	if n.bootID == n.attempt.BootID {
		first, ok := w.failed[p.UID]
		if !ok {
			first = w.now
			w.failed[p.UID] = first
		}
		known := first.Add(bootIDGracePeriod)
		w.at(known)
		return w.now.Before(known)
	}
	if n.attempt.Restarts >= maxRestarts {
		return false
	}
	again := *n.attempt
	again.BootID, again.Restarts = n.bootID, again.Restarts+1
	w.do(changeNode{node: n, claim: n.claim(), installed: n.installed, attempt: &again})
	return true
}

// alive says why the API server has not heard of the node since its pod became ready or ended, or returns "".
func (w *world) alive(n *node, p *corev1.Pod) string {
	_, since := readiness(p)
	heard := n.beat
	if renewed := w.leases[n.Name]; renewed.After(heard) {
		heard = renewed
	}
	switch {
	case !n.ready:
		return "the node is not Ready"
	// The time of a pod's condition has no fraction of a second, that of a lease has.
	case since.IsZero() || !heard.After(since.Add(time.Second)):
		return "the node has not been heard of since"
	}
	return ""
}

// confirmable says why it is not known, from others than the pod, that the node works, or returns "".
func (w *world) confirmable(n *node, p *corev1.Pod) string {
	if why := w.alive(n, p); why != "" {
		return why
	}
	if p.Status.StartTime == nil {
		return "the pod has no start time"
	}
	return n.unwanted(n.attempt.Version, n.attempt.Mode, p.Status.StartTime.Time)
}

func (w *world) finish(n *node, outcome api.Outcome, stage string) {
	a := *n.attempt
	a.Outcome, a.Stage, a.Ended = outcome, stage, metav1.NewTime(w.now)
	w.ended = true
	change := changeNode{node: n, claim: n.claim(), installed: n.installed, attempt: &a}
	if outcome == api.OutcomeInstalled {
		change.installed = &api.Installed{
			Version: a.Version, Mode: a.Mode, Configuration: a.Hash, MachineID: a.MachineID, Attempt: attemptID(&a),
		}
	}
	w.do(change)
}

// removed records that nothing of pullgate is on a node.
func (w *world) removed(n *node) {
	if n.condition == nil || n.condition.Reason != reasonNotInstalled {
		w.do(notInstalled{n})
		return // the rest follows when the Node has it
	}
	a := *n.attempt
	a.Outcome, a.Ended = api.OutcomeRemoved, metav1.NewTime(w.now)
	w.do(changeNode{node: n, attempt: &a})
}

const reasonNotInstalled = "NotInstalled"

// names returns the first names of a list, and how many follow.
func names(all []string, n int) string {
	if len(all) <= n {
		return strings.Join(all, ", ")
	}
	return strings.Join(all[:n], ", ") + ", …"
}
