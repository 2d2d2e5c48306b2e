package records

import (
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/pkg/credential"
)

// A Rotation is a Secret that proved access to a pair and contains another credential now.
type Rotation struct {
	Pair       Pair
	Secret     SecretRef
	Credential credential.ID // the one that it contains now
	At         time.Time
}

// Rotate replaces the credential with which a Secret proved access by the one that the Secret contains now, and reports
// whether it did. The record must name the Secret, have room, and show at most MaxRotations changes since a registry
// confirmed the Secret. The new proof keeps the times of the old one, and is unconfirmed ([Proof.RotatedFrom]) unless a
// registry has confirmed it. The old credential stays with other Secrets that contain it.
func (s *Store) Rotate(r Rotation) (bool, error) {
	return write(s, "rotate a credential for "+r.Pair.Repository, crashpoint.Rotate, func(t *tx) bool {
		known := t.record(r.Pair)
		if known == nil {
			return false
		}
		rec, rotated := known.Rotated(r)
		if rotated {
			t.putRecord(rec)
		}
		return rotated
	})
}

// Rotated returns a deep copy as Rotate would write it, and whether it differs.
func (r *Record) Rotated(to Rotation) (next Record, rotated bool) {
	next = r.clone()
	if to.Credential == "" || to.Secret.UID == "" || !next.rotate(to) {
		return *r, false
	}
	return next, true
}

func (r *Record) rotate(to Rotation) (rotated bool) {
	next := Proof{Credential: to.Credential, Namespace: to.Secret.Namespace}
	var own *Proof
	for i := range r.Proofs {
		p := &r.Proofs[i]
		if p.Credential == to.Credential {
			own = p
		} else if slices.Contains(p.Secrets, to.Secret) {
			next.keep(*p)
			next.RotatedFrom = union(next.RotatedFrom, append(slices.Clone(p.RotatedFrom), p.Credential))
			rotated = true
		}
	}
	if !rotated || len(next.RotatedFrom) > MaxRotations {
		return false
	}
	switch {
	case own == nil:
	case len(own.RotatedFrom) == 0:
		next = *own // a registry confirmed it: it keeps its own times and counts from every Secret
	default:
		next.keep(*own)
		next.Secrets, next.LastUsed = own.Secrets, own.LastUsed
		next.RotatedFrom = union(own.RotatedFrom, next.RotatedFrom)
	}
	r.release(to.Secret, to.Credential)
	r.Proofs = slices.DeleteFunc(r.Proofs, func(p Proof) bool { return p.Credential == to.Credential })
	// A credential that stays with other Secrets leaves no room. In a full record, Rotate does not evict another proof for
	// one that no registry has confirmed.
	if len(r.Proofs) >= MaxProofs {
		return false
	}
	next.note(to.Secret)
	next.LastUsed = later(next.LastUsed, to.At)
	r.Proofs = append(r.Proofs, next)
	r.LastUsed = later(r.LastUsed, to.At)
	return true
}

func union(a, b []credential.ID) []credential.ID {
	all := slices.Clone(a)
	for _, id := range b {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

func (p *Proof) keep(of Proof) {
	p.FirstProved, p.LastProved = later(p.FirstProved, of.FirstProved), later(p.LastProved, of.LastProved)
	p.Denied = later(p.Denied, of.Denied)
}
