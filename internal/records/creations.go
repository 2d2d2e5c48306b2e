package records

import (
	"bytes"
	"encoding/binary"
	"errors"
	"iter"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A Creation states that the runtime was asked, or was about to be asked, to create a container from an image that may be a
// checkpoint. To restore a checkpoint, a runtime may pull images and give names to images. While the creation is in the store, a
// scan marks only the pairs in Listed.
type Creation struct {
	ID uint64 `json:"id"`
	// Image identifies the image and its names, "" if the runtime did not have the image.
	Image string `json:"image,omitempty"`
	// Listed contains the pairs without record and mark that were on the node before.
	Listed []Pair    `json:"listed,omitempty"`
	Begun  time.Time `json:"begun"`
	// Ended is when the answer of the runtime was lost. It is zero while the creation is in progress, and if the process that
	// began it died.
	Ended time.Time `json:"ended,omitzero"`
}

// BeginCreation writes a creation and returns its ID. The runtime may be asked when BeginCreation returns nil. From Listed it
// keeps the pairs without record and mark, and none unless unchanged reports that no image was removed since they were listed: the
// record of a removed image is deleted. unchanged is called inside the transaction and must not call the store. It ignores c.ID.
func (s *Store) BeginCreation(c Creation, unchanged func() bool) (id uint64, err error) {
	return write(s, "write creation of a container", "", "", func(tx *bolt.Tx) (uint64, error) {
		b, err := tx.CreateBucketIfNotExists([]byte(bucketCreations))
		if err != nil {
			return 0, err
		}
		for c.ID = 0; c.ID == 0 || b.Get(creationKey(c.ID)) != nil; { // no checksum covers the sequence
			if c.ID, err = b.NextSequence(); err != nil {
				return 0, err
			}
		}
		if unchanged == nil || !unchanged() {
			c.Listed = nil
		}
		c.Listed = unknown(tx, c.Listed)
		return c.ID, put(tx, bucketCreations, creationKey(c.ID), c)
	})
}

// unknown returns the pairs that have neither record nor mark, readable or not.
func unknown(tx *bolt.Tx, pairs []Pair) []Pair {
	return slices.DeleteFunc(slices.Clone(pairs), func(p Pair) bool { return known(tx, p) })
}

// EndCreation notes that the answer of the runtime was lost. The creation stays until it is settled. It replaces earlier ones of
// the same image, so that there are not more creations than images.
func (s *Store) EndCreation(id uint64, at time.Time) error {
	return s.update("end creation of a container", "", "", func(tx *bolt.Tx) error {
		if tx.Bucket([]byte(bucketCreations)) == nil {
			return nil
		}
		key := creationKey(id)
		var c Creation
		ok, err := get(tx, bucketCreations, key, &c)
		if !ok {
			return nil
		}
		if err != nil { // its key still shows that there was a creation
			c = Creation{ID: id, Begun: at}
		}
		c.Ended = at
		var earlier [][]byte
		for k, e := range eachCreation(tx) {
			if e.ID != id && e.Image != "" && e.Image == c.Image && !e.Ended.IsZero() {
				earlier = append(earlier, bytes.Clone(k))
				c.Listed = slices.DeleteFunc(c.Listed, func(p Pair) bool { return !slices.Contains(e.Listed, p) })
			}
		}
		return errors.Join(deleteKeys(tx, bucketCreations, earlier), put(tx, bucketCreations, key, c))
	})
}

// DropCreation deletes a creation that brought no image, because the image turned out not to be a checkpoint. It also deletes the
// creations of the same image whose answer was lost: image is their Image, "" for none.
func (s *Store) DropCreation(id uint64, image string) error {
	return s.update("drop creation of a container", "", "", func(tx *bolt.Tx) error {
		var drop [][]byte
		for key, c := range eachCreation(tx) {
			if c.ID == id || image != "" && c.Image == image && !c.Ended.IsZero() {
				drop = append(drop, bytes.Clone(key))
			}
		}
		return deleteKeys(tx, bucketCreations, drop)
	})
}

// SettleCreations deletes creations, in one transaction. A pair may have come with them if it is present, has neither record nor
// mark, and is missing in Listed of at least one of them. Each such pair gets a record without proofs, and is returned. Without
// creations every present pair without record and mark gets one.
func (s *Store) SettleCreations(ids []uint64, present []Pair, now time.Time) ([]Pair, error) {
	return write(s, "settle creations of containers", "", "", func(tx *bolt.Tx) (closed []Pair, err error) {
		var settled []Creation
		var keys [][]byte
		for key, c := range eachCreation(tx) {
			if slices.Contains(ids, c.ID) {
				settled, keys = append(settled, c), append(keys, bytes.Clone(key))
			}
		}
		for _, p := range unknown(tx, present) {
			if len(settled) > 0 && listedByAll(settled, p) {
				continue
			}
			if err := s.putRecord(tx, Record{Pair: p, Created: now}); err != nil {
				return nil, err
			}
			closed = append(closed, p)
		}
		return closed, deleteKeys(tx, bucketCreations, keys)
	})
}

// Creations returns every creation. For one that cannot be read it returns only the ID.
func (s *Store) Creations() ([]Creation, error) {
	return read(s, "read creations of containers", func(tx *bolt.Tx) ([]Creation, error) { return creations(tx), nil })
}

func creations(tx *bolt.Tx) (all []Creation) {
	for _, c := range eachCreation(tx) {
		all = append(all, c)
	}
	return all
}

// listedByAll reports whether a pair was present before each of the creations.
func listedByAll(all []Creation, p Pair) bool {
	return !slices.ContainsFunc(all, func(c Creation) bool { return !slices.Contains(c.Listed, p) })
}

// arriving returns [Facts.Arriving].
func arriving(tx *bolt.Tx, p Pair, f Facts) bool {
	return f.Record == nil && !f.Marked && !listedByAll(creations(tx), p)
}

func eachCreation(tx *bolt.Tx) iter.Seq2[[]byte, Creation] {
	// Listed is empty in one that cannot be read, so that no pair is marked.
	return eachOr(tx, bucketCreations, nil, func(k []byte) Creation { return Creation{ID: creationID(k)} })
}

func creationKey(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }

func creationID(key []byte) uint64 {
	if len(key) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(key)
}
