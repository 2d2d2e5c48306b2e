package records

import (
	"slices"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/pkg/credential"
)

// A Use says when a pair, and which of its credentials, were last used.
type Use struct {
	At          time.Time
	Credentials map[credential.ID]time.Time
	// Secrets are those to note with one of Credentials, unless it was first proved after the use.
	Secrets map[credential.ID][]SecretRef
}

// Touch writes last-used times. Pairs and credentials without a record are skipped.
func (s *Store) Touch(uses map[Pair]Use) error {
	return s.update("write last-used times", "", func(t *tx) {
		for p, u := range uses {
			known := t.record(p)
			if known == nil {
				continue
			}
			r := known.clone()
			r.LastUsed = later(r.LastUsed, u.At)
			for i := range r.Proofs {
				proof := &r.Proofs[i]
				proof.LastUsed = later(proof.LastUsed, u.Credentials[proof.Credential])
				if u.Credentials[proof.Credential].Before(proof.FirstProved) || len(proof.RotatedFrom) > 0 {
					continue
				}
				for _, ref := range u.Secrets[proof.Credential] {
					proof.note(ref)
				}
			}
			t.rewriteRecord(r)
		}
	})
}

// Clamp sets proofs and endorsements from the future to now, because the clock was set back, and returns how many
// records and endorsements had such times.
func (s *Store) Clamp(now time.Time) (int, error) {
	return write(s, "set proofs back with the clock", "", func(t *tx) int { return t.clamp(now) })
}

func (t *tx) clamp(now time.Time) (n int) {
	for _, e := range t.all() {
		if e.latest.After(now) {
			t.rewriteRecord(e.record.Clamped(now))
			n++
		}
		for _, one := range e.endorsements {
			if one.At.After(now) {
				one.At = now
				t.put(bucketEndorsements, one.key(), one)
				n++
			}
		}
	}
	return n
}

// Clamped returns a deep copy with the proofs from the future set to now.
func (r *Record) Clamped(now time.Time) Record {
	next := r.clone()
	for i := range next.Proofs {
		p := &next.Proofs[i]
		p.FirstProved, p.LastProved = earlier(p.FirstProved, now), earlier(p.LastProved, now)
	}
	return next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Pruned is the result of Prune.
type Pruned struct {
	// Records, Marks and Endorsements are the pairs whose record, mark or endorsements Prune deleted.
	Records, Marks, Endorsements []Pair
	Closed                       []Pair // records that have lost their proofs because their image is gone
	Unlisted                     []Pair // those whose image no list has contained; their repositories have an intent now
}

// A Pruning lists the images of the runtime.
type Pruning struct {
	// Images contains the IDs of all images of the runtime, or at least of those that have records, marks or endorsements.
	Images map[string]struct{}
	// Pairs contains the pairs of these images; nil: all pairs.
	Pairs map[Pair]struct{}
	// Before is what [Store.Written] returned before the runtime was asked. What was written since then stays.
	Before  uint64
	Removed string // the ID of an image that was removed through pullgate; "" means none
	Now     time.Time
}

// Prune deletes the marks and endorsements of pairs that are not present, and the records of absent images that every
// pod could use or that were removed through pullgate. Other records of absent images lose their proofs and stay: a
// runtime may omit an image from its lists until its next restart. A record whose image no list has contained may have
// a wrong image ID; Prune writes an intent of its repository, as for a pull with an unknown result. Without images it
// returns ErrNoImages.
func (s *Store) Prune(of Pruning) (Pruned, error) {
	if len(of.Images) == 0 {
		return Pruned{}, ErrNoImages
	}
	return write(s, "prune", crashpoint.Prune, func(t *tx) Pruned { return t.prune(of) })
}

func (t *tx) prune(of Pruning) (done Pruned) {
	for p, e := range t.all() {
		_, present := of.Images[p.ImageID]
		if r := e.record; r != nil {
			switch {
			case present && (r.Unlisted || !r.Gone.IsZero()):
				next := r.clone()
				next.Unlisted, next.Gone = false, time.Time{}
				t.rewriteRecord(next)
			case !present && p.ImageID == of.Removed && e.written > of.Before && r.Gone.IsZero():
				// A pull has brought the image back meanwhile. This record must not look older than that: the other records
				// of the image go.
				next := r.clone()
				next.Created = of.Now
				t.rewriteRecord(next)
			case present || e.written > of.Before || !r.Gone.IsZero():
			case t.open(r) || p.ImageID == of.Removed:
				done.Records = append(done.Records, p)
				t.remove(bucketRecords, p.key())
			default:
				done.Closed = append(done.Closed, p)
				t.rewriteRecord(Record{Pair: p, Created: of.Now, Revoked: r.Revoked, Gone: of.Now})
				if r.Unlisted {
					done.Unlisted = append(done.Unlisted, p)
					in := t.begin("", p.Repository, of.Now)
					in.Ended = of.Now
					t.unresolved(in)
				}
			}
		}
		if present && of.Pairs != nil {
			_, present = of.Pairs[p]
		}
		if present || e.written > of.Before { // the runtime may have got the pair since it was asked
			continue
		}
		if e.mark != nil {
			done.Marks = append(done.Marks, p)
			t.deleteMark(p)
		}
		if len(e.endorsements) > 0 {
			done.Endorsements = append(done.Endorsements, p)
		}
		for _, one := range e.endorsements {
			t.deleteEndorsement(one)
		}
	}
	t.boundGone()
	return done
}

func (t *tx) boundGone() {
	var gone []*Record
	for _, r := range t.records() {
		if !r.Gone.IsZero() {
			gone = append(gone, r)
		}
	}
	if len(gone) <= MaxGone {
		return
	}
	slices.SortFunc(gone, func(a, b *Record) int { return a.Gone.Compare(b.Gone) })
	for _, r := range gone[:len(gone)-MaxGone] {
		t.remove(bucketRecords, r.Pair.key())
	}
}

// maxBatch bounds one transaction, so that other writes do not wait long for it.
const maxBatch = 250

// A Settlement deletes the intents of pulls that can no longer bring an image.
type Settlement struct {
	Intents []Intent
	// Present contains every pair of a full list of the runtime's images.
	Present []Pair
	// Brought is that of [Scan].
	Brought func(Intent, Pair) bool
	Now     time.Time
}

// Settle writes a record without proofs for each pair without record and mark that one of the pulls may have brought,
// and deletes the intents, in transactions of a bounded size.
func (s *Store) Settle(of Settlement) error {
	present := map[string][]Pair{}
	for _, p := range of.Present {
		present[p.Repository] = append(present[p.Repository], p)
	}
	return s.inBatches(of.Intents, "settle pull intents", crashpoint.Settle, func(t *tx, in Intent) {
		t.settle(in, present[in.Repository], of)
	})
}

func (s *Store) inBatches(intents []Intent, what, point string, f func(*tx, Intent)) error {
	for batch := range slices.Chunk(intents, maxBatch) {
		err := s.update(what, point, func(t *tx) {
			for _, in := range batch {
				f(t, in)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) settle(in Intent, present []Pair, of Settlement) {
	if !slices.ContainsFunc(t.intents[in.Repository], func(known Intent) bool { return known.ID == in.ID }) {
		return
	}
	for _, p := range present {
		if (of.Brought == nil || of.Brought(in, p)) && !t.known(p) {
			t.putRecord(Record{Pair: p, Created: of.Now})
		}
	}
	t.deleteIntent(in)
}
