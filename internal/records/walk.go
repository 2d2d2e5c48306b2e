package records

import (
	"bytes"
	"cmp"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// A store is listed page by page, each in its own transaction: a slow reader blocks neither writers nor the reuse of pages in the
// file. A list may or may not contain a change that happens between two pages.

// An ImageFacts contains everything that the store has about one image ID.
type ImageFacts struct {
	ImageID string
	Records []Record // by repository
	Marks   []Mark   // by repository
	// Unreadable lists the repositories with a value that cannot be read. They need proof whatever the policy.
	Unreadable []string
}

// Images returns the facts about the image IDs beginning with from, ordered by image ID: at most limit of them.
func (s *Store) Images(from string, limit int) ([]ImageFacts, error) {
	return read(s, "list images of the store", func(tx *bolt.Tx) (all []ImageFacts, err error) {
		recs, marks := tx.Bucket([]byte(bucketRecords)).Cursor(), tx.Bucket([]byte(bucketMarks)).Cursor()
		rk, rv := recs.Seek([]byte(from))
		mk, mv := marks.Seek([]byte(from))
		for len(all) < limit && (rk != nil || mk != nil) {
			f := ImageFacts{ImageID: pairOf(first(rk, mk)).ImageID}
			for ; rk != nil && pairOf(rk).ImageID == f.ImageID; rk, rv = recs.Next() {
				f.Records = appendTo(&f, bucketRecords, f.Records, rk, rv)
			}
			for ; mk != nil && pairOf(mk).ImageID == f.ImageID; mk, mv = marks.Next() {
				f.Marks = appendTo(&f, bucketMarks, f.Marks, mk, mv)
			}
			all = append(all, f)
		}
		return all, nil
	})
}

// first returns the key that comes first; one that is nil comes after all others.
func first(a, b []byte) []byte {
	if a == nil || b != nil && bytes.Compare(b, a) < 0 {
		return b
	}
	return a
}

func appendTo[T any](f *ImageFacts, bucket string, to []T, k, v []byte) []T {
	var value T
	if decode(bucket, k, v, &value) != nil {
		f.Unreadable = append(f.Unreadable, pairOf(k).Repository)
		return to
	}
	return append(to, value)
}

// A Keyed is a value with its key. A walk continues after that key.
type Keyed[T any] struct {
	Key   string
	Value T
}

// MarksAfter returns the marks after a key, ordered by image ID and repository: at most limit of them. "" is before all keys. For
// a mark that cannot be read it returns only the pair.
func (s *Store) MarksAfter(key string, limit int) ([]Keyed[Mark], error) {
	return page(s, bucketMarks, key, limit, markOf)
}

// IntentsAfter returns the intents after a key, ordered by repository and ID: at most limit of them. The key of a repository is
// before all its intents. For an intent that cannot be read it returns only the repository and ID.
func (s *Store) IntentsAfter(key string, limit int) ([]Keyed[Intent], error) {
	return page(s, bucketIntents, key, limit, intentOf)
}

// EndorsementsAfter returns the endorsements after a key, ordered by image ID, repository and requirement: at most limit of them.
// For an endorsement that cannot be read it returns only the pair and the requirement.
func (s *Store) EndorsementsAfter(key string, limit int) ([]Keyed[Endorsement], error) {
	return page(s, bucketEndorsements, key, limit, endorsementOf)
}

func page[T any](s *Store, bucket, after string, limit int, byKey func(k []byte) T) ([]Keyed[T], error) {
	return read(s, "list bucket "+bucket, func(tx *bolt.Tx) (all []Keyed[T], err error) {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return nil, nil
		}
		c := b.Cursor()
		k, v := c.Seek([]byte(after))
		if string(k) == after {
			k, v = c.Next()
		}
		for ; k != nil && len(all) < limit; k, v = c.Next() {
			all = append(all, Keyed[T]{Key: string(k), Value: decodeOr(bucket, k, v, byKey)})
		}
		return all, nil
	})
}

// Details is Facts with all proofs and with the values that are counted there, read in one snapshot.
type Details struct {
	Facts
	Mark       *Mark    // nil if there is none
	OfIntents  []Intent // of the pair's repository
	RivalNames []string // the repositories behind Rivals
	MarkedAs   []string // the repositories behind MarkedElsewhere
}

// Describe returns all facts about a pair. The error is that of Lookup; for a value that cannot be read, the Details have what
// its key contains.
func (s *Store) Describe(p Pair) (d Details, err error) {
	var unreadable error
	err = s.file.View(func(tx *bolt.Tx) error {
		d.Facts, unreadable = lookup(tx, p)
		d.Arriving = arriving(tx, p, d.Facts)
		var m Mark
		if ok, err := get(tx, bucketMarks, p.key(), &m); ok && err == nil {
			d.Mark = &m
		}
		for _, in := range intentsOf(tx, p.Repository) {
			d.OfIntents = append(d.OfIntents, in)
		}
		d.RivalNames = repositoriesOf(rivalRecords(tx.Bucket([]byte(bucketRecords)), p.key()))
		d.MarkedAs = repositoriesOf(rivalMarks(tx.Bucket([]byte(bucketMarks)), p.key()))
		return nil
	})
	if err = cmp.Or(err, unreadable); err != nil {
		return d, fmt.Errorf("look up %s of %s: %w", p.ImageID, p.Repository, err)
	}
	return d, nil
}

// After returns the first image ID that can follow imageID, for use with Images.
func After(imageID string) string { return imageID + "\x01" }
