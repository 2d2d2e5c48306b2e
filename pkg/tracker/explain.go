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
	Rules    Rules // in force
	Evidence policy.Evidence
	// Known holds the facts of the store about the pair, before any rotation or mark that Check would write.
	Known      records.Details
	Unreadable error              // why Known cannot be read
	Grant      *Grant             // of the pod for the pair, nil if it has none
	Statuses   []CredentialStatus // of the request's Secrets, in their order
	Bypassed   bool               // a pull without the tracker may have brought the image: no scan marks it (yet)
	Distrust   *records.Distrust  // why no image counts as preloaded; nil if the store is trusted
}

// Explain judges like Check and has no effect. Where Check would write before it judges, Explain judges as if it had
// written.
func (t *Tracker) Explain(ctx context.Context, r Request) Explanation {
	return t.explain(ctx, t.question(r))
}

// ExplainBy is Explain as it would be by another access, nil for none.
func (t *Tracker) ExplainBy(ctx context.Context, r Request, a Access) Explanation {
	q := t.question(r)
	q.access = a
	return t.explain(ctx, q)
}

func (t *Tracker) explain(ctx context.Context, q question) Explanation {
	all := map[records.Pair]Explanation{}
	v := q.choose(func(p records.Pair) Verdict {
		e := t.explainPair(ctx, &q, p)
		all[p] = e
		return e.Verdict
	})
	e := all[v.Pair] // the zero value for an absent image
	e.Verdict, e.Rules, e.Distrust = v, *q.rules, t.store.Distrusted()
	e.Rules.ExemptNamespaces = slices.Clone(q.rules.ExemptNamespaces)
	return e
}

func (t *Tracker) explainPair(ctx context.Context, q *question, p records.Pair) Explanation {
	q.readRights(p)
	t.mu.RLock()
	f := t.factsLocked(q, p)
	e := Explanation{Bypassed: f.bypassed}
	e.Known, e.Unreadable = t.store.Describe(p)
	t.mu.RUnlock()
	f.Facts, f.unreadable = e.Known.Facts, e.Unreadable
	j := evaluate(q, p, &f, time.Now())
	if j.scan {
		if f.scanned = true; t.wouldMark(ctx, p) {
			f.Mark = &records.Mark{Pair: p}
		} else {
			last := t.lastGap()
			since, ok := t.watched()
			e.Bypassed = last.lasts(since, ok, time.Now())
		}
		j = evaluate(q, p, &f, time.Now())
	}
	e.Verdict, e.Evidence, e.Statuses = j.Verdict, j.evidence, q.statuses(j.record)
	if f.granted {
		granted := f.grant.public(q.Pod.UID, p)
		e.Grant = &granted
	}
	return e
}

func (t *Tracker) wouldMark(ctx context.Context, p records.Pair) bool {
	s, ok := t.plan(ctx)
	if !ok || !s.unchanged() {
		return false
	}
	due, err := t.store.Due(s.Pairs, s.Brought)
	return err == nil && slices.Contains(due, p)
}

func (q *question) statuses(r *records.Record) []CredentialStatus {
	all := make([]CredentialStatus, len(q.Secrets))
	if r == nil {
		return all
	}
	now := time.Now()
	for i, s := range q.Secrets {
		all[i] = q.rules.Status(proofOf(r, s.Credential, s.Ref), now)
		if all[i] == ProvedNothing && rotates(r, s, q.Secrets) {
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
	return p.LastProved.Add(r.validityOf(&p))
}

// Rules returns the rules in force.
func (t *Tracker) Rules() Rules {
	r := *t.rules.Load()
	r.ExemptNamespaces = slices.Clone(r.ExemptNamespaces)
	return r
}
