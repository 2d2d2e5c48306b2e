package policyclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// The bounds of work in the background. One verification is in progress at a time.
const (
	roundInterval = 15 * time.Second
	roundLimit    = time.Minute // no verification of a round begins later
	// An endorsement is renewed in the last quarter of its time, within these bounds, and tried four times in that.
	minLead, maxLead = 30 * time.Second, time.Hour
)

// A Drift is an endorsement whose requirement the image no longer meets. The endorsement counts all the same.
type Drift struct {
	Endorsement records.Endorsement
	Rule        *requirement.Rule // one that has the requirement
	Image       imageref.Ref      // under which a pod uses the image
	PolicyHash  string
	// Reason is not one that says nothing about the image, as REGISTRY_DENIED does.
	Reason, Message string
	Since           time.Time
}

// RenewalOptions are what a Renewal needs. All must be set, and may be called concurrently.
type RenewalOptions struct {
	// Stored returns endorsements of the store of the Endorser; see [records.Store.SelectedEndorsements].
	Stored func(records.EndorsementSelection) ([]records.Endorsement, error)
	// InUse returns the images with these IDs that containers of pods have or mount, for each namespace and name.
	InUse func(ctx context.Context, wanted map[string]bool) ([]admission.UsedImage, error)
	// Renewed is called for each endorsement that was replaced.
	Renewed func(records.Endorsement)
	// Drifted is called when a drift begins, has another reason, or has ended.
	Drifted func(d Drift, ended bool)
	// Failed is called for each verification without a result, and without an image for work that could not begin.
	Failed   func(VerificationFailure)
	Panicked func(value any, stack []byte)
}

// A Renewal verifies images that pods use again, in the background: those whose endorsements end soon, so that a start
// does not wait for a registry, and with EndorserOptions.Recheck all. There is one for a process.
type Renewal struct {
	options RenewalOptions
	jitter  float64 // so that not all nodes ask a registry at the same time
	working atomic.Bool
	ended   sync.WaitGroup
	next    time.Time // of a round; used by Tick

	tried map[fact]time.Time   // the last attempt; used by a round
	turns map[string]time.Time // the last attempt for a namespace; used by a round

	mu    sync.Mutex // guards drift
	drift map[fact]Drift
}

// NewRenewal returns a Renewal. Nothing happens without calls of Tick.
func NewRenewal(o RenewalOptions) *Renewal {
	return &Renewal{
		options: o, tried: map[fact]time.Time{}, turns: map[string]time.Time{}, drift: map[fact]Drift{},
		jitter: 1 - rand.Float64()/4, //nolint:gosec // not a secret
	}
}

// Tick begins a round of work if one is due and none is in progress. It returns at once, and must not be called
// concurrently. e is the Endorser in use, or nil. The round ends with ctx.
func (n *Renewal) Tick(ctx context.Context, e *Endorser) {
	if e == nil || e.options.Recheck <= 0 {
		n.keepDrift(nil)
		if e == nil || !e.conditions {
			return
		}
	}
	now := time.Now()
	if now.Before(n.next) || !n.working.CompareAndSwap(false, true) {
		return
	}
	n.next = now.Add(roundInterval)
	n.ended.Go(func() {
		defer n.working.Store(false)
		defer func() {
			if p := recover(); p != nil {
				n.options.Panicked(p, debug.Stack())
			}
		}()
		n.round(ctx, e)
	})
}

// Wait returns when no round is in progress. Tick must not be called any more.
func (n *Renewal) Wait() { n.ended.Wait() }

// Drift returns every drift.
func (n *Renewal) Drift() []Drift {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.drift))
}

// keepDrift ends the drift of all facts but these.
func (n *Renewal) keepDrift(of map[fact]work) {
	n.mu.Lock()
	var ended []Drift
	for f, d := range n.drift {
		if _, ok := of[f]; !ok {
			delete(n.drift, f)
			ended = append(ended, d)
		}
	}
	n.mu.Unlock()
	for _, d := range ended {
		n.options.Drifted(d, true)
	}
}

func (n *Renewal) noteDrift(f fact, d Drift) {
	n.mu.Lock()
	old, known := n.drift[f]
	if known {
		d.Since = old.Since
	}
	n.drift[f] = d
	n.mu.Unlock()
	if old.Reason != d.Reason {
		n.options.Drifted(d, false)
	}
}

func (n *Renewal) noDrift(f fact) {
	n.mu.Lock()
	d, known := n.drift[f]
	delete(n.drift, f)
	n.mu.Unlock()
	if known {
		n.options.Drifted(d, true)
	}
}

// work is what is to be done about an endorsement. It is known for each that a rule in use requires.
type work struct {
	endorsement    records.Endorsement
	renew, recheck bool
}

func (w work) due() bool { return w.renew || w.recheck }

func (n *Renewal) workOf(e *Endorser, got records.Endorsement, now time.Time) work {
	w := work{endorsement: got}
	last := n.tried[fact{got.Pair, got.Requirement}]
	if !got.Until.IsZero() {
		ends := EndOf(got, e.options.Validity)
		lead := time.Duration(n.jitter * float64(min(max(ends.Sub(got.At)/4, minLead), maxLead)))
		w.renew = now.After(ends.Add(-lead)) && now.Sub(last) >= max(lead/4, roundInterval)
	}
	if last.Before(got.At) && !got.At.After(now) {
		last = got.At
	}
	w.recheck = e.options.Recheck > 0 && now.Sub(last) >= e.options.Recheck
	return w
}

// A task is the verification of an image that pods use.
type task struct {
	admission.UsedImage // by the first pod

	pair  records.Pair
	rules []*requirement.Rule // those with work, one for each requirement
}

func (n *Renewal) round(ctx context.Context, e *Endorser) {
	begun := time.Now()
	stored, err := n.options.Stored(records.EndorsementSelection{All: true})
	if err != nil {
		n.options.Failed(VerificationFailure{Err: err})
		return
	}
	all, wanted := map[fact]work{}, map[string]bool{}
	for _, got := range stored {
		if e.requires[got.Requirement] {
			w := n.workOf(e, got, begun)
			all[fact{got.Pair, got.Requirement}] = w
			wanted[got.Pair.ImageID] = wanted[got.Pair.ImageID] || w.due()
		}
	}
	n.keepDrift(all)
	maps.DeleteFunc(n.tried, func(f fact, _ time.Time) bool { _, ok := all[f]; return !ok })
	maps.DeleteFunc(wanted, func(_ string, due bool) bool { return !due })
	if len(wanted) == 0 {
		return
	}
	used, err := n.options.InUse(ctx, wanted)
	if err != nil {
		if ctx.Err() == nil {
			n.options.Failed(VerificationFailure{Err: err})
		}
		return
	}
	tasks := tasksOf(e, used, all)
	n.skip(tasks, all, begun)
	for len(tasks) > 0 && ctx.Err() == nil && time.Since(begun) <= roundLimit {
		// Namespaces take turns, and so do the images of one, so that none waits for what is slow of another.
		next := slices.MinFunc(tasks, func(a, b *task) int {
			return cmp.Or(n.turns[a.Namespace].Compare(n.turns[b.Namespace]), n.last(a).Compare(n.last(b)))
		})
		tasks = slices.DeleteFunc(tasks, func(t *task) bool { return t == next })
		n.verify(ctx, e, next, all)
	}
}

// last returns when the fact of a task was tried that waits for longest.
func (n *Renewal) last(t *task) (first time.Time) {
	for i, r := range t.rules {
		if at := n.tried[fact{t.pair, r.Hash}]; i == 0 || at.Before(first) {
			first = at
		}
	}
	return first
}

// tasksOf returns one task for each image under one of its repositories.
func tasksOf(e *Endorser, used []admission.UsedImage, all map[fact]work) (tasks []*task) {
	byPair := map[records.Pair]*task{}
	for _, u := range used {
		p := records.Pair{ImageID: u.ID, Repository: u.Requested.Repository()}
		for _, r := range e.rulesFor(u.Namespace, u.Requested).Signed {
			if !all[fact{p, r.Hash}].due() {
				continue
			}
			t := byPair[p]
			if t == nil {
				t = &task{UsedImage: u, pair: p}
				byPair[p], tasks = t, append(tasks, t)
			}
			if !slices.ContainsFunc(t.rules, func(known *requirement.Rule) bool { return known.Hash == r.Hash }) {
				t.rules = append(t.rules, r)
			}
		}
	}
	return tasks
}

// skip notes that no pod uses the images of the other facts: there is no work for a while, and no drift.
func (n *Renewal) skip(tasks []*task, all map[fact]work, now time.Time) {
	used := map[fact]bool{}
	for _, t := range tasks {
		for _, r := range t.rules {
			used[fact{t.pair, r.Hash}] = true
		}
	}
	for f, w := range all {
		if w.due() && !used[f] {
			n.tried[f] = now
			n.noDrift(f)
		}
	}
	maps.DeleteFunc(n.turns, func(_ string, at time.Time) bool { return now.Sub(at) > maxLead })
}

// verify verifies an image, and uses the results.
func (n *Renewal) verify(ctx context.Context, e *Endorser, t *task, all map[fact]work) {
	begun, revocations := time.Now(), e.options.State.revocations.Load()
	request := VerifyRequest{
		PolicyHash: e.options.PolicyHash, TrustedRoot: e.options.TrustedRoot, Name: t.Requested.String(),
		ImageID: t.ID, Digests: t.Digests, Background: true,
	}
	n.turns[t.Namespace] = begun
	for _, r := range t.rules {
		n.tried[fact{t.pair, r.Hash}] = begun
		request.Requirements = append(request.Requirements, r.Hash)
	}
	limited, cancel := context.WithTimeout(ctx, pullVerifyLimit)
	defer cancel()
	answer, err := e.options.Verifier.Verify(limited, request)
	switch {
	case ctx.Err() != nil, errors.Is(err, ErrOtherPolicies): // one of the two processes will read the files
		return
	case err != nil:
		n.failed(t, err)
		return
	}
	for i, got := range answer.Results { // in the order of the request
		w := all[fact{t.pair, got.Requirement}]
		if got.Met {
			n.met(e, t, w, e.endorsement(t.pair, got, begun), revocations)
		} else {
			n.unmet(e, t, t.rules[i], w, got)
		}
	}
}

func (n *Renewal) failed(t *task, err error) {
	n.options.Failed(VerificationFailure{t.Requested.String(), t.ID, t.Namespace, err})
}

// met replaces an endorsement that ends by one that ends later, unless it was revoked or replaced meanwhile.
func (n *Renewal) met(e *Endorser, t *task, w work, next records.Endorsement, revocations uint64) {
	f := fact{next.Pair, next.Requirement}
	n.noDrift(f)
	before, ends := EndOf(w.endorsement, e.options.Validity), EndOf(next, e.options.Validity)
	if !w.renew || !ends.IsZero() && !ends.After(before) {
		return
	}
	renewed := false
	err := e.options.Store.Endorse([]records.Endorsement{next}, func(present records.Endorsement) bool {
		renewed = present.At.Equal(w.endorsement.At) && e.options.State.revocations.Load() == revocations
		return renewed
	})
	switch {
	case err != nil:
		n.failed(t, err)
	case renewed:
		e.options.State.verified(f)
		n.options.Renewed(next)
	}
}

// unmet uses a result that is not met. What says nothing about the image changes nothing.
func (n *Renewal) unmet(e *Endorser, t *task, r *requirement.Rule, w work, got requirement.Result) {
	f := fact{t.pair, r.Hash}
	switch {
	case got.Reason == requirement.RegistryDenied:
		return
	case got.Unavailable():
		n.failed(t, fmt.Errorf("%w: %s", errUnavailable, sentence(got.Message)))
		return
	}
	if w.renew {
		if _, err := e.noteDenial(f, got); err != nil {
			n.failed(t, err)
		}
	}
	if e.options.Recheck > 0 {
		n.noteDrift(f, Drift{
			Endorsement: w.endorsement, Rule: r, Image: t.Requested, PolicyHash: e.options.PolicyHash,
			Reason: got.Reason, Message: sentence(got.Message), Since: time.Now(),
		})
	}
}

var errUnavailable = errors.New("the registry cannot be asked")
