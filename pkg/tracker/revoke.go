package tracker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/records"
)

// A Revocation says what is to be proved no longer.
type Revocation struct {
	records.Revocation
	// DryRun takes nothing back and tells what would be revoked.
	DryRun bool
}

// Revoked is what was revoked, or would be.
type Revoked struct {
	records.Revoked
	// Grants are those that ended, by pod and pair.
	Grants []Grant
}

// Revoke takes proofs back, and ends at once the grants that rest on them: on disk, then in memory, then it
// answers. What is revoked is no longer proved, no more: the credential may prove itself again at the registry.
// By repository or image ID open records are closed as well; marks stay, and Revoked names them.
//
// Grants end as follows. By repository or image ID alone, all of the pairs that are selected. Else those that rest on
// a credential, or on one from a Secret, that is selected. What a grant rests on that was restored at the start is
// not known, so it ends with any proof of its pair that is revoked, and if no record tells who proved access to
// its pair when its container was created; where the container did not show the name of its image, with every revocation that
// may select the image. Nor is a grant restored later from a container that was created before: see [Tracker.Restore]. And a pull
// that began before proves nothing of what is revoked, whenever it ends.
//
// After an error no grant has ended, and the proofs are on disk as they were; only if the disk failed while
// it was written the revocation may be there nevertheless. Revoke again.
func (t *Tracker) Revoke(ctx context.Context, r Revocation) (Revoked, error) {
	if r.Empty() {
		return Revoked{}, ErrNothingSelected
	}
	if err := ctx.Err(); err != nil {
		return Revoked{}, fmt.Errorf("revoke: %w", err)
	}
	// What is known of Secrets has to be on disk, where the proofs are selected by it.
	if err := t.Flush(); err != nil {
		return Revoked{}, fmt.Errorf("revoke: %w", err)
	}
	unknown, err := t.unrecorded(r.Revocation)
	if err != nil {
		return Revoked{}, err
	}
	var gone records.Revoked
	at := t.met(time.Now())
	if ahead := time.Until(at); ahead > time.Minute {
		t.log.Info("Revocation dated with a time that the clock showed before it was set back: containers that are created until then prove access again at a restart",
			"time", at, "ahead", ahead)
	}
	if r.DryRun {
		gone, err = t.store.Revocable(r.Revocation)
	} else {
		gone, err = t.store.Revoke(r.Revocation, at, func(gone records.Revoked) []records.Pair {
			return t.overtake(reachOf(r, gone, unknown))
		})
	}
	if err != nil {
		return Revoked{}, unwritten(err)
	}
	all := Revoked{Revoked: gone, Grants: t.endGrants(reachOf(r, gone, unknown))}
	if !r.DryRun {
		t.log.Info("Revoked", "credentialID", r.Credential, "imageID", r.ImageID, "repository", r.Repository, "secret", r.Secret,
			"proofs", len(all.Proofs), "closed", len(all.Closed), "grants", len(all.Grants))
	}
	return all, nil
}

// Revocations returns how often something has been taken back in this process: by [Tracker.Revoke] or [Tracker.ForgetMarks]. Of
// two equal numbers, every grant that was given before the first is as good at the second.
func (t *Tracker) Revocations() uint64 { return t.revocations.Load() }

// unrecorded returns the pairs of restored grants of which no record tells who proved access when the grant's container was
// created.
func (t *Tracker) unrecorded(r records.Revocation) (map[records.Pair]bool, error) {
	created := map[records.Pair]time.Time{} // of the oldest container
	t.mu.Lock()
	for _, of := range t.grants {
		for p, g := range of {
			if g.reason != policy.Granted || !r.Covers(p) {
				continue
			}
			if oldest, ok := created[p]; !ok || g.created.Before(oldest) {
				created[p] = g.created
			}
		}
	}
	t.mu.Unlock()
	none := map[records.Pair]bool{}
	for p, oldest := range created {
		f, err := t.store.Lookup(p)
		if err != nil && !errors.Is(err, records.ErrUnreadable) {
			return nil, unwritten(err)
		}
		none[p] = err != nil || !proves(f.Record) || f.Record.Created.After(oldest)
	}
	return none, nil
}

// A reach is how far a revocation goes: what it takes from those who rest on it.
type reach struct {
	by      Revocation
	gone    []records.RevokedProof
	touched map[records.Pair]bool // pairs of gone
	unknown map[records.Pair]bool // see unrecorded
}

func reachOf(by Revocation, gone records.Revoked, unknown map[records.Pair]bool) reach {
	r := reach{by: by, gone: gone.Proofs, touched: map[records.Pair]bool{}, unknown: unknown}
	for _, p := range gone.Proofs {
		r.touched[p.Pair] = true
	}
	return r
}

// rests reports whether a grant rests on what is revoked.
func (r reach) rests(p records.Pair, g grant) bool {
	switch {
	case g.unnamed:
		// Neither the repository nor the credential is known that it rests on, and the record of it may be gone.
		return r.by.ImageID == "" || r.by.ImageID == p.ImageID
	case !r.by.Covers(p):
		return false
	case r.by.Whole():
		return true
	case g.reason == policy.Granted:
		return r.touched[p] || r.unknown[p]
	case g.credential == "":
		return false
	}
	return r.by.SelectsAny(g.credential, g.before, g.secrets) || slices.ContainsFunc(r.gone, func(x records.RevokedProof) bool {
		return x.Pair == p && x.Proof.Credential == g.credential
	})
}

// overtake is called when a revocation is about to reach the disk, inside its transaction. It tells it to the pulls
// that are under way, so that none which writes its record later proves what is revoked, and returns the pairs whose
// grants are going to end.
func (t *Tracker) overtake(r reach) (pairs []records.Pair) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.revocations.Add(1) // a grant by a judgement that is under way would not be among them
	for _, p := range t.running {
		p.revoked = append(p.revoked, r)
	}
	for _, of := range t.grants {
		for p, g := range of {
			// The store notes the time for grants without a name; see Restore.
			if !g.unnamed && r.rests(p, g) && !slices.Contains(pairs, p) {
				pairs = append(pairs, p)
			}
		}
	}
	return pairs
}

// endGrants ends the grants that rest on what is gone from disk, and what is to be noted of its uses; in a dry run
// it only tells which.
func (t *Tracker) endGrants(r reach) []Grant { return t.endAll(r.by.DryRun, r.touched, r.rests) }

// endAll ends the grants that rest on what is gone from disk, and forgets the uses of pairs that are to be noted yet; in a
// dry run it only tells which. What is judged or pulled at the same time leaves no grant on what it saw before.
func (t *Tracker) endAll(dryRun bool, unused map[records.Pair]bool, rests func(p records.Pair, g grant) bool) (ended []Grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !dryRun {
		t.revocations.Add(1)
		for p := range t.uses {
			if unused[p] {
				delete(t.uses, p)
			}
		}
	}
	for uid, of := range t.grants {
		for p, g := range of {
			if !rests(p, g) {
				continue
			}
			ended = append(ended, g.tell(uid, p))
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
