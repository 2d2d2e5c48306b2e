package records

import (
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/pkg/credential"
)

// A Revocation selects proofs to revoke. All fields that are set have to match; the zero value selects nothing.
type Revocation struct {
	// ImageID and Repository select records.
	ImageID    string
	Repository string
	// Credential selects the proofs of a credential, and Secret those that a Secret is noted with, by each of its fields
	// that is set. Both also select the proofs of a Secret that held a selected credential before, if no registry has
	// confirmed the Secret's content since.
	Credential credential.ID
	Secret     SecretRef
}

// Empty reports whether r selects nothing.
func (r Revocation) Empty() bool { return r == Revocation{} }

// Whole reports whether r selects whole records: then all their proofs are revoked, and an open record is closed.
// Otherwise r selects single proofs, and an open record stays open.
func (r Revocation) Whole() bool { return r.Credential == "" && r.Secret == SecretRef{} }

// Covers reports whether r selects a pair.
func (r Revocation) Covers(p Pair) bool {
	return !r.Empty() && (r.ImageID == "" || r.ImageID == p.ImageID) &&
		(r.Repository == "" || r.Repository == p.Repository)
}

// Selects reports whether r selects a credential that is from these Secrets. It does not check the pair.
func (r Revocation) Selects(id credential.ID, from []SecretRef) bool {
	if r.Credential != "" && r.Credential != id {
		return false
	}
	return r.Secret == SecretRef{} || slices.ContainsFunc(from, func(s SecretRef) bool {
		return (r.Secret.UID == "" || r.Secret.UID == s.UID) &&
			(r.Secret.Namespace == "" || r.Secret.Namespace == s.Namespace) &&
			(r.Secret.Name == "" || r.Secret.Name == s.Name)
	})
}

// SelectsAny reports whether r selects a credential, or one of those that its Secret held before.
func (r Revocation) SelectsAny(id credential.ID, before []credential.ID, from []SecretRef) bool {
	return r.Selects(id, from) || slices.ContainsFunc(before, func(b credential.ID) bool { return r.Selects(b, from) })
}

// A RevokedProof is a proof that was revoked, or would be.
type RevokedProof struct {
	Pair  Pair
	Proof Proof
}

// Revoked is the result of a revocation, ordered by image ID and repository.
type Revoked struct {
	Proofs []RevokedProof
	Closed []Pair // records that were open
	Marked []Mark // those of the images of a whole revocation, under any repository; they stay
}

// Revoke revokes the selected proofs, in one transaction, and returns them. A record stays even without proofs, so that
// its image is never marked preloaded. Records that are selected as a whole or lose a proof get the time. So do those
// of the pairs in used, whose grants depend on what is revoked although no proof shows it any more; such a pair without
// record and mark gets a record without proofs. A dry run changes nothing.
func (s *Store) Revoke(r Revocation, at time.Time, used []Pair, dryRun bool) (Revoked, error) {
	var changed []Record
	look := func(t *facts) (found Revoked) {
		found, changed = t.revocable(r)
		return found
	}
	return correct(s, "revoke", crashpoint.Revoke, dryRun, look, func(t *tx, _ Revoked) {
		for _, rec := range t.withUsed(changed, used, at) {
			rec.Revoked = later(rec.Revoked, at)
			t.putRecord(rec)
		}
		t.noteRevoked(at)
	})
}

// LastRevoked returns when Revoke last wrote something or marks were forgotten; the zero time is never.
func (s *Store) LastRevoked() (time.Time, error) {
	return read(s, "read the time of the last revocation", func(t *facts) time.Time { return t.meta.revoked })
}

func (t *tx) noteRevoked(at time.Time) { t.putMeta(metaRevoked, later(t.meta.revoked, at)) }

func (t *tx) withUsed(recs []Record, used []Pair, at time.Time) []Record {
	for _, p := range used {
		if slices.ContainsFunc(recs, func(r Record) bool { return r.Pair == p }) {
			continue
		}
		switch e := t.entry(p); {
		case e != nil && e.record != nil:
			recs = append(recs, e.record.clone())
		case e == nil || e.mark == nil:
			recs = append(recs, Record{Pair: p, Created: at})
		}
	}
	return recs
}

func (t *facts) revocable(r Revocation) (found Revoked, changed []Record) {
	for p, known := range t.records() {
		if !r.Covers(p) {
			continue
		}
		rec := known.clone()
		var gone []RevokedProof
		taken := map[credential.ID]bool{}
		for _, x := range rec.Proofs {
			taken[x.Credential] = r.SelectsAny(x.Credential, x.RotatedFrom, x.Secrets)
		}
		rec.Proofs = slices.DeleteFunc(rec.Proofs, func(proof Proof) bool {
			held := func(id credential.ID) bool { return taken[id] }
			selected := taken[proof.Credential] || slices.ContainsFunc(proof.RotatedFrom, held)
			if selected {
				gone = append(gone, RevokedProof{Pair: p, Proof: proof})
			}
			return selected
		})
		found.Proofs = append(found.Proofs, gone...)
		if r.Whole() && rec.Open {
			found.Closed = append(found.Closed, p)
			rec.close()
		}
		if r.Whole() || len(gone) > 0 {
			changed = append(changed, rec)
		}
	}
	if !r.Whole() {
		return found, changed
	}
	images := map[string]bool{}
	for _, rec := range changed {
		images[rec.Pair.ImageID] = r.ImageID == "" || r.Repository == "" // with both, only one pair is meant
	}
	found.Marked = t.selectedMarks(func(p Pair) bool { return images[p.ImageID] || r.Covers(p) })
	return found, changed
}
