package tracker

import (
	"context"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
)

// An Explanation is the verdict that [Tracker.Check] would return, with all facts on which it depends.
type Explanation struct {
	Verdict
	// Rules are the rules in force.
	Rules Rules
	// Evidence is the judged evidence.
	Evidence policy.Evidence
	// Known holds the facts of the store about the pair, before any rotation or mark that Check would write.
	Known records.Details
	// Unreadable says why a part of Known cannot be read; nil if all of it can be read.
	Unreadable error
	// Grant is the pod's grant for the pair, nil if it has none.
	Grant *Grant
	// Standings are those of the request's Secrets, in their order.
	Standings []Standing
	// Distrust says why no image counts as preloaded; nil if the store is trusted.
	Distrust *records.Distrust
}

// Explain judges like Check and has no effect: no grant, mark, rotation, time of use or clamp. Where Check would write before it judges, Explain
// judges as if it had written.
func (t *Tracker) Explain(ctx context.Context, r Request) Explanation {
	r.Secrets = considered(r.Secrets)
	rules := t.rules.Load()
	all := map[records.Pair]Explanation{}
	v := r.choose(func(p records.Pair) Verdict {
		e := t.explainPair(ctx, rules, r, p)
		all[p] = e
		return e.Verdict
	})
	e := all[v.Pair] // the zero value for an absent image
	e.Verdict, e.Rules, e.Distrust = v, *rules, t.store.Distrusted()
	e.Rules.ExemptNamespaces = slices.Clone(rules.ExemptNamespaces)
	return e
}

func (t *Tracker) explainPair(ctx context.Context, rules *Rules, r Request, p records.Pair) Explanation {
	known, err := t.store.Describe(p)
	e := Explanation{Known: known, Unreadable: err}
	facts := known.Facts
	if err != nil {
		facts = records.Facts{} // the same as Lookup returns
	}
	if err == nil && t.mayBePreloaded(facts, r, p) {
		facts.Marked = t.wouldMark(ctx, p)
	}
	facts.Record = clamped(rules, facts.Record)
	f := t.find(rules, r, p, facts, err)
	e.Standings = t.standings(rules, facts.Record, r.Secrets)
	if f.needsRotation() {
		if next, ok := wouldRotate(p, facts.Record, r.Secrets); ok {
			facts.Record = next
			f = t.find(rules, r, p, facts, nil)
		}
	}
	e.Verdict, e.Evidence = f.Verdict, f.evidence
	if f.evidence.Granted {
		granted := f.grant.public(r.Pod.UID, p)
		e.Grant = &granted
	}
	if r.Pod.UID != "" && f.Allowed() && e.Grant == nil {
		e.First = r.leavesGrant(f.Reason) && !byPolicy(f.Reason) || !t.wasNoted(r.Pod.UID, p)
	}
	return e
}

// wouldMark reports whether a scan would mark a pair now.
func (t *Tracker) wouldMark(ctx context.Context, p records.Pair) bool {
	sc, ok := t.plan(ctx)
	if !ok {
		return false
	}
	due, err := t.store.Due(sc.Pairs, sc.Brought)
	return err == nil && sc.Unchanged() && slices.Contains(due, p)
}

// clamped returns the record that clamp would leave: a copy if clamp would change it.
func clamped(rules *Rules, r *records.Record) *records.Record {
	if !rules.ahead(r) {
		return r
	}
	now, next := time.Now(), *r
	next.Proofs = slices.Clone(r.Proofs)
	for i := range next.Proofs {
		if p := &next.Proofs[i]; p.LastProved.After(now) {
			p.LastProved = now
		}
	}
	return &next
}

// wouldRotate returns the record that rotated would leave, and whether it would rotate anything.
func wouldRotate(p records.Pair, r *records.Record, secrets []Secret) (*records.Record, bool) {
	for _, s := range secrets {
		if !rotates(r, s, secrets) {
			continue
		}
		if next, ok := r.Rotated(rotation(p, s)); ok {
			return &next, true
		}
	}
	return nil, false
}

func (t *Tracker) standings(rules *Rules, r *records.Record, secrets []Secret) []Standing {
	all := make([]Standing, len(secrets))
	if r == nil {
		return all
	}
	now := time.Now()
	for i, s := range secrets {
		all[i] = rules.standing(proofOf(r, s.Credential, s.Ref), now)
		if all[i] == ProvedNothing && rotates(r, s, secrets) {
			all[i] = Rotated
		}
	}
	return all
}

// Expires returns when a proof has to be renewed; the zero time means never.
func (r *Rules) Expires(p records.Proof) time.Time {
	if r.Validity <= 0 {
		return time.Time{}
	}
	return p.LastProved.Add(r.Validity)
}

// Rules returns the rules in force.
func (t *Tracker) Rules() Rules {
	r := *t.rules.Load()
	r.ExemptNamespaces = slices.Clone(r.ExemptNamespaces)
	return r
}
