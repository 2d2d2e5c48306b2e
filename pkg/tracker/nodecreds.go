package tracker

import (
	"context"
	"slices"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
)

// reserves reports whether credentials of the node are for other pods.
func (r *Rules) reserves(p Pod) bool {
	return r.NodeNamespaces != nil && (p.Namespace == "" || !slices.Contains(r.NodeNamespaces, p.Namespace))
}

// open reports whether a record is open to a pod.
func (r *Rules) open(record *records.Record, p Pod) bool {
	return record.Open && (record.ForEveryPod() || !r.reserves(p))
}

// counts reports whether a grant counts now. One that may come from credentials of the node does not count for other
// pods, until the record is open to them too. What a restored grant came from is not known; without a name it may have
// come from another repository of the image.
func (r *Rules) counts(g grant, p Pod, record *records.Record) bool {
	switch g.Reason {
	case policy.Open:
		return !r.reserves(p) || record != nil && record.ForEveryPod()
	case policy.Granted:
		if g.Unnamed && r.reserves(p) {
			return false
		}
		return record == nil || !record.Open || r.open(record, p)
	default:
		return true
	}
}

// withholds reports whether a pod may not use a credential of the node for a repository. What no pod has to prove
// access to is for every pod.
func (r *Rules) withholds(p Pod, repository string) bool {
	if !r.reserves(p) || r.exemption(p) != policy.NotExempt {
		return false
	}
	switch r.Policy.Mode() {
	case policy.ModeNeverVerify:
		return false
	case policy.ModeNeverVerifyAllowlistedImages:
		return !r.Policy.Allowlisted(repository)
	case policy.ModeNeverVerifyPreloadedImages, policy.ModeAlwaysVerify:
	}
	return true
}

func holds(secrets []Secret, id credential.ID) bool {
	return slices.ContainsFunc(secrets, func(s Secret) bool { return s.Credential == id })
}

// Withholds reports whether a pod pulls with a credential of the node that is for other pods: its kubelet has added it.
// secrets returns the credentials of the pod's own pull secrets, and is called only if that depends on them.
func (t *Tracker) Withholds(
	ctx context.Context, p Pod, name imageref.Ref, sent Sent, secrets func() []Secret,
) bool {
	return sent.id != "" && sent.namespace == "" && t.options.NodeHolds != nil &&
		t.rules.Load().withholds(p, repositoryOf(name)) && t.options.NodeHolds(ctx, sent.id) && !holds(secrets(), sent.id)
}

// OpenTo returns the namespaces to whose pods a record is open, nil for every namespace, by the rules.
func (r *Rules) OpenTo(record records.Record) (namespaces []string, open bool) {
	if !record.Open || r.NodeNamespaces == nil || record.ForEveryPod() {
		return nil, record.Open
	}
	return slices.Clone(r.NodeNamespaces), true
}
