package restriction

import (
	"context"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// maxPerPolicy bounds the violations of one policy that are reported: a tenant chooses the number of mounts.
const maxPerPolicy = 10

// A Validator compares subjects with a set of restrictions. It cannot fail.
type Validator struct {
	set  *Set
	node Options
}

// NewValidator returns a validator. node is for StageSandbox and StageContainer; the pods of reviews are complete.
func NewValidator(set *Set, node Options) *Validator { return &Validator{set, node} }

// Validate returns a finding for each violation, or one that admits, and none, which denies, at StageContainer without
// a container: restrictions of containers would not be compared.
func (v *Validator) Validate(_ context.Context, s admission.Subject) []admission.Finding {
	options := v.node
	options.AssumeUnknown = s.AssumeUnknown
	var containers []admission.Container
	switch s.Stage {
	case admission.StageAdmission, admission.StageTemplate, admission.StageImageReview:
		options.From, options.Stage, containers = Admission, s.Stage, s.Containers
	case admission.StageContainer:
		if s.Container == nil {
			return nil
		}
		containers, options.Others = []admission.Container{*s.Container}, s.Containers
	case admission.StageSandbox:
	default:
		return nil
	}
	if s.Pod.Static && options.From == NodeWithPodSource {
		options.From = Node // the API server has only a copy of the pod
	}
	return findings(v.set.Judge(&s.Pod, containers, options))
}

// Same reports whether two subjects are the same in all fields that the policies of their namespace restrict.
func (v *Validator) Same(a, b admission.Subject) bool {
	return a.Stage == b.Stage && v.set.Same(&a.Pod, &b.Pod, a.Containers, b.Containers)
}

// findings returns those of a decision; none, which denies, if it denies without an enforced violation.
func findings(d Decision) []admission.Finding {
	var all []admission.Finding
	if d.Admitted {
		all = append(all, admission.Finding{Answer: admission.Admit, Policy: d.AcceptedBy})
	}
	enforced, count := false, map[string]int{}
	for _, found := range d.Violations {
		if count[found.Policy]++; count[found.Policy] > maxPerPolicy {
			continue
		}
		reason := admission.RestrictionViolated
		if found.Unknown {
			reason = admission.FieldUnknown
		}
		enforced = enforced || !found.Audit
		all = append(all, admission.Finding{
			Answer: admission.Deny, Policy: found.Policy, Rule: found.Path, Reason: reason, Message: found.String(),
			Audit: found.Audit,
		})
	}
	if !d.Admitted && !enforced {
		return nil
	}
	return all
}
