package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/pkg/internal/crashpoint"
)

// A Scan is a full list of the runtime's images, to be marked as preloaded as far as they are due.
type Scan struct {
	Pairs  []Pair
	Origin string
	Now    time.Time
	// First sets the durable flag that the store has been scanned once.
	First bool
	// Still is asked inside the transaction whether the list still stands; if not, nothing is
	// written. It must not call the store.
	Still func() bool
}

// MarkPreloaded marks every pair of the scan that is due: the store is trusted, the pair has neither
// record nor mark, none of the image's repositories in the scan has an intent, and no other repository
// has a record for its image ID. Pairs holds every pair of an image, or none. A
// value that cannot be read counts for what its key says and for what it says itself. It returns the
// pairs that it marked.
func (s *Store) MarkPreloaded(sc Scan) (marked []Pair, err error) {
	err = s.update(crashpoint.MarkBefore, crashpoint.MarkAfter, func(tx *bolt.Tx) error {
		marked = nil
		if tx.Bucket([]byte(bucketMeta)).Get([]byte(metaDistrust)) != nil || !sc.Still() {
			return nil
		}
		images, repositories, err := strayed(tx)
		if err != nil {
			return err
		}
		// A lost pull may have brought the image, whatever other names it has been given since.
		for _, p := range sc.Pairs {
			if repositories[p.Repository] || countIntents(tx, p.Repository) > 0 {
				images[p.ImageID] = true
			}
		}
		for _, p := range sc.Pairs {
			if images[p.ImageID] {
				continue
			}
			f, err := lookup(tx, p)
			if err != nil || f.Record != nil || f.Marked || f.Intents > 0 || f.Rivals {
				continue // what cannot be read is not unknown
			}
			if err := put(tx, bucketMarks, p.key(), Mark{Pair: p, Set: sc.Now, Origin: sc.Origin}); err != nil {
				return err
			}
			s.wrote(p)
			marked = append(marked, p)
		}
		if sc.First {
			return put(tx, bucketMeta, []byte(metaScanned), sc.Now)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("write preloaded marks: %w", err)
	}
	return marked, nil
}

// strayed returns the images and repositories that records and intents name which cannot be read where
// they are: a bit that flips in a key takes the value from its pair, which then looks unknown.
func strayed(tx *bolt.Tx) (images, repositories map[string]bool, err error) {
	images, repositories = map[string]bool{}, map[string]bool{}
	for _, bucket := range []string{bucketRecords, bucketIntents} {
		err = errors.Join(err, tx.Bucket([]byte(bucket)).ForEach(func(k, v []byte) error {
			var named struct {
				Pair       Pair   `json:"pair"`
				Repository string `json:"repository"`
			}
			if sound(bucket, k, v) || len(v) < sumSize {
				return nil
			}
			if json.Unmarshal(v[sumSize:], &named) == nil { // else it says nothing
				images[named.Pair.ImageID] = bucket == bucketRecords
				repositories[named.Repository] = bucket == bucketIntents
			}
			return nil
		}))
	}
	return images, repositories, err
}

// ScannedOnce reports whether a first scan has been made.
func (s *Store) ScannedOnce() (once bool, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		once = tx.Bucket([]byte(bucketMeta)).Get([]byte(metaScanned)) != nil
		return nil
	})
	return once, err
}
