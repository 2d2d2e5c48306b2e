package tracker

import (
	"slices"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/records"
)

// A standing says what a proof is worth at one moment. More is better.
type standing uint8

const (
	unproved standing = iota
	expired           // it has to be renewed at the registry
	inGrace           // it has expired, and stands where the registry cannot be asked
	valid
)

// standing returns what a proof is worth now (docs/design/0013). One from the future is worth nothing until clamp has set
// it back with the clock. A registry that denied the credential since it was proved could be asked, so there
// is no grace.
func (r *Rules) standing(p *records.Proof, now time.Time) standing {
	if p == nil {
		return unproved
	}
	if r.Validity <= 0 {
		return valid
	}
	age := now.Sub(p.LastProved)
	switch {
	case age < 0:
		return expired
	case age < r.Validity:
		return valid
	case age-r.Validity < r.Grace && (p.Denied.IsZero() || p.Denied.Before(p.LastProved)):
		return inGrace
	default:
		return expired
	}
}

// clamp lets proofs from the future count from now, on disk: the clock was set back, and by their own times they would
// be valid for longer than proofs are. It reports whether there were any. If that cannot be written they
// stay in the future, where they prove nothing.
func (t *Tracker) clamp() bool {
	n, err := t.store.Clamp(time.Now())
	if err != nil {
		t.log.Error(err, "Proofs from the future not set back with the clock, they have to be renewed")
	}
	if n > 0 {
		t.log.Info("Clock was set back, proofs from the future count from now", "records", n)
	}
	return n > 0
}

// ahead reports whether a record has a proof from the future that would have to be clamped.
func (r *Rules) ahead(rec *records.Record) bool {
	if r.Validity <= 0 || rec == nil {
		return false
	}
	now := time.Now()
	return slices.ContainsFunc(rec.Proofs, func(p records.Proof) bool { return p.LastProved.After(now) })
}

// A basis is the best that a request has to show for a pair.
type basis struct {
	standing
	credential credential.ID
	secrets    []records.SecretRef // that the credential is known to be from
	fresh      records.SecretRef   // the one that is to be noted with it; the zero value is none
	before     []credential.ID     // see records.Proof.RotatedFrom
}

// better replaces the basis by a proof that is worth more, and reports whether it cannot get better.
func (b *basis) better(s standing, p *records.Proof, from records.SecretRef) (best bool) {
	if s > b.standing {
		*b = basis{standing: s, credential: p.Credential, secrets: p.Secrets, before: p.RotatedFrom}
		if from.UID != "" && !contains(p.Secrets, from) {
			b.fresh, b.secrets = from, append(slices.Clip(p.Secrets), from)
		}
	}
	return b.standing == valid
}

// proof returns the first of the request's credentials that is worth most.
func (t *Tracker) proof(r *records.Record, rules *Rules, q Request) (b basis) {
	now := time.Now()
	for _, c := range q.Credentials {
		id, _ := t.sent(c, q.Pod)
		if p := proofOf(r, id, records.SecretRef{}); b.better(rules.standing(p, now), p, records.SecretRef{}) {
			return b
		}
	}
	for _, s := range q.Secrets {
		if p := proofOf(r, s.Credential, s.Ref); b.better(rules.standing(p, now), p, s.Ref) {
			return b
		}
	}
	// Not for a request that presents a credential: it asks whether that one is good.
	if q.Credentials == nil {
		p := proofOf(r, t.ofNamespace(q.Pod), records.SecretRef{})
		b.better(rules.standing(p, now), p, records.SecretRef{})
	}
	return b
}
