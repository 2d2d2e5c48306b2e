package daemon

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/operator/metrics"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// openSource returns the configured pod source, nil if there is none. The API server and a valid kubeconfig may
// come later, and the source says what is wrong when it runs: without pullgated the kubelet reaches no runtime.
// accounts returns whether service accounts are needed, condition the state of the node, and report, which may be nil,
// its report.
func openSource(o Options, key credential.Key, m *metrics.Metrics, accounts func() bool,
	condition func(context.Context) (podsource.Condition, bool), report func() (api.Report, bool),
) *podsource.Source {
	if o.Config.PodSource.Kubeconfig == "" {
		return nil
	}
	if !o.Config.PodSource.NodeCondition {
		condition = nil
	}
	source, _ := podsource.New(podsource.Options{
		Kubeconfig: o.Config.PodSource.Kubeconfig, NodeName: o.Config.PodSource.NodeName, Key: key,
		Failed: m.PodSourceError, Sent: m.PodEvent,
		Accounts: accounts, Condition: condition, ConditionWritten: m.NodeCondition,
		Report: report,
	})
	m.SetPodSource(source.Synced)
	return source
}

// eventsOf returns the function that sends Events, nil if none are sent.
func eventsOf(s *podsource.Source, c config.PodSource) func(p tracker.Pod, image, reason, message string) {
	if s == nil || !c.PodEvents {
		return nil
	}
	return s.Event
}

// forGate returns what the gate and the policies need of a source, which may be nil.
//
//nolint:ireturn // a nil source is a nil interface
func forGate(s *podsource.Source) (facts gate.PodSource, views gate.ViewSource, keep func(fields []string)) {
	if s == nil {
		return nil, nil, func([]string) {}
	}
	return s, s, s.KeepFields
}

// sourceState returns the line for /readyz. A node stays ready if the API server does not answer.
func sourceState(s *podsource.Source) string {
	switch {
	case s == nil:
		return ""
	case s.Synced():
		return "\npod source: synced with the API server"
	default:
		return "\npod source: not synced with the API server; known pods stay known, others are judged by CRI data only"
	}
}

// decisionLog is the configured log of decisions.
type decisionLog struct {
	*decisionlog.Log
	path    string
	dropped atomic.Uint64
}

// openDecisions opens the configured log of decisions, nil if there is none.
func openDecisions(o Options, m *metrics.Metrics) (*decisionLog, error) {
	l := &decisionLog{path: o.Config.DecisionLog.Path}
	if l.path == "" {
		return nil, nil //nolint:nilnil // no log is what was asked for
	}
	dropped := func(n uint64) {
		l.dropped.Add(n)
		m.DecisionsDropped(n)
	}
	log, err := decisionlog.Open(decisionlog.Options{
		Path: l.path, Dropped: dropped,
		Journal: o.Log.WithName("decisionLog"),
	})
	if err != nil {
		return nil, program.WithHint(fmt.Errorf("open decisionLog.path: %w", err),
			decisionlog.PathHint)
	}
	l.Log = log
	return l, nil
}

func (l *decisionLog) close() error {
	if l == nil {
		return nil
	}
	return l.Close()
}

func (l *decisionLog) status() *adminv1.DecisionLogStatus {
	if l == nil {
		return nil
	}
	return &adminv1.DecisionLogStatus{Path: l.path, Dropped: l.dropped.Load()}
}

// decided sends the decisions of the gate to the log and the report, if there are any, and to the watchers.
type decided struct {
	log    *decisionLog
	report *report
	feed   *adminapi.Feed
}

// Record passes on a decision of the gate.
func (to decided) Record(d decisionlog.Decision) {
	if to.log != nil {
		to.log.Record(d)
	}
	to.report.Record(d)
	to.feed.Record(d)
}
