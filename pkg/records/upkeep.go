package records

import (
	"fmt"
	"maps"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/internal/crashpoint"
)

// A Use says when a pair, and which of its credentials, were last used.
type Use struct {
	At          time.Time
	Credentials map[credential.ID]time.Time
	// Secrets are those by which one of Credentials was used, if they are to be noted with it; they are not, if
	// that was before the credential was first proved.
	Secrets map[credential.ID][]SecretRef
}

// Merge returns a use that says what both say. It shares nothing with them that changes.
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

// Touch writes last-used times. Pairs and credentials without a record are passed over.
func (s *Store) Touch(uses map[Pair]Use) error {
	err := s.update("", "", func(tx *bolt.Tx) error {
		for p, u := range uses {
			var r Record
			if ok, err := get(tx, bucketRecords, p.key(), &r); !ok || err != nil {
				continue // nothing to touch, or nothing that a last-used time could mend
			}
			r.LastUsed = later(r.LastUsed, u.At)
			for i := range r.Proofs {
				proof := &r.Proofs[i]
				proof.LastUsed = later(proof.LastUsed, u.Credentials[proof.Credential])
				if u.Credentials[proof.Credential].Before(proof.FirstProved) {
					continue // a use from before the credential was revoked and proved anew
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
	if err != nil {
		return fmt.Errorf("write last-used times: %w", err)
	}
	return nil
}

// Clamp lets every proof that lies in the future count from now: the clock was set back, and nobody knows better. It
// returns how many records have one, and writes nothing if there are none.
func (s *Store) Clamp(now time.Time) (n int, err error) {
	if err := s.view(func(tx *bolt.Tx) error { n = len(ahead(tx, now)); return nil }); err != nil || n == 0 {
		return 0, err
	}
	err = s.update("", "", func(tx *bolt.Tx) error {
		found := ahead(tx, now)
		n = len(found)
		for _, r := range found {
			for i := range r.Proofs {
				p := &r.Proofs[i]
				p.FirstProved, p.LastProved = earlier(p.FirstProved, now), earlier(p.LastProved, now)
			}
			if err := put(tx, bucketRecords, r.Pair.key(), r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("set proofs back with the clock: %w", err)
	}
	return n, nil
}

// ahead returns the records that can be read and have a proof from the future.
func ahead(tx *bolt.Tx, now time.Time) (found []Record) {
	c := tx.Bucket([]byte(bucketRecords)).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		var r Record
		if decode(bucketRecords, k, v, &r) == nil && slices.ContainsFunc(r.Proofs, func(p Proof) bool { return p.LastProved.After(now) }) {
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

// Pruned is what Prune deleted.
type Pruned struct{ Records, Marks []Pair }

// Prune deletes the records and marks of images that are not present, but for those that were
// written since the counter of [Store.Written] was before: the list of images may be older than they
// are. An empty list is not believed: ErrNoImages.
func (s *Store) Prune(present map[string]struct{}, before uint64) (Pruned, error) {
	if len(present) == 0 {
		return Pruned{}, ErrNoImages
	}
	gone, err := s.gone(present, before)
	if err != nil || len(gone.Records)+len(gone.Marks) == 0 {
		return Pruned{}, err // nothing to write, the usual case
	}
	err = s.update(crashpoint.PruneBefore, crashpoint.PruneAfter, func(tx *bolt.Tx) error {
		gone, err = s.goneIn(tx, present, before)
		if err != nil {
			return err
		}
		for bucket, pairs := range map[string][]Pair{bucketRecords: gone.Records, bucketMarks: gone.Marks} {
			for _, p := range pairs {
				if err := tx.Bucket([]byte(bucket)).Delete(p.key()); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return Pruned{}, fmt.Errorf("prune: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range append(gone.Records, gone.Marks...) {
		if s.written[p] <= before {
			delete(s.written, p)
		}
	}
	return gone, nil
}

func (s *Store) gone(present map[string]struct{}, before uint64) (gone Pruned, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		gone, err = s.goneIn(tx, present, before)
		return err
	})
	return gone, err
}

func (s *Store) goneIn(tx *bolt.Tx, present map[string]struct{}, before uint64) (gone Pruned, err error) {
	collect := func(into *[]Pair) func(k, _ []byte) error {
		return func(k, _ []byte) error {
			p := pairOf(k)
			_, there := present[p.ImageID]
			s.mu.Lock()
			young := s.written[p] > before
			s.mu.Unlock()
			if !there && !young {
				*into = append(*into, p)
			}
			return nil
		}
	}
	err = tx.Bucket([]byte(bucketRecords)).ForEach(collect(&gone.Records))
	if err == nil {
		err = tx.Bucket([]byte(bucketMarks)).ForEach(collect(&gone.Marks))
	}
	return gone, err
}

// maxBatch bounds the intents that one transaction ends or settles, so that no other write waits long for it.
const maxBatch = 250

// A Settlement ends the intents of pulls that can no longer bring an image.
type Settlement struct {
	Intents []Intent
	// Present is every pair of a full list of the runtime's images.
	Present []Pair
	// Brought reports whether the pull of an intent may have brought the image of a pair of its repository; nil: it may.
	// It must not call the store.
	Brought func(Intent, Pair) bool
	Now     time.Time
}

// Settle writes a record with nothing proved for each pair that one of the pulls may have brought and that has neither
// record nor mark, and deletes the intents. It does so in transactions of a bounded size, each with the
// intents that it settles; after an error the first ones may have been settled. An unknown intent is no error.
func (s *Store) Settle(of Settlement) error {
	present := map[string][]Pair{}
	for _, p := range of.Present {
		present[p.Repository] = append(present[p.Repository], p)
	}
	for batch := range slices.Chunk(of.Intents, maxBatch) {
		err := s.update(crashpoint.SettleBefore, crashpoint.SettleAfter, func(tx *bolt.Tx) error {
			for _, in := range batch {
				if err := s.settle(tx, in, present[in.Repository], of); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("settle pull intents: %w", err)
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
		if err := put(tx, bucketRecords, p.key(), Record{Pair: p, Created: of.Now}); err != nil {
			return err
		}
		s.wrote(p)
	}
	return intents.Delete(in.key())
}

// known reports whether a pair has a record or a mark, readable or not.
func known(tx *bolt.Tx, p Pair) bool {
	k := p.key()
	return tx.Bucket([]byte(bucketRecords)).Get(k) != nil || tx.Bucket([]byte(bucketMarks)).Get(k) != nil
}
