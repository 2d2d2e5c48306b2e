package gate

import (
	"cmp"
	"slices"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Reasons of the gate. They deny calls that the tracker did not judge, or allowed.
const (
	// ContainerRefused hides an image from a pod that was denied a container on it.
	ContainerRefused policy.Reason = "container_refused"
	// Restored refuses a container, or a pod, that was or would be restored from a checkpoint.
	Restored policy.Reason = "restored"
	// CreateFailed replaces the error of a runtime for an image that may be a checkpoint.
	CreateFailed policy.Reason = "creation_failed"
)

func overruled(v tracker.Verdict, why policy.Reason) tracker.Verdict {
	v.Decision = policy.Decision{Verdict: policy.Reverify, Reason: why}
	return v
}

// note records a decision in Config.Decisions and in the journal, which has one line a minute for a repeated denial.
func (g *Gate) note(d decisionlog.Decision) {
	d = g.complete(d)
	g.journal(d)
	if g.c.Decisions != nil {
		g.c.Decisions.Record(d)
	}
}

func (g *Gate) noteRepeatedAllow(d decisionlog.Decision) {
	if log := g.c.Log.V(2); log.Enabled() {
		log.Info("Allowed again", facts(g.complete(d))...)
	}
}

func (g *Gate) complete(d decisionlog.Decision) decisionlog.Decision {
	d.Shadow = g.c.Shadow && d.Verdict.Reason != AdmissionDenied   // which shadow mode does not affect
	d.Repository = cmp.Or(d.Verdict.Pair.Repository, d.Repository) // a pull that did not succeed has no pair
	return d
}

func facts(d decisionlog.Decision) []any {
	all := []any{
		"call", d.Call, "image", d.Image, "imageID", d.Verdict.Pair.ImageID, "pod", klog.KRef(d.Pod.Namespace, d.Pod.Name),
		"reason", d.Verdict.Reason, "credentialID", d.Verdict.Credential, "took", d.Took, "shadow", d.Shadow,
	}
	if d.Container != "" {
		all = append(all, "container", d.Container)
	}
	if d.Verdict.Access != "" {
		all = append(all, "access", d.Verdict.Access)
	}
	if d.Verdict.AccessAudit != "" {
		all = append(all, "accessAudit", d.Verdict.AccessAudit)
	}
	if open := failedOpen(d.Admission); len(open) > 0 {
		all = append(all, "failedOpen", open)
	}
	if _, text := d.Admission.Refusal(); text != "" {
		all = append(all, "policies", text)
	} else if text := d.Admission.Reported(); text != "" {
		all = append(all, "policies", text)
	}
	return all
}

// failedOpen returns the policies that admit because their validator got no answer.
func failedOpen(d admission.Decision) (names []string) {
	for i := range d.Findings {
		if f := &d.Findings[i]; f.FailedOpen && !slices.Contains(names, f.Policy) {
			names = append(names, f.Policy)
		}
	}
	return names
}

func (g *Gate) journal(d decisionlog.Decision) {
	if d.Call == "PullImage" { // each pull has a line, so that the journal shows every request to a registry
		if d.Outcome != "" {
			g.c.Log.Info("Pull", append(facts(d), "outcome", d.Outcome)...)
			return
		}
		if !d.Verdict.Allowed() && d.Verdict.Reason != policy.Fenced {
			g.c.Log.Info("Proof needed", facts(d)...) // the pull goes to the registry
			return
		}
	}
	skipped, repeated := g.pods.repeats(d)
	if repeated {
		return
	}
	facts := facts(d)
	if skipped > 0 {
		facts = append(facts, "repeated", skipped)
	}
	switch {
	case d.Verdict.Allowed() && !wouldDeny(d):
		g.c.Log.Info("Allowed", facts...)
	case d.Shadow && d.Call == "ImageStatus":
		g.c.Log.Info("Would hide", facts...)
	case d.Shadow || d.Verdict.Allowed():
		g.c.Log.Info("Would deny", facts...)
	case d.Call == "ImageStatus":
		g.c.Log.Info("Hidden", facts...)
	default:
		g.c.Log.Info("Denied", facts...)
	}
}

func wouldDeny(d decisionlog.Decision) bool {
	return slices.ContainsFunc(d.Admission.Findings, func(f admission.Finding) bool {
		return f.Audit && f.Answer != admission.Admit
	})
}
