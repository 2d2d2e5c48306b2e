package dispatcher

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
)

// maxListed is how many failures and skipped nodes a status has.
const maxListed = 10

// direct begins attempts of a Rollout, and keeps its status.
func (w *world) direct(r *rollout, members []member, conflicts []string) {
	hasFinalizer := slices.Contains(r.Finalizers, api.Finalizer)
	if !hasFinalizer {
		if !r.deleting() {
			w.do(setFinalizer{r, true})
		}
		return
	}
	if r.deleting() && !slices.ContainsFunc(w.nodes, r.has) {
		w.do(setFinalizer{r, false})
		return
	}
	s := r.Status.Copy()
	s.Nodes = api.NodeCounts{}
	for i := range members {
		m := &members[i]
		m.state = w.stateOf(r, *m)
		tally(&s.Nodes, m)
	}
	w.upkeep(r, members)
	w.list(r, members, &s)
	persisted := s.Plan == r.plan
	starts := w.waves(r, members, &s)
	w.conclude(r, members, &s, conflicts)
	if !equality.Semantic.DeepEqual(s, r.Status) {
		w.do(setStatus{r, s})
	}
	// What the waves remember, and each failure, is written before anything begins by it.
	remembered := persisted && s.Wave == r.Status.Wave && s.WavesDone == r.Status.WavesDone &&
		s.WaveEnded.Equal(&r.Status.WaveEnded)
	if remembered && !w.ended {
		for _, m := range starts {
			w.start(r, m, &s)
		}
	}
}

// has reports whether a node has something of a Rollout.
func (r *rollout) has(n *node) bool {
	return n.claim() == r.Name || n.attempt != nil && n.attempt.Rollout == string(r.UID) && n.running()
}

// stateOf compares a node with what it shall have.
func (w *world) stateOf(r *rollout, m member) state {
	n := m.node
	switch has := n.record(); {
	case n.running():
		return stateUpdating
	case r.off() || m.leaving:
		if n.claim() == "" && has == nil {
			return stateDone
		}
	case has != nil && has.Version == r.Spec.Version && has.Mode == r.Spec.Mode && has.Configuration == r.hash:
		if n.unwanted(has.Version, has.Mode, w.now.Add(-api.ConditionHeartbeat)) == "" {
			return stateDone
		}
		if a := n.last(); a != nil && a.Plan == r.plan {
			return stateUnknown
		} // another plan, as by another retry, installs it again
	}
	switch {
	case n.failed(r.plan):
		return stateFailed
	case !n.ready:
		return stateSkipped
	}
	return statePending
}

func tally(c *api.NodeCounts, m *member) {
	if m.leaving {
		c.Leaving++
		return
	}
	c.Selected++
	switch m.state {
	case stateDone:
		c.Installed++
	case stateUnknown:
		c.Unknown++
	case stateUpdating:
		c.Updating++
	case stateFailed:
		c.Failed++
	case stateSkipped:
		c.SkippedNotReady++
	case statePending:
		c.Pending++
	}
}

// upkeep writes what needs no attempt: a Rollout takes over nodes that have what it wants, and frees them of the taint.
func (w *world) upkeep(r *rollout, members []member) {
	if r.invalid != nil || r.off() {
		return
	}
	for _, m := range members {
		untaint := r.Spec.StartupTaint && m.taints != nil
		if m.state == stateDone && !m.leaving && (m.claim() != r.Name || untaint) {
			w.do(changeNode{node: m.node, claim: r.Name, installed: m.installed, attempt: m.attempt, untaint: untaint})
		}
	}
}

// waves returns the nodes of which attempts begin now, and notes in the status what to remember of the waves.
func (w *world) waves(r *rollout, members []member, s *api.RolloutStatus) (starts []member) {
	running, failed, wave := 0, 0, 0
	var ready, late []member
	var unwell []string
	for _, m := range members {
		a := m.last()
		inPlan := a != nil && a.Plan == r.plan && s.Plan == r.plan
		switch m.state {
		case stateUpdating:
			running++
		case stateFailed:
			failed++
		case statePending:
			if s.WavesDone || m.readySince.After(s.PlanStarted.Time) {
				late = append(late, m)
			} else {
				ready = append(ready, m)
			}
		case stateDone, stateUnknown:
			if inPlan && a.Wave == s.Wave {
				wave++
			}
			if inPlan && (m.state == stateUnknown || !m.ready) {
				unwell = append(unwell, m.Name)
			}
		case stateSkipped:
		}
	}
	budget := r.budget(len(members))
	switch {
	case r.invalid != nil:
		s.Phase, s.Message = api.PhaseInvalid, safetext.Line(r.invalid.Error(), maxSaid)
		return nil
	case r.Spec.Paused:
		s.Phase, s.Message = api.PhasePaused, "nothing begins on further nodes until spec.paused is false"
		return nil
	case s.Plan != r.plan:
		s.Plan, s.PlanStarted, s.Wave = r.plan, metav1.NewTime(w.now.Truncate(time.Second)), 1
		s.WaveEnded, s.WavesDone = metav1.Time{}, false
		s.Phase, s.Message = api.PhaseProgressing, "the first wave begins"
		return nil
	case failed > budget:
		s.Phase = api.PhaseStopped
		s.Message = fmt.Sprintf("%d nodes have failed, and the failure budget is %d: correct the cause, then change "+
			"spec.retry to try them again, or raise spec.failureBudget", failed, budget)
		return nil
	}
	// That is what the time between waves is for. It may pass, so it is no failure; nodes that come later do not wait.
	if len(unwell) > 0 && failed+len(unwell) > budget && !s.WavesDone {
		s.Phase = api.PhaseStopped
		s.Message = fmt.Sprintf("%d nodes have failed, %d that were changed are not Ready or have another condition since "+
			"(%s), and the failure budget is %d: nothing begins until they are well, or spec.failureBudget is raised; see: "+
			"kubectl describe node %s", failed, len(unwell), names(unwell, maxListed), budget, unwell[0])
		return nil
	}
	s.Phase, s.Message = api.PhaseProgressing, ""
	open := func(all []member, n int) []member {
		var free []member
		for _, m := range all {
			if len(free) < n && len(w.pods[m.Name]) == 0 { // pods of former attempts have to be gone
				free = append(free, m)
			}
		}
		return free
	}
	if s.WavesDone {
		s.Message = "nodes are changed one at a time"
		if running > 0 {
			return nil
		}
		if starts = open(late, 1); len(starts) == 0 {
			s.Phase = api.PhaseWaiting
		}
		return starts
	}
	size := r.wave(s.Wave, len(members))
	s.Message = fmt.Sprintf("wave %d has %d nodes", s.Wave, size)
	switch {
	case len(ready) == 0 && running == 0:
		s.WavesDone = true
	case s.WaveEnded.IsZero() && wave >= size && running == 0:
		s.WaveEnded = metav1.NewTime(w.now.Truncate(time.Second))
	case s.WaveEnded.IsZero():
		return open(ready, size-wave-running)
	case w.now.Before(s.WaveEnded.Add(r.soak())):
		s.Phase, s.Message = api.PhaseSoaking, fmt.Sprintf("wave %d begins when spec.soak has passed", s.Wave+1)
		w.at(s.WaveEnded.Add(r.soak()))
	default:
		s.Wave, s.WaveEnded = s.Wave+1, metav1.Time{}
	}
	return nil
}

// start records an attempt on a node. Its pod is made when the Node has it.
func (w *world) start(r *rollout, m member, s *api.RolloutStatus) {
	a := &api.Attempt{
		Rollout: string(r.UID), Plan: r.plan, MachineID: m.machineID, BootID: m.bootID, Action: api.ActionRemove,
		// Also after the Node was deleted and made again, it is greater than all that the machine has seen.
		Number: w.now.Unix(), Started: metav1.NewTime(w.now),
	}
	if m.attempt != nil {
		a.Number = max(a.Number, m.attempt.Number+1)
	}
	if !s.WavesDone {
		a.Wave = s.Wave
	}
	if !m.leaving && !r.off() {
		a.Action, a.Version, a.Mode, a.Hash = api.ActionInstall, r.Spec.Version, r.Spec.Mode, r.hash
	}
	limit := startLimit + cmp.Or(r.Spec.ConfirmWithin.Duration, api.DefaultConfirmWithin) +
		cmp.Or(r.Spec.Probation.Duration, api.DefaultProbation)
	a.Deadline = metav1.NewTime(w.now.Add(limit))
	w.do(changeNode{node: m.node, claim: r.Name, installed: m.installed, attempt: a})
}

// list notes the first failures and the first nodes that are not ready.
func (w *world) list(r *rollout, members []member, s *api.RolloutStatus) {
	var failed []member
	s.Skipped = nil
	for _, m := range members {
		switch {
		case m.state == stateFailed:
			failed = append(failed, m)
		case m.state == stateSkipped && len(s.Skipped) < maxListed:
			s.Skipped = append(s.Skipped, m.Name)
		}
	}
	slices.SortStableFunc(failed, func(a, b member) int { return a.attempt.Ended.Compare(b.attempt.Ended.Time) })
	was := s.Failures
	s.Failures = nil
	for _, m := range failed[:min(len(failed), maxListed)] {
		f := api.Failure{Node: m.Name, Attempt: attemptID(m.attempt)}
		i := slices.IndexFunc(was, func(f2 api.Failure) bool { return f2.Node == f.Node && f2.Attempt == f.Attempt })
		if i >= 0 {
			s.Failures = append(s.Failures, was[i])
			continue
		}
		s.Failures = append(s.Failures, w.describe(r, m, f))
	}
}

// describe completes a failure.
func (w *world) describe(r *rollout, m member, f api.Failure) api.Failure {
	f.Stage, f.Time, f.Pod = safetext.Line(m.attempt.Stage, maxStage), m.attempt.Ended, podName(m.attempt, m.node)
	f.Message = "the pod is gone"
	if is, ok := w.refused[f.Pod]; ok {
		f.Message = "the pod could not be created: " + is.why
	}
	for _, p := range w.pods[m.Name] {
		if p.Name == f.Pod {
			f.Message = words(p).Message
		}
	}
	f.Next = fmt.Sprintf("correct the cause, then: kubectl patch rollout %s --type=merge -p '{\"spec\":{\"retry\":%q}}'",
		r.Name, w.now.UTC().Format("2006-01-02T15:04"))
	remove := m.attempt.Action == api.ActionRemove
	switch m.attempt.Outcome {
	case api.OutcomeTakenBack:
		f.State = "everything was taken back: the node is as before"
	case api.OutcomeNotStarted:
		f.State = "nothing was changed on the node"
	case api.OutcomeUnknown:
		f.State = "the node has not said an outcome in time: without a confirmation it takes everything back by itself"
		if remove {
			f.State = "the node has not said an outcome in time: what was removed stays so"
			break
		}
		if why := m.unwanted(m.attempt.Version, m.attempt.Mode, m.attempt.Started.Time); why != "" {
			f.Message = safetext.Line("the API server does not show that it works: "+why+"; the pod: "+f.Message, maxWords)
		}
	case api.OutcomeFailed:
		f.State = "it is not known what was taken back; without a confirmation the node takes everything back by itself: " +
			"run pullgatectl doctor on it"
		if remove {
			f.State = "it is not known what was removed, and that stays so: run pullgatectl doctor on the node"
		}
	case "", api.OutcomeInstalled, api.OutcomeRemoved, api.OutcomeAbandoned: // are not failures
	}
	return f
}

// conclude completes the status.
func (w *world) conclude(r *rollout, members []member, s *api.RolloutStatus, conflicts []string) {
	s.ObservedGeneration = r.Generation
	complete := metav1.Condition{
		Type: api.ConditionComplete, Status: metav1.ConditionFalse, ObservedGeneration: r.Generation,
	}
	if s.Phase == api.PhaseWaiting {
		if s.Message = waitingFor(members); s.Message == "" {
			s.Phase, complete.Status = api.PhaseComplete, metav1.ConditionTrue
		}
	}
	for _, m := range members {
		if s.Phase != api.PhaseProgressing || len(w.refused) == 0 || !m.running() {
			continue
		}
		if is, ok := w.refused[podName(m.attempt, m.node)]; ok {
			s.Message = fmt.Sprintf("node %s, stage Pod: the pod could not be created: %s; nothing begins on the node without "+
				"it, and it is tried again until %s: correct the cause", m.Name, is.why,
				m.attempt.Deadline.UTC().Format(time.RFC3339))
			break
		}
	}
	complete.Reason, complete.Message = s.Phase, s.Message
	meta.SetStatusCondition(&s.Conditions, complete)
	if len(conflicts) == 0 {
		meta.RemoveStatusCondition(&s.Conditions, api.ConditionConflict)
		return
	}
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: api.ConditionConflict, Status: metav1.ConditionTrue, Reason: "OlderRollout", ObservedGeneration: r.Generation,
		Message: fmt.Sprintf("an older Rollout has %d of the selected nodes: %s", len(conflicts),
			names(conflicts, maxListed)),
	})
}

// waitingFor says what keeps a Rollout from being complete, or returns "".
func waitingFor(members []member) string {
	texts := map[state]string{
		stateSkipped: "are not Ready",
		stateFailed:  "have failed, within the failure budget",
		stateUnknown: "do not say by their condition that they have what was installed",
		statePending: "have a pod of a former attempt that is not gone",
	}
	waiting := map[string][]string{}
	for _, m := range members {
		text := texts[m.state]
		if m.leaving {
			text = "are not selected any more, and not Ready or failed"
		}
		if text != "" {
			waiting[text] = append(waiting[text], m.Name)
		}
	}
	var all []string
	for _, text := range slices.Sorted(maps.Keys(waiting)) {
		nodes := waiting[text]
		all = append(all, fmt.Sprintf("%d nodes %s: %s", len(nodes), text, names(nodes, maxListed)))
	}
	return strings.Join(all, "; ")
}

func (r *rollout) soak() time.Duration { return r.Spec.Soak.Duration }
