package records

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/pkg/credential"
)

// A Use says when a pair, and which of its credentials, were last used.
type Use struct {
	At          time.Time
	Credentials map[credential.ID]time.Time
	// Secrets are those by which one of Credentials was used, if they are to be noted with it. They are not noted if the use was
	// before the credential was first proved.
	Secrets map[credential.ID][]SecretRef
}

// Merge returns the union of two uses. It is a deep copy.
func (u Use) Merge(with Use) Use {
	u.At = later(u.At, with.At)
	u.Credentials, u.Secrets = maps.Clone(u.Credentials), maps.Clone(u.Secrets)
	for id, at := range with.Credentials {
		if u.Credentials == nil {
			u.Credentials = map[credential.ID]time.Time{}
		}
		u.Credentials[id] = later(u.Credentials[id], at)
	}
	for id, refs := range with.Secrets {
		if u.Secrets == nil {
			u.Secrets = map[credential.ID][]SecretRef{}
		}
		all := slices.Clone(u.Secrets[id])
		for _, ref := range refs {
			if len(all) < MaxSecrets && !slices.Contains(all, ref) {
				all = append(all, ref)
			}
		}
		u.Secrets[id] = all
	}
	return u
}

// Touch writes last-used times. Pairs and credentials without a record are skipped.
func (s *Store) Touch(uses map[Pair]Use) error {
	return s.update("write last-used times", "", "", func(tx *bolt.Tx) error {
		for p, u := range uses {
			var r Record
			if ok, err := get(tx, bucketRecords, p.key(), &r); !ok || err != nil {
				continue // no record, or one that cannot be read
			}
			r.LastUsed = later(r.LastUsed, u.At)
			for i := range r.Proofs {
				proof := &r.Proofs[i]
				proof.LastUsed = later(proof.LastUsed, u.Credentials[proof.Credential])
				if u.Credentials[proof.Credential].Before(proof.FirstProved) || len(proof.RotatedFrom) > 0 {
					continue // the use is older than the proof, or than the last change of the Secret
				}
				for _, ref := range u.Secrets[proof.Credential] {
					proof.note(ref)
				}
			}
			if err := put(tx, bucketRecords, p.key(), r); err != nil {
				return err
			}
		}
		return nil
	})
}

// Clamp sets the times of every proof and endorsement that are in the future to now, because the clock was set back. It returns the
// number of records and endorsements with such times, and writes nothing if there are none.
func (s *Store) Clamp(now time.Time) (int, error) {
	const what = "set proofs back with the clock"
	count := func(tx *bolt.Tx) (int, error) { return len(ahead(tx, now)) + len(endorsedAhead(tx, now)), nil }
	if n, err := read(s, what, count); err != nil || n == 0 {
		return 0, err
	}
	return write(s, what, "", "", func(tx *bolt.Tx) (int, error) {
		found, endorsed := ahead(tx, now), endorsedAhead(tx, now)
		for _, e := range endorsed {
			e.At = now
			if err := put(tx, bucketEndorsements, e.key(), e); err != nil {
				return 0, err
			}
		}
		for _, r := range found {
			for i := range r.Proofs {
				p := &r.Proofs[i]
				p.FirstProved, p.LastProved = earlier(p.FirstProved, now), earlier(p.LastProved, now)
			}
			if err := put(tx, bucketRecords, r.Pair.key(), r); err != nil {
				return 0, err
			}
		}
		return len(found) + len(endorsed), nil
	})
}

// endorsedAhead returns the readable endorsements with a time of verification in the future.
func endorsedAhead(tx *bolt.Tx, now time.Time) (found []Endorsement) {
	for k, v := range each(tx, bucketEndorsements, nil) {
		var e Endorsement
		if mayBeAhead(v, fieldAt, now) && decode(bucketEndorsements, k, v, &e) == nil && e.At.After(now) {
			found = append(found, e)
		}
	}
	return found
}

// ahead returns the readable records that have a proof with a time in the future.
func ahead(tx *bolt.Tx, now time.Time) (found []Record) {
	for k, v := range each(tx, bucketRecords, nil) {
		var r Record
		if mayBeAhead(v, fieldLastProved, now) && decode(bucketRecords, k, v, &r) == nil && slices.ContainsFunc(r.Proofs, func(p Proof) bool { return p.LastProved.After(now) }) {
			found = append(found, r)
		}
	}
	return found
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Pruned is the result of Prune.
type Pruned struct {
	// Records and Marks are the pairs whose record or mark Prune deleted.
	Records, Marks []Pair
	// Closed contains the records that have lost their proofs because their image is gone.
	Closed []Pair
	// Unlisted contains the pairs of records whose image no list has contained. Their repositories have an intent now.
	Unlisted []Pair
	// Endorsements contains the pairs whose endorsements Prune deleted, ordered.
	Endorsements []Pair
}

// A Pruning lists the images of the runtime.
type Pruning struct {
	// Images contains the IDs of all images of the runtime, or at least of those that have records, marks or endorsements.
	Images map[string]struct{}
	// Pairs contains the pairs of these images. Prune deletes a mark and the endorsements whose pair is not in it. If Pairs is nil,
	// they stay as long as the image, under whatever name.
	Pairs map[Pair]struct{}
	// Before is what [Store.Written] returned before the runtime was asked. Everything written since then stays, because the
	// runtime's answer may be older.
	Before uint64
	// Removed is the ID of an image that was removed through pullgate; "" means none.
	Removed string
	Now     time.Time
}

// Prune deletes the marks and endorsements of pairs that are not present. It deletes the records of images that are not present if every pod could
// use them or if they were removed through pullgate. The records of other images that are not present lose their proofs and stay:
// a runtime may omit an image from its lists and have it again after its next restart, and then the image must not look
// untracked.
//
// A record whose image no list has contained may have a wrong image ID, and the image that the pull really brought may be on the
// node. So Prune writes an intent of its repository, as for a pull that has ended without a known result.
//
// Prune refuses a Pruning without images with ErrNoImages.
func (s *Store) Prune(of Pruning) (Pruned, error) {
	if len(of.Images) == 0 {
		return Pruned{}, ErrNoImages
	}
	changes, err := read(s, "prune", func(tx *bolt.Tx) (pruneChanges, error) { return s.toPrune(tx, of), nil })
	if err != nil || changes.empty() {
		return Pruned{}, err // no changes, the usual case
	}
	changes, err = write(s, "prune", crashpoint.PruneBefore, crashpoint.PruneAfter, func(tx *bolt.Tx) (pruneChanges, error) {
		changes := s.toPrune(tx, of)
		return changes, s.prune(tx, changes, of)
	})
	if err != nil {
		return Pruned{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Concat(changes.Records, changes.Marks, changes.Closed, changes.Endorsements) {
		if s.written[p] <= of.Before {
			delete(s.written, p)
		}
	}
	return changes.Pruned, nil
}

// pruneChanges are the changes of Prune, the records that it writes, and the keys of the endorsements that it deletes.
type pruneChanges struct {
	Pruned
	write    []Record
	endorsed [][]byte
}

func (c pruneChanges) empty() bool {
	return len(c.Records)+len(c.Marks)+len(c.write)+len(c.endorsed) == 0
}

func (s *Store) prune(tx *bolt.Tx, c pruneChanges, of Pruning) error {
	for bucket, pairs := range map[string][]Pair{bucketRecords: c.Records, bucketMarks: c.Marks} {
		for _, p := range pairs {
			if err := tx.Bucket([]byte(bucket)).Delete(p.key()); err != nil {
				return err
			}
		}
	}
	for _, r := range c.write {
		if err := put(tx, bucketRecords, r.Pair.key(), r); err != nil {
			return err
		}
	}
	for _, p := range c.Unlisted {
		in, err := begin(tx, "", p.Repository, of.Now)
		if err != nil {
			return err
		}
		in.Ended = of.Now
		if err := unresolved(tx, in); err != nil {
			return err
		}
	}
	return errors.Join(deleteEndorsements(tx, c.endorsed), boundGone(tx))
}

// boundGone deletes the records of gone images beyond MaxGone.
func boundGone(tx *bolt.Tx) error {
	var gone []Record
	for k, v := range each(tx, bucketRecords, nil) {
		var r Record
		if saysAtEnd(v, fieldGone) && decode(bucketRecords, k, v, &r) == nil && !r.Gone.IsZero() {
			gone = append(gone, r)
		}
	}
	if len(gone) <= MaxGone {
		return nil
	}
	slices.SortFunc(gone, func(a, b Record) int { return a.Gone.Compare(b.Gone) })
	for _, r := range gone[:len(gone)-MaxGone] {
		if err := tx.Bucket([]byte(bucketRecords)).Delete(r.Pair.key()); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) toPrune(tx *bolt.Tx, of Pruning) (c pruneChanges) {
	for k, v := range each(tx, bucketRecords, nil) {
		p := pairOf(k)
		_, present := of.Images[p.ImageID]
		if present && !saysAtEnd(v, fieldUnlisted) && !saysAtEnd(v, fieldGone) {
			continue // the usual case
		}
		var r Record
		if decode(bucketRecords, k, v, &r) != nil {
			continue // it may be the record of another image
		}
		switch {
		case present:
			r.Unlisted, r.Gone = false, time.Time{}
			c.write = append(c.write, r)
		case s.writtenSince(p, of.Before) || !r.Gone.IsZero():
		case r.Open || p.ImageID == of.Removed:
			c.Records = append(c.Records, p)
		default:
			c.Closed = append(c.Closed, p)
			c.write = append(c.write, Record{Pair: p, Created: of.Now, Revoked: r.Revoked, Gone: of.Now})
			if r.Unlisted {
				c.Unlisted = append(c.Unlisted, p)
			}
		}
	}
	for k := range each(tx, bucketEndorsements, nil) {
		p := endorsementOf(k).Pair
		if !s.absent(p, of) {
			continue
		}
		c.endorsed = append(c.endorsed, bytes.Clone(k))
		if n := len(c.Endorsements); n == 0 || c.Endorsements[n-1] != p {
			c.Endorsements = append(c.Endorsements, p)
		}
	}
	for k := range each(tx, bucketMarks, nil) {
		if p := pairOf(k); s.absent(p, of) {
			c.Marks = append(c.Marks, p)
		}
	}
	return c
}

// absent reports whether the runtime has neither the pair, nor might it have got the pair since it was asked.
func (s *Store) absent(p Pair, of Pruning) bool {
	_, present := of.Images[p.ImageID]
	if present && of.Pairs != nil {
		_, present = of.Pairs[p]
	}
	return !present && !s.writtenSince(p, of.Before)
}

func (s *Store) writtenSince(p Pair, before uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written[p] > before
}

// maxBatch bounds the intents that one transaction ends or settles, so that other writes do not wait long for it.
const maxBatch = 250

// A Settlement deletes the intents of pulls that can no longer bring an image.
type Settlement struct {
	Intents []Intent
	// Present contains every pair of a full list of the runtime's images.
	Present []Pair
	// Brought reports whether the pull of an intent may have brought the image of a pair of its repository; nil: it may.
	// It must not call the store.
	Brought func(Intent, Pair) bool
	Now     time.Time
}

// Settle writes a record without proofs for each pair that one of the pulls may have brought and that has neither record nor
// mark, and deletes the intents, in transactions of a bounded size. After an error, some of them may have been settled. An
// unknown intent is not an error.
func (s *Store) Settle(of Settlement) error {
	present := map[string][]Pair{}
	for _, p := range of.Present {
		present[p.Repository] = append(present[p.Repository], p)
	}
	return s.inBatches(of.Intents, "settle pull intents", crashpoint.SettleBefore, crashpoint.SettleAfter, func(tx *bolt.Tx, in Intent) error {
		return s.settle(tx, in, present[in.Repository], of)
	})
}

// inBatches runs f for each of the intents, in transactions of a bounded size.
func (s *Store) inBatches(intents []Intent, what, before, after string, f func(*bolt.Tx, Intent) error) error {
	for batch := range slices.Chunk(intents, maxBatch) {
		err := s.update(what, before, after, func(tx *bolt.Tx) error {
			for _, in := range batch {
				if err := f(tx, in); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) settle(tx *bolt.Tx, in Intent, present []Pair, of Settlement) error {
	intents := tx.Bucket([]byte(bucketIntents))
	if intents.Get(in.key()) == nil {
		return nil
	}
	for _, p := range present {
		if of.Brought != nil && !of.Brought(in, p) || known(tx, p) {
			continue
		}
		if err := s.putRecord(tx, Record{Pair: p, Created: of.Now}); err != nil {
			return err
		}
	}
	return intents.Delete(in.key())
}

// known reports whether a pair has a record or a mark, readable or not.
func known(tx *bolt.Tx, p Pair) bool {
	k := p.key()
	return tx.Bucket([]byte(bucketRecords)).Get(k) != nil || tx.Bucket([]byte(bucketMarks)).Get(k) != nil
}
