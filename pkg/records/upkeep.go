package records

import (
	"fmt"
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

// Settle ends intents for good, in one transaction: whatever is present of their repositories with
// neither record nor mark gets a record with nothing proved.
func (s *Store) Settle(intents []uint64, present []Pair, now time.Time) error {
	err := s.update(crashpoint.SettleBefore, crashpoint.SettleAfter, func(tx *bolt.Tx) error {
		repositories := map[string]struct{}{}
		for _, id := range intents {
			if k := findIntent(tx, id); k != nil {
				repositories[intentOf(k).Repository] = struct{}{}
			}
		}
		for _, p := range present {
			if _, ok := repositories[p.Repository]; !ok {
				continue
			}
			f, err := lookup(tx, p)
			if err != nil || f.Record != nil || f.Marked {
				continue
			}
			if err := put(tx, bucketRecords, p.key(), Record{Pair: p, Created: now}); err != nil {
				return err
			}
			s.wrote(p)
		}
		for _, id := range intents {
			if err := deleteIntent(tx, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("settle pull intents: %w", err)
	}
	return nil
}
