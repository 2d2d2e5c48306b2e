package restriction

import (
	"slices"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// A podRule is a compiled Spec.
type podRule struct {
	name                                          *stringRule
	labels, annotations, nodeSelector             *mapRule
	restartPolicy, dnsPolicy                      *stringRule
	terminationGrace, activeDeadline              *numberRule
	automountToken                                *boolRule
	hostNetwork, hostPID, hostIPC, shareProcesses *boolRule
	supplementalGroups, fsGroup                   *numberRule

	volumes                    []volumeRule
	containers, initContainers []containerRule
	// podPart is the number of all but the lists, volumesPart and containersPart those of the lists. Equal parts of
	// policies have equal numbers.
	podPart, volumesPart, containersPart int
}

// checkPod compares everything but the containers and their mounts.
func (r *podRule) checkPod(j *judgement, p *admission.Pod) bool {
	ok := r.name.check(j, nameOf(p))
	ok = r.labels.check(j, p.Labels) && ok
	ok = r.annotations.check(j, p.Annotations) && ok
	ok = r.restartPolicy.check(j, p.RestartPolicy) && ok
	ok = r.dnsPolicy.check(j, p.DNSPolicy) && ok
	ok = r.nodeSelector.check(j, p.NodeSelector) && ok
	ok = r.activeDeadline.check(j, p.ActiveDeadlineSeconds) && ok
	ok = r.terminationGrace.check(j, p.TerminationGracePeriodSeconds) && ok
	ok = r.automountToken.check(j, p.AutomountServiceAccountToken) && ok
	ok = r.hostNetwork.check(j, p.HostNetwork) && ok
	ok = r.hostPID.check(j, p.HostPID) && ok
	ok = r.hostIPC.check(j, p.HostIPC) && ok
	ok = r.shareProcesses.check(j, p.ShareProcessNamespace) && ok
	return r.checkGroups(j, p) && ok
}

func nameOf(p *admission.Pod) admission.Value[string] {
	if p.Name == "" { // a template, whose pods get generated names
		return admission.Value[string]{}
	}
	return admission.Set(p.Name)
}

// checkGroups compares supplementalGroups and fsGroup. A source that has them in one list does not say which group is
// which, so each must fit one of the ranges that the policy has.
func (r *podRule) checkGroups(j *judgement, p *admission.Pod) bool {
	supplemental, fs := r.supplementalGroups, r.fsGroup
	groups, together := p.Groups.Effective()
	separate := p.SupplementalGroups.State() != admission.StateUnknown || p.FSGroup.State() != admission.StateUnknown
	switch {
	case supplemental == nil && fs == nil:
		return true
	case separate || !together:
		ok := supplemental.checkEach(j, p.SupplementalGroups)
		return fs.check(j, p.FSGroup) && ok
	case len(groups) == 0:
		ok := supplemental.checkEach(j, admission.Absent[[]int64]())
		return fs.check(j, admission.Absent[int64]()) && ok
	case supplemental != nil && supplemental.requireNil && fs != nil && fs.requireNil:
		return j.violatedNumber(&supplemental.leaf, groups[0])
	}
	ok := true
	var restricting []*numberRule
	for _, rule := range [...]*numberRule{supplemental, fs} {
		if rule == nil {
			continue
		}
		ok = rule.checkNil(j, admission.StateUnknown) && ok
		if rule.ranges != nil {
			restricting = append(restricting, rule)
		}
	}
	for _, g := range groups {
		if len(restricting) > 0 && !slices.ContainsFunc(restricting, func(rule *numberRule) bool { return rule.allows(g) }) {
			return j.violatedNumber(&restricting[0].leaf, g)
		}
	}
	return ok
}

// anyOf reports whether one of n entries matches. If none does, the report has the violations of the first entry with
// the fewest.
func anyOf(j *judgement, n int, check func(i int) bool) bool {
	report := j.report
	j.report = nil
	matches := false
	for i := 0; i < n && !matches; i++ {
		matches = check(i)
	}
	if matches || report == nil {
		j.report = report
		return matches
	}
	var fewest []Violation
	for i := range n {
		var found []Violation
		j.report = &found
		check(i)
		if i == 0 || len(found) < len(fewest) {
			fewest = found
		}
	}
	*report = append(*report, fewest...)
	j.report = report
	return false
}
