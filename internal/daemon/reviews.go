package daemon

import (
	"context"
	"time"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// settleTime is the time after which policy files, which may be being written, are read again when policyd has others.
const settleTime = 250 * time.Millisecond

// reviewedFields returns the fields of pods that image reviews use, for the pod source.
func reviewedFields() []string {
	return []string{podsource.ReviewAnnotations, "spec.spec.containers[].image[]", "spec.spec.volumes[]"}
}

// reviewBy returns the validator that asks the backends of a set, which can be nil.
func (p *policies) reviewBy(set *policyfiles.Set) *policyclient.Reviewer {
	backends, hash := policyfiles.BackendsOf(set), ""
	if set != nil {
		hash = set.Hash
	}
	p.policyd.keep(backends)
	return policyclient.NewReviewer(backends, policyclient.ReviewerOptions{
		Client: p.policyd, PolicyHash: hash, Failed: p.policyd.notReviewed,
		Successor: func(ctx context.Context) *policyclient.Reviewer {
			if !p.followed(ctx, policyfiles.VersionOf(set)) {
				return nil
			}
			return p.validator()
		},
	})
}

// followed reads the policy files again if those in use are of a version. It returns false if ctx ends first.
// Concurrent calls share the readings.
func (p *policies) followed(ctx context.Context, in policyfiles.Version) bool {
	// A reading that began before this call may have been too early for it, so there is a second one.
	for last := false; ; last = true {
		read := p.following.DoChan(in.Hash+in.TrustedRoot, func() (any, error) {
			changed := p.follow(in)
			if !changed {
				time.Sleep(settleTime)
				changed = p.follow(in)
			}
			return changed, nil
		})
		select {
		case <-ctx.Done():
			return false
		case r := <-read:
			if changed, _ := r.Val.(bool); changed || last || !r.Shared {
				return true
			}
		}
	}
}

// follow reads the policy files again if those in use are of a version, and reports whether others are in use then.
func (p *policies) follow(in policyfiles.Version) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set != nil && policyfiles.VersionOf(p.set) == in {
		p.pollLocked()
	}
	return p.set == nil || policyfiles.VersionOf(p.set) != in
}

func (p *policies) validator() *policyclient.Reviewer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.review
}
