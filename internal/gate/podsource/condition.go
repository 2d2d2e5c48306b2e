package podsource

import (
	"context"
	"encoding/json"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// ConditionType is the type of the node's condition that pullgated writes.
const ConditionType = "PullgateEnforcing"

const (
	conditionCheck = 5 * time.Second // how often the state is asked for; a change must be seen by two checks
	// An installation waits for the first write, so the state is asked for more often until then, for a while.
	conditionSoon, conditionFirst = time.Second, 30 * time.Second
	// A heartbeat follows 15 minutes ± 10 % after the last write.
	heartbeatLeast, heartbeatSpread = 13*time.Minute + 30*time.Second, 2. / 9
	conditionBurst                  = 5 // changes that are written at once, then one a minute
)

// What became of a write of the condition.
const (
	ConditionWritten = "written"
	ConditionFailed  = "failed" // the API server did not take it
)

// ConditionOutcomes returns what can become of a write of the condition.
func ConditionOutcomes() []string { return []string{ConditionWritten, ConditionFailed} }

// A Condition is what the condition of the node says. Everybody who can read nodes reads it, so that it must not
// contain anything of a tenant. Each difference is a change, so that it must not contain times or counts.
type Condition struct {
	True            bool
	Reason, Message string
}

// conditionPause returns the back-off after failures, with jitter because all nodes of a cluster fail together.
func conditionPause() wait.Backoff {
	return wait.Backoff{Duration: conditionCheck, Cap: 2 * time.Minute, Steps: 20, Factor: 2, Jitter: 1}
}

// conditionWriter holds what was written of the condition.
type conditionWriter struct {
	*client
	node    string
	seen    Condition // by the last check
	written Condition
	last    corev1.NodeCondition // at the API server, as far as known; the zero value before it was asked
	next    time.Time            // of the heartbeat or, while failing, of the next try
	failing bool
	backoff wait.Backoff
	changes *rate.Limiter
}

// keepCondition writes the condition of the node on a change and as a heartbeat until ctx ends. Then it writes nothing:
// a stop is a restart mostly. Neither does it while the state is not known, so that the age of the heartbeat shows it.
func (s *Source) keepCondition(ctx context.Context, c *client) {
	if s.options.Condition == nil {
		return
	}
	w := conditionWriter{
		client: c, node: s.NodeName(), changes: rate.NewLimiter(rate.Every(time.Minute), conditionBurst),
	}
	began := time.Now()
	for ctx.Err() == nil {
		if now, known := s.options.Condition(ctx); w.due(now, known) {
			w.write(ctx, now, s.options.ConditionWritten)
		}
		every := conditionCheck
		if w.next.IsZero() && time.Since(began) < conditionFirst {
			every = conditionSoon
		}
		check := time.NewTimer(wait.Jitter(every, .2))
		select {
		case <-check.C:
		case <-ctx.Done():
			check.Stop()
		}
	}
}

// due reports whether a state has to be written now.
func (w *conditionWriter) due(state Condition, known bool) bool {
	if !known {
		state = Condition{}
	}
	stable := known && state == w.seen
	w.seen = state
	switch {
	case !stable:
		return false
	case !time.Now().Before(w.next):
		return true
	default:
		return !w.failing && state != w.written && w.changes.Allow()
	}
}

func (w *conditionWriter) write(ctx context.Context, state Condition, count func(outcome string)) {
	log := klog.FromContext(ctx).WithValues("condition", ConditionType, "node", w.node)
	bounded, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	err := w.patch(bounded, state)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		count(ConditionWritten)
		if w.failing || w.written != state {
			log.Info("Wrote the node's condition", "status", w.last.Status, "reason", state.Reason)
		}
		w.written, w.failing = state, false
		w.next = time.Now().Add(wait.Jitter(heartbeatLeast, heartbeatSpread))
		return
	case !w.failing:
		log.Info("Failed to write the node's condition, will retry", "reason", reasonOf(err), "err", err,
			"hint", "grant get of nodes and patch of nodes/status, or set podSource.nodeCondition to false")
		w.backoff, w.failing = conditionPause(), true
	}
	count(ConditionFailed)
	w.next = time.Now().Add(w.backoff.Step())
}

// patch merges the condition into those of the node by its type. The time of the last transition stays unless the
// status changes, also that of an earlier process.
func (w *conditionWriter) patch(ctx context.Context, state Condition) error {
	if w.last.Type == "" {
		node := &corev1.Node{}
		if err := w.core.Get().Resource("nodes").Name(w.node).MaxRetries(0).Do(ctx).Into(node); err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == ConditionType {
				w.last = c
			}
		}
	}
	next := corev1.NodeCondition{
		Type: ConditionType, Status: corev1.ConditionFalse, Reason: state.Reason, Message: state.Message,
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: w.last.LastTransitionTime,
	}
	if state.True {
		next.Status = corev1.ConditionTrue
	}
	if next.Status != w.last.Status || next.LastTransitionTime.IsZero() {
		next.LastTransitionTime = next.LastHeartbeatTime
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{next}}})
	if err != nil {
		return err
	}
	err = w.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(w.node).SubResource("status").
		Body(patch).MaxRetries(0).Do(ctx).Error()
	if err == nil {
		w.last = next
	}
	return err
}
