package tracker

import (
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

// A Standing is the state of a credential for a pair at one moment. Of the values up to Valid a greater one is better.
type Standing uint8

// The values of a Standing.
const (
	ProvedNothing Standing = iota
	Expired                // the proof has to be renewed at the registry
	InGrace                // the proof has expired, and counts only while the registry cannot be asked
	Valid
	Rotated // the Secret proved access with other content; the present credential replaces that when the pod asks
)

// standing returns the present state of a proof (docs/design/0013). A proof from the future is expired until clamp corrects it. There is no grace
// if a registry has denied the credential since the proof: the registry can be asked.
func (r *Rules) standing(p *records.Proof, now time.Time) Standing {
	if p == nil {
		return ProvedNothing
	}
	if r.Validity <= 0 {
		return Valid
	}
	age := now.Sub(p.LastProved)
	switch {
	case age < 0:
		return Expired
	case age < r.Validity:
		return Valid
	case age-r.Validity < r.Grace && (p.Denied.IsZero() || p.Denied.Before(p.LastProved)):
		return InGrace
	default:
		return Expired
	}
}

// clamp sets proofs from the future to the present time, on disk, and reports whether there were any: the clock was set back, and they would be
// valid for too long. If that cannot be written, they stay in the future and prove nothing.
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

// ahead reports whether a record has a proof from the future that clamp would change.
func (r *Rules) ahead(rec *records.Record) bool {
	if r.Validity <= 0 || rec == nil {
		return false
	}
	now := time.Now()
	for i := range rec.Proofs { // without a copy of each, because every judgement waits for this
		if rec.Proofs[i].LastProved.After(now) {
			return true
		}
	}
	return false
}

// A bestProof is the best proof that a request has for a pair.
type bestProof struct {
	standing     Standing
	credential   credential.ID
	secrets      []records.SecretRef // those in the record that are known to hold the credential
	newSecretRef records.SecretRef   // a Secret that holds it and is not in the record yet; the zero value is none
	before       []credential.ID     // see records.Proof.RotatedFrom
}

// proof returns the first of the best proofs in a record by the credentials of a request.
func (t *Tracker) proof(r *records.Record, rules *Rules, q Request) (best bestProof) {
	var now time.Time
	if rules.Validity > 0 { // otherwise it has no effect
		now = time.Now()
	}
	consider := func(id credential.ID, from records.SecretRef) {
		if best.standing == Valid {
			return
		}
		p := proofOf(r, id, from)
		s := rules.standing(p, now)
		if s <= best.standing {
			return
		}
		best = bestProof{standing: s, credential: id, secrets: p.Secrets, before: p.RotatedFrom}
		if from.UID != "" && !slices.Contains(p.Secrets, from) {
			best.newSecretRef = from
		}
	}
	for _, c := range q.Credentials {
		id, _ := t.sent(c, q.Pod)
		consider(id, records.SecretRef{})
	}
	for _, s := range q.Secrets {
		consider(s.Credential, s.Ref)
	}
	// Skipped for a request that presents a credential: it asks whether that credential proves access.
	if q.Credentials == nil {
		consider(t.ofNamespace(q.Pod), records.SecretRef{})
	}
	return best
}
