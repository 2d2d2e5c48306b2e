package daemon

import (
	"time"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/fleet/api"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/operator/nodereport"
	"github.com/pullgate/pullgate/pkg/policy"
)

// report is the NodeReport of this node; nil if it has none.
type report struct {
	*nodereport.Recorder

	version string
}

func openReport(o Options) *report {
	if !o.Config.Reports() {
		return nil
	}
	return &report{nodereport.New(time.Now()), o.Version}
}

// Record counts a decision.
func (r *report) Record(d decisionlog.Decision) {
	if r != nil {
		r.Recorder.Record(d)
	}
}

// content returns what the report says now. There is nothing to say while pullgated stops.
func (r *report) content(p parts) (api.Report, bool) {
	in, policies := p.inForce.Load().config, p.policies.list().GetHash()
	configuration := hashOf(in)
	c := r.Content(time.Now(), p.gate.KubeletAbsent(), configuration+policies)
	c.Version, c.Configuration, c.Policies, c.Mode = r.version, configuration, policies, reportMode(in)
	return c, !p.stopping.Load()
}

func reportMode(c config.Config) api.ReportMode {
	switch {
	case c.Policy().Mode() == policy.ModeNeverVerify: // also in shadow mode, which then judges nothing
		return api.ReportNeverVerify
	case c.NoPullImageSecretRecheck:
		return api.ReportShadow
	default:
		return api.ReportEnforcing
	}
}

// reportOf returns the function for the pod source, nil if there is no report.
func reportOf(r *report, p *parts) func() (api.Report, bool) {
	if r == nil {
		return nil
	}
	return func() (api.Report, bool) { return r.content(*p) }
}
