package records

import (
	"bytes"
	"cmp"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// A store is listed page by page, each in a transaction of its own: a slow reader blocks neither
// writers nor the reuse of pages in the file. A change between two pages may be seen or not.

// An ImageFacts is everything that the store knows about one image ID.
type ImageFacts struct {
	ImageID string
	Records []Record // by repository
	Marks   []Mark   // by repository
	// Unreadable are the repositories with a value that cannot be read. They need proof whatever the policy.
	Unreadable []string
}

// Images returns what is known about the image IDs from one on, by image ID: at most limit of them.
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

// A Keyed is a value with the key that it is stored under, from which a walk goes on after it.
type Keyed[T any] struct {
	Key   string
	Value T
}

// MarksAfter returns the marks after a key, by image ID and repository: at most limit of them. "" is before all. One
// that cannot be read is returned with its pair alone.
func (s *Store) MarksAfter(key string, limit int) ([]Keyed[Mark], error) {
	return page(s, bucketMarks, key, limit, func(k []byte) Mark { return Mark{Pair: pairOf(k)} })
}

// IntentsAfter returns the intents after a key, by repository and ID: at most limit of them. A repository is before all
// of its own. One that cannot be read is returned with its repository and ID alone.
func (s *Store) IntentsAfter(key string, limit int) ([]Keyed[Intent], error) {
	return page(s, bucketIntents, key, limit, intentOf)
}

func page[T any](s *Store, bucket, after string, limit int, byKey func(k []byte) T) ([]Keyed[T], error) {
	return read(s, "list bucket "+bucket, func(tx *bolt.Tx) (all []Keyed[T], err error) {
		c := tx.Bucket([]byte(bucket)).Cursor()
		k, v := c.Seek([]byte(after))
		if string(k) == after {
			k, v = c.Next()
		}
		for ; k != nil && len(all) < limit; k, v = c.Next() {
			at := Keyed[T]{Key: string(k)}
			if decode(bucket, k, v, &at.Value) != nil {
				at.Value = byKey(k)
			}
			all = append(all, at)
		}
		return all, nil
	})
}

// Details is Facts with what is behind its counts, read in one snapshot.
type Details struct {
	Facts
	Mark       *Mark    // nil if there is none
	OfIntents  []Intent // of the pair's repository
	RivalNames []string // those behind Rivals
	MarkedAs   []string // those behind MarkedElsewhere
}

// Describe returns everything that is known about a pair. The error is that of Lookup; of what cannot be read the
// Details hold what its key tells.
func (s *Store) Describe(p Pair) (d Details, err error) {
	var unreadable error
	err = s.file.View(func(tx *bolt.Tx) error {
		d.Facts, unreadable = lookup(tx, p)
		var m Mark
		if ok, err := get(tx, bucketMarks, p.key(), &m); ok && err == nil {
			d.Mark = &m
		}
		err := intentsOf(tx, p.Repository, func(_ []byte, in Intent) error {
			d.OfIntents = append(d.OfIntents, in)
			return nil
		})
		if err != nil {
			return err
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

// After returns the first image ID, as Images takes it, that can follow one.
func After(imageID string) string { return imageID + "\x01" }
