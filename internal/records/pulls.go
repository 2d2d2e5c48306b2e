package records

import (
	"errors"
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/pkg/credential"
)

// MaxUnresolved bounds the intents of one repository whose pulls have ended without a known result. Pulls of the same
// name have one intent. One intent without a name replaces more than MaxUnresolved: it stands for any image.
const MaxUnresolved = 64

// BeginListed writes the intent of a pull and returns it; then the caller may call the runtime. In the same transaction
// it deletes the marks of the repository whose image is not in present, the images that the runtime lists under it, and
// returns their pairs: the pull could bring such an image back. If present is nil and the repository has marks,
// BeginListed writes nothing and returns ErrMarked with their pairs.
func (s *Store) BeginListed(
	name, repository string, now time.Time, present map[string]struct{},
) (in Intent, unmarked []Pair, err error) {
	in, err = write(s, "write pull intent for "+repository, crashpoint.Begin, func(t *tx) Intent {
		unmarked = slices.DeleteFunc(t.marksOf(repository), func(p Pair) bool {
			_, ok := present[p.ImageID]
			return ok
		})
		if len(unmarked) > 0 && present == nil {
			t.err = ErrMarked
		}
		for _, p := range unmarked {
			t.deleteMark(p)
		}
		return t.begin(name, repository, now)
	})
	return in, unmarked, err
}

func (t *tx) begin(name, repository string, now time.Time) Intent {
	in := Intent{ID: t.lastIntent + 1, Name: name, Repository: repository, Begun: now}
	t.put(bucketIntents, in.key(), in)
	return in
}

// A Result is what a successful pull proved.
type Result struct {
	Pair       Pair
	Open       bool // to every pod from now on; otherwise Credential proved access
	ByNode     bool // Credential is one of the node, which opens the record
	Credential credential.ID
	Secrets    []SecretRef
	Namespace  string // of the pod that the pull was for; "" if it is not known
	At         time.Time
	Created    time.Time // of a new record; not before At
	// OlderGrants means that pods hold grants for the pair by other credentials.
	OlderGrants bool
	// Revoked means that the proof has been revoked since the pull began: the record does not get it.
	Revoked bool
}

// Prove writes a record and deletes the intent, in one transaction. An open record stays open. A Secret is removed from
// every other credential, as by Rotate.
func (s *Store) Prove(in Intent, r Result) error {
	if !r.Open && r.Credential == "" {
		return errors.New("records: neither open nor a credential, nothing is proved")
	}
	return s.update("write pull record for "+r.Pair.Repository, crashpoint.Prove, func(t *tx) {
		rec := Record{Pair: r.Pair, Created: later(r.At, r.Created), Unlisted: true}
		if known := t.record(r.Pair); known != nil {
			rec = known.clone()
		}
		if !rec.Gone.IsZero() {
			rec.Gone, rec.Unlisted = time.Time{}, true
		}
		if !rec.Open && len(rec.Proofs) == 0 && r.OlderGrants {
			rec.OlderGrants = true
		}
		if !r.Revoked {
			rec.prove(r)
		}
		t.putRecord(rec)
		t.deleteIntent(in)
	})
}

func (r *Record) prove(by Result) {
	r.LastUsed = later(r.LastUsed, by.At)
	if by.Open {
		if !r.Open {
			r.Open, r.Opened = true, by.At
		}
		how := &r.Anonymous
		if by.ByNode {
			how = &r.ByNode
		}
		if how.IsZero() {
			*how = by.At
		}
		return
	}
	for _, ref := range by.Secrets {
		r.release(ref, by.Credential)
	}
	for i := range r.Proofs {
		p := &r.Proofs[i]
		if p.Credential == by.Credential {
			// Not the later time: if the clock was set back, the old time is in the future.
			p.LastProved, p.LastUsed, p.Denied = by.At, later(p.LastUsed, by.At), time.Time{}
			p.RotatedFrom = nil
			if by.At.Before(p.FirstProved) {
				p.FirstProved = by.At
			}
			for _, ref := range by.Secrets {
				p.note(ref)
			}
			return
		}
	}
	p := Proof{Credential: by.Credential, Namespace: by.Namespace, FirstProved: by.At, LastProved: by.At, LastUsed: by.At}
	for _, ref := range by.Secrets {
		p.note(ref)
	}
	if len(r.Proofs) >= MaxProofs {
		at := r.evicted(p.namespace())
		r.Proofs, r.OlderGrants = slices.Delete(r.Proofs, at, at+1), true
	}
	r.Proofs = append(r.Proofs, p)
}

// evicted returns the index of the proof to evict for a new proof of a namespace: one of the namespace that would have
// the most, so that no namespace can evict the proofs of a namespace with fewer.
func (r *Record) evicted(added string) (index int) {
	held := map[string]int{added: 1}
	for i := range r.Proofs {
		held[r.Proofs[i].namespace()]++
	}
	most := added
	for namespace, n := range held {
		if n > held[most] || n == held[most] && most != added && namespace < most {
			most = namespace
		}
	}
	index = -1
	for i := range r.Proofs {
		p := &r.Proofs[i]
		if p.namespace() == most && (index < 0 || p.goesBefore(&r.Proofs[index])) {
			index = i
		}
	}
	return index
}

func (p *Proof) goesBefore(other *Proof) bool {
	if (len(p.Secrets) == 0) != (len(other.Secrets) == 0) {
		return len(p.Secrets) == 0
	}
	return p.LastUsed.Before(other.LastUsed)
}

// release removes a Secret from every credential except one, and a proof that has lost its last Secret.
func (r *Record) release(ref SecretRef, but credential.ID) {
	r.Proofs = slices.DeleteFunc(r.Proofs, func(p Proof) bool {
		return p.Credential != but && len(p.Secrets) == 1 && p.Secrets[0] == ref
	})
	for i := range r.Proofs {
		if p := &r.Proofs[i]; p.Credential != but {
			p.Secrets = slices.DeleteFunc(p.Secrets, func(s SecretRef) bool { return s == ref })
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Written returns a counter of the writes of records, marks and endorsements in this process.
func (s *Store) Written() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.facts.writes
}

// Drop deletes the intent of a pull that certainly brought no image. An unknown intent is not an error.
func (s *Store) Drop(in Intent) error {
	return s.update("drop pull intent", crashpoint.Drop, func(t *tx) { t.deleteIntent(in) })
}

// A Denial states that a registry refused a credential.
type Denial struct {
	Pair       Pair // the image that the name referred to
	Credential credential.ID
	At         time.Time
}

// Deny deletes the intent of a pull that a registry refused, and notes the refusal in the proof of the credential.
func (s *Store) Deny(in Intent, d Denial) error {
	return s.update("note that "+d.Pair.Repository+" was denied", crashpoint.Drop, func(t *tx) {
		t.deny(d)
		t.deleteIntent(in)
	})
}

func (t *tx) deny(d Denial) {
	known := t.record(d.Pair)
	if known == nil {
		return
	}
	i := slices.IndexFunc(known.Proofs, func(p Proof) bool { return p.Credential == d.Credential })
	if i < 0 {
		return
	}
	rec := known.clone()
	// If the clock was set back, the time of the proof is in the future, although it precedes the denial.
	rec.Proofs[i].Denied = later(d.At, rec.Proofs[i].LastProved)
	t.putRecord(rec)
}

// End is EndAll for one intent.
func (s *Store) End(in Intent, at time.Time) error { return s.EndAll([]Intent{in}, at) }

// EndAll notes that pulls have ended without a known result, in transactions of a bounded size. Their intents stay, and
// replace earlier ones as described at MaxUnresolved. After an error, some of them may have been ended.
func (s *Store) EndAll(intents []Intent, at time.Time) error {
	return s.inBatches(intents, "end pull intents", crashpoint.End, func(t *tx, in Intent) { t.end(in, at) })
}

func (t *tx) end(in Intent, at time.Time) {
	for _, known := range t.intents[in.Repository] {
		if known.ID == in.ID {
			known.Ended = at
			t.unresolved(known)
			return
		}
	}
}

// unresolved writes the intent of a pull that has ended without a known result, and deletes those that it replaces.
func (t *tx) unresolved(in Intent) {
	var all, same []Intent // the other ended intents; those with the same name
	for _, other := range t.intents[in.Repository] {
		if other.ID == in.ID || other.Ended.IsZero() {
			continue
		}
		all = append(all, other)
		if other.Name == in.Name {
			same = append(same, other)
		}
	}
	if len(all)-len(same) >= MaxUnresolved {
		in.Name, same = "", all
	}
	for _, replaced := range same {
		t.deleteIntent(replaced)
	}
	t.put(bucketIntents, in.key(), in)
}
