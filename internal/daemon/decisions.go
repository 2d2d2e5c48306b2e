package daemon

import (
	"fmt"
	"sync/atomic"

	"github.com/pullgate/pullgate/internal/adminapi"
	"github.com/pullgate/pullgate/internal/decisionlog"
	"github.com/pullgate/pullgate/internal/gate/decision"
	"github.com/pullgate/pullgate/internal/metrics"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/records"
)

// decisionLog is the log of decisions that the configuration asks for.
type decisionLog struct {
	*decisionlog.Log
	path    string
	dropped atomic.Uint64
}

// openDecisions opens the log of decisions that the configuration asks for, nil if none.
func openDecisions(o Options, m *metrics.Metrics) (*decisionLog, error) {
	l := &decisionLog{path: o.Config.DecisionLog.Path}
	if l.path == "" {
		return nil, nil //nolint:nilnil // no log is what was asked for
	}
	dropped := func(n uint64) {
		l.dropped.Add(n)
		m.DecisionsDropped(n)
	}
	log, err := decisionlog.Open(decisionlog.Options{Path: l.path, Dropped: dropped, Journal: o.Log.WithName("decisionLog")})
	if err != nil {
		return nil, hinted(fmt.Errorf("open decisionLog.path: %w", err),
			"set decisionLog.path to a file of its own in a directory that exists and that pullgated may write, or to \"\" for none")
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

// status is what the admin API tells of the log, nil if there is none.
func (l *decisionLog) status() *adminapi.DecisionLogStatus {
	if l == nil {
		return nil
	}
	return &adminapi.DecisionLogStatus{Path: l.path, Dropped: l.dropped.Load()}
}

// decided passes the decisions of the gate on to the log, if there is one, and to whoever watches.
type decided struct {
	log  *decisionLog
	feed *adminapi.Feed
}

// Record keeps a decision of the gate.
func (to decided) Record(d decision.Decision) {
	v := d.Verdict
	repository := v.Pair.Repository
	if n, err := imageref.Parse(d.Image); err == nil && repository == "" {
		repository = n.Repository() // of a pull that did not succeed, say
	}
	var from records.SecretRef
	for _, s := range d.Secrets {
		if v.Credential != "" && s.Credential == v.Credential {
			from = s.Ref
			break
		}
	}
	if to.log != nil {
		to.log.Record(decisionlog.Decision{
			Call:         d.Call,
			Pod:          decisionlog.Pod{UID: d.Pod.UID, Namespace: d.Pod.Namespace, Name: d.Pod.Name},
			Image:        d.Image,
			ImageID:      v.Pair.ImageID,
			Repository:   repository,
			Verdict:      v.Verdict.String(),
			Reason:       string(v.Reason),
			CredentialID: string(v.Credential),
			Secret:       decisionlog.Secret{Namespace: from.Namespace, Name: from.Name},
			PullPolicy:   d.PullPolicy,
			Outcome:      d.Outcome,
			Took:         d.Took,
			Shadow:       d.Shadow,
		})
	}
	to.feed.Publish(adminapi.Decision{
		Call: d.Call, Pod: d.Pod, Image: d.Image, Verdict: v, Repository: repository, Secret: from,
		PullPolicy: d.PullPolicy, Outcome: d.Outcome, Took: d.Took, Shadow: d.Shadow,
	})
}
