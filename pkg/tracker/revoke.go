package tracker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/policy"
)

// A Revocation selects proofs to revoke.
type Revocation struct {
	records.Revocation
	// DryRun revokes nothing and returns what would be revoked.
	DryRun bool
}

// Revoked lists what was revoked, or would be.
type Revoked struct {
	records.Revoked
	Grants []Grant // that ended, by pod and pair
}

// Revoke revokes proofs and ends the grants that depend on them. A selection by repository or image ID closes open
// records as well, and ends all grants of the selected pairs; marks stay. A revocation that matches no proof, no open
// record and no grant changes nothing: its selection may be a mistake.
//
// Any other selection ends the grants that depend on a selected credential, or on one of a selected Secret. The proof
// of a restored grant is unknown: such a grant ends with any revoked proof of its pair, and if no record shows which
// credential had proved access when its container was created; one without a name ends with every revocation that may
// select its image. No grant is restored from a container that is older than the revocation, and a pull that began
// before it does not prove again what is revoked.
//
// After an error no grant has ended. If the disk failed during the write, the revocation may be on disk. Revoke again.
func (t *Tracker) Revoke(ctx context.Context, r Revocation) (Revoked, error) {
	if r.Empty() {
		return Revoked{}, ErrNothingSelected
	}
	if err := ctx.Err(); err != nil {
		return Revoked{}, fmt.Errorf("revoke: %w", err)
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	// The store selects proofs by the Secrets that are noted with them.
	if err := t.flush(); err != nil {
		return Revoked{}, unwritten(err)
	}
	unknown, err := t.unrecorded(r.Revocation)
	if err != nil {
		return Revoked{}, err
	}
	at := t.noteTime(time.Now())
	if ahead := time.Until(at); ahead > time.Minute {
		t.log.Info("Revocation has a time in the future, because the clock was set back; "+
			"containers that are created until then prove access again after a restart",
			"time", at, "ahead", ahead)
	}
	gone, err := t.store.Revoke(r.Revocation, at, nil, true)
	if err != nil {
		return Revoked{}, unwritten(err)
	}
	s := scopeOf(r, gone, unknown)
	pairs, matches := t.noteRevocation(s)
	if !matches {
		return Revoked{Revoked: gone}, nil
	}
	if gone, err = t.store.Revoke(r.Revocation, at, pairs, r.DryRun); err != nil {
		return Revoked{}, unwritten(err)
	}
	all := Revoked{Revoked: gone, Grants: t.endGrants(r.DryRun, s.touched, s.includes)}
	if !r.DryRun {
		t.log.Info("Revoked", "credentialID", r.Credential, "imageID", r.ImageID, "repository", r.Repository,
			"secret", r.Secret, "proofs", len(all.Proofs), "closed", len(all.Closed), "grants", len(all.Grants))
	}
	return all, nil
}

// Revocations returns a counter. If it has not changed, no grant was revoked.
func (t *Tracker) Revocations() uint64 { return t.revocations.Load() }

// unrecorded returns the pairs of restored grants for which no record shows which credential had proved access then.
func (t *Tracker) unrecorded(r records.Revocation) (map[records.Pair]bool, error) {
	created := map[records.Pair]time.Time{} // creation time of the oldest container
	t.mu.Lock()
	for _, of := range t.grants {
		for p, g := range of {
			if g.Reason != policy.Granted || !r.Covers(p) {
				continue
			}
			if oldest, ok := created[p]; !ok || g.Created.Before(oldest) {
				created[p] = g.Created
			}
		}
	}
	t.mu.Unlock()
	none := map[records.Pair]bool{}
	for p, oldest := range created {
		f, err := t.store.Lookup(p)
		if err != nil {
			return nil, unwritten(err)
		}
		none[p] = !f.ProveAccess() || f.Record.OlderGrants || f.Record.Created.After(oldest)
	}
	return none, nil
}

type scope struct {
	by      Revocation
	closes  bool
	gone    []records.RevokedProof
	touched map[records.Pair]bool // pairs of gone
	unknown map[records.Pair]bool // see unrecorded
}

func scopeOf(by Revocation, gone records.Revoked, unknown map[records.Pair]bool) scope {
	s := scope{by: by, closes: len(gone.Closed) > 0, gone: gone.Proofs, touched: map[records.Pair]bool{}, unknown: unknown}
	for _, p := range gone.Proofs {
		s.touched[p.Pair] = true
	}
	return s
}

func (r scope) includes(p records.Pair, g grant) bool {
	switch {
	case g.Unnamed:
		// The grant's repository and credential are unknown, and the record may be deleted.
		return r.by.ImageID == "" || r.by.ImageID == p.ImageID
	case !r.by.Covers(p):
		return false
	case r.by.Whole():
		return true
	case g.Reason == policy.Granted:
		return r.touched[p] || r.unknown[p]
	case g.Credential == "":
		return false
	}
	return r.by.SelectsAny(g.Credential, g.Before, g.Secrets) ||
		slices.ContainsFunc(r.gone, func(x records.RevokedProof) bool {
			return x.Pair == p && (x.Proof.Credential == g.Credential || slices.Contains(g.Before, x.Proof.Credential))
		})
}

// names reports whether the revocation selects a grant by its known facts, and not because its proof is unknown.
func (r scope) names(p records.Pair, g grant) bool {
	return r.by.Covers(p) && (r.by.Whole() || g.Credential != "" && r.by.SelectsAny(g.Credential, g.Before, g.Secrets))
}

// noteRevocation adds the scope to the running pulls, unless it is a dry run. It returns the pairs of the grants that
// will end, and whether the revocation matches anything.
func (t *Tracker) noteRevocation(r scope) (pairs []records.Pair, matches bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !r.by.DryRun {
		for _, p := range t.running {
			p.revoked = append(p.revoked, r)
		}
	}
	matches = len(r.gone) > 0 || r.closes
	for _, of := range t.grants {
		for p, g := range of {
			matches = matches || r.names(p, g)
			// Also for a grant without a name: its container can mount the image of another repository by its name.
			if r.includes(p, g) && !slices.Contains(pairs, p) {
				pairs = append(pairs, p)
			}
		}
	}
	return pairs, matches
}

// endGrants ends the grants that depends selects, and discards the unwritten uses of the pairs in unused. In a dry run
// it only returns the grants.
func (t *Tracker) endGrants(dryRun bool, unused map[records.Pair]bool,
	depends func(p records.Pair, g grant) bool,
) (ended []Grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !dryRun {
		t.revocations.Add(1)
		t.usesMu.Lock()
		maps.DeleteFunc(t.uses, func(p records.Pair, _ records.Use) bool { return unused[p] })
		t.usesMu.Unlock()
	}
	for uid, of := range t.grants {
		for p, g := range of {
			if !depends(p, g) {
				continue
			}
			ended = append(ended, g.public(uid, p))
			if !dryRun {
				delete(of, p)
			}
		}
		if len(of) == 0 {
			delete(t.grants, uid)
		}
	}
	slices.SortFunc(ended, Grant.compare)
	return ended
}
