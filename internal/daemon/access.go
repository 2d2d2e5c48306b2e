package daemon

import (
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// accessFile is in the state directory; see imageaccess.Keeper.
const accessFile = "access.json"

// access makes the files of kind ImageAccess the ones in force. The fields are guarded by policies.mu.
type access struct {
	keeper   *imageaccess.Keeper
	newest   *policyfiles.Set                // the last valid one that was read, also while it waits for pullgate-policyd
	gate     *gate.Gate                      // nil before there is one
	set      *imageaccess.Set                // in force
	inForce  atomic.Pointer[imageaccess.Set] // set, for those who do not have the lock
	used     bool                            // by the last call of Use, which did not fail
	failed   error                           // why it is not the one of the policies; Use is called again at the next poll
	prober   imageaccess.Prober
	unusable []error // the files of kind Lend that lend nothing at the moment
	// neverVerify says that kubeletConfig has the policy NeverVerify.
	neverVerify bool
	shown       []string // the warnings that the list of policies has
}

// enforceAccess makes the files in force from now on, before the tracker restores any grant.
func (p *policies) enforceAccess(stateDir string, t *tracker.Tracker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	path := filepath.Join(stateDir, accessFile)
	p.access.keeper = imageaccess.NewKeeper(path, func(s *imageaccess.Set, ended func(string) bool) error {
		p.access.set = s
		p.access.inForce.Store(s)
		if p.access.gate != nil {
			p.accessFor(p.access.gate) // before that is noted on disk
		}
		if s == nil {
			return t.SetAccess(nil, ended)
		}
		return t.SetAccess(s, ended)
	})
	p.useAccess()
	p.keepList(nil)
}

// imageAccess returns the files in force, nil if there are none.
func (p *policies) imageAccess() *imageaccess.Set {
	return p.access.inForce.Load()
}

// accessFor has the gate use the files in force.
func (p *policies) accessFor(g *gate.Gate) {
	if p.access.set == nil {
		g.SetAccess(nil)
		return
	}
	g.SetAccess(p.access.set)
}

// useAccess reports whether anything has changed that the list of policies shows.
func (p *policies) useAccess() (changed bool) {
	a := &p.access
	if a.keeper == nil {
		return false // before the start
	}
	before := a.shown
	if next := policyfiles.AccessOf(a.newest); !a.used || next != a.set {
		a.failed = a.keeper.Use(next)
		if a.used = a.failed == nil; !a.used {
			p.log.Error(a.failed, "Failed to note which rights to images are in force: "+
				"new files of kind ImageAccess have no effect yet, will retry in 3 s")
		}
	}
	a.unusable = a.prober.Unusable(a.set, nil)
	if p.set != nil {
		p.metrics.ImageAccess(len(a.unusable), a.failed != nil)
	}
	for _, err := range a.unusable {
		if !slices.Contains(before, safetext.OneLine(err).Error()) {
			p.log.Error(err, "Image access lends no credential: pulls go to the registry without one")
		}
	}
	a.shown = a.warnings()
	if slices.Contains(a.shown, imageaccess.Unverified) && !slices.Contains(before, imageaccess.Unverified) {
		p.log.Error(nil, "Image access is not verified: kubeletConfig has the policy NeverVerify, "+
			"remove it and set imagePullCredentialsVerificationPolicy")
	}
	return !slices.Equal(before, a.shown)
}

// warnings returns a sentence about each file that does not do what its author means.
func (a *access) warnings() (all []string) {
	all = append(all, a.set.Warnings()...)
	for _, err := range a.unusable {
		all = append(all, safetext.OneLine(err).Error())
	}
	if a.failed != nil {
		all = append(all, safetext.OneLine(a.failed).Error())
	}
	if a.neverVerify && a.set.Gives() {
		all = append(all, imageaccess.Unverified)
	}
	return all
}
