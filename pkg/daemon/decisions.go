package daemon

import (
	"fmt"

	"github.com/pullgate/pullgate/pkg/criproxy/decision"
	"github.com/pullgate/pullgate/pkg/decisions"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/metrics"
)

// decisionLog is the log of decisions as the gate wants it.
type decisionLog struct{ *decisions.Log }

// openDecisions opens the log of decisions that the configuration asks for, nil if none.
func openDecisions(o Options, m *metrics.Metrics) (*decisionLog, error) {
	path := o.Config.DecisionLog.Path
	if path == "" {
		return nil, nil //nolint:nilnil // no log is what was asked for
	}
	log, err := decisions.Open(decisions.Options{Path: path, Dropped: m.DecisionsDropped, Journal: o.Log.WithName("decisionLog")})
	if err != nil {
		return nil, hinted(fmt.Errorf("open decisionLog.path: %w", err),
			"set decisionLog.path to a file of its own in a directory that exists and that pullgated may write, or to \"\" for none")
	}
	return &decisionLog{log}, nil
}

// forGate returns the log as an interface that is nil if there is none.
func (l *decisionLog) forGate() decision.Log { //nolint:ireturn // what the gate wants
	if l == nil {
		return nil
	}
	return l
}

func (l *decisionLog) close() error {
	if l == nil {
		return nil
	}
	return l.Close()
}

// Record keeps a decision of the gate.
func (l *decisionLog) Record(d decision.Decision) {
	v := d.Verdict
	kept := decisions.Decision{
		Call:         d.Call,
		Pod:          decisions.Pod{UID: d.Pod.UID, Namespace: d.Pod.Namespace, Name: d.Pod.Name},
		Image:        d.Image,
		ImageID:      v.Pair.ImageID,
		Repository:   v.Pair.Repository,
		Verdict:      v.Verdict.String(),
		Reason:       string(v.Reason),
		CredentialID: string(v.Credential),
		PullPolicy:   d.PullPolicy,
		Outcome:      d.Outcome,
		Took:         d.Took,
		Shadow:       d.Shadow,
	}
	if n, err := imageref.Parse(d.Image); err == nil && kept.Repository == "" {
		kept.Repository = n.Repository() // of a pull that did not succeed, say
	}
	for _, s := range d.Secrets {
		if v.Credential != "" && s.Credential == v.Credential {
			kept.Secret = decisions.Secret{Namespace: s.Ref.Namespace, Name: s.Ref.Name}
			break
		}
	}
	l.Log.Record(kept)
}
