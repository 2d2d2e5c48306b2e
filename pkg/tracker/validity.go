package tracker

import (
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

// A CredentialStatus is the status of a credential for a pair, ordered from worst to best up to Valid.
type CredentialStatus uint8

// The values of a CredentialStatus.
const (
	ProvedNothing CredentialStatus = iota
	Expired                        // the proof has to be renewed at the registry
	InGrace                        // the proof has expired, and counts only while the registry cannot be asked
	Valid
	Rotated // the Secret proved access with other content; the present credential replaces that when the pod asks
)

// Status returns the present status of a proof (docs/design/0013). A proof from the future is expired until clamp
// corrects it. There is no grace if a registry has denied the credential since the proof: the registry can be asked.
func (r *Rules) Status(p *records.Proof, now time.Time) CredentialStatus {
	if p == nil {
		return ProvedNothing
	}
	if r.Validity <= 0 {
		return Valid
	}
	age, validity := now.Sub(p.LastProved), r.validityOf(p)
	switch {
	case age < 0:
		return Expired
	case age < validity:
		return Valid
	case age-validity < r.Grace && (p.Denied.IsZero() || p.Denied.Before(p.LastProved)):
		return InGrace
	default:
		return Expired
	}
}

// spreadOver is the part of Validity over which Spread spreads the ends of proofs.
const spreadOver = 5

// validityOf returns how long a proof is valid, at most Validity. With Spread what was proved at once, on many nodes or
// for many images, does not ask the registry again at once (docs/design/0049). Credential IDs differ between nodes, and
// a renewal changes the time, so no proof is always the first.
func (r *Rules) validityOf(p *records.Proof) time.Duration {
	if !r.Spread {
		return r.Validity
	}
	h := uint64(p.LastProved.UnixNano())
	for _, c := range []byte(p.Credential[max(0, len(p.Credential)-16):]) {
		h = (h ^ uint64(c)) * 1099511628211 // FNV-1a
	}
	const steps = 1 << 16
	return r.Validity - r.Validity/spreadOver/steps*time.Duration(h>>48)
}

// clamp sets proofs from the future to the present time, on disk: the clock was set back. Until then they are expired.
func (t *Tracker) clamp() {
	t.turn.Lock()
	n, err := t.store.Clamp(time.Now())
	t.turn.Unlock()
	if err != nil {
		t.log.Error(err, "Failed to set back proofs from the future: they need renewal")
	}
	if n > 0 {
		t.log.Info("Clock was set back, proofs from the future count from now", "records", n)
	}
}

func (r *Rules) ahead(f *records.Facts, now time.Time) bool {
	return r.Validity > 0 && f.LatestProof.After(now)
}

// A bestProof is the best proof that a request has for a pair.
type bestProof struct {
	status       CredentialStatus
	credential   credential.ID
	secrets      []records.SecretRef // those that are known to hold the credential
	newSecretRef records.SecretRef   // a Secret that holds it and is not in the record yet; the zero value is none
	before       []credential.ID     // see records.Proof.RotatedFrom
}

// proof returns the first of the best proofs in a record by the credentials of a request.
func (q *question) proof(r *records.Record, now time.Time) (best bestProof) {
	for i := range q.Secrets {
		best.consider(q.rules, r, q.Secrets[i].Credential, q.Secrets[i].Ref, now)
	}
	best.consider(q.rules, r, q.Sent.id, records.SecretRef{}, now)
	return best
}

func (b *bestProof) consider(rules *Rules, r *records.Record, id credential.ID, from records.SecretRef, now time.Time) {
	if b.status == Valid {
		return
	}
	p := proofOf(r, id, from)
	s := rules.Status(p, now)
	if s <= b.status {
		return
	}
	*b = bestProof{status: s, credential: id, secrets: p.Secrets, before: p.RotatedFrom}
	if from.UID != "" && !slices.Contains(p.Secrets, from) {
		b.newSecretRef = from
	}
}
