package daemon

import (
	"fmt"
	"sync/atomic"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/operator/metrics"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

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

// status returns the state of the log for the admin API, nil if there is none.
func (l *decisionLog) status() *adminv1.DecisionLogStatus {
	if l == nil {
		return nil
	}
	return &adminv1.DecisionLogStatus{Path: l.path, Dropped: l.dropped.Load()}
}

// decided sends the decisions of the gate to the log, if there is one, and to the watchers.
type decided struct {
	log  *decisionLog
	feed *adminapi.Feed
}

// Record passes on a decision of the gate.
func (to decided) Record(d decisionlog.Decision) {
	if to.log != nil {
		to.log.Record(d)
	}
	to.feed.Record(d)
}
