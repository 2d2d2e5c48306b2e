package records

import (
	"encoding/binary"
	"slices"
	"time"
)

// A Creation states that the runtime was asked, or was about to be asked, to create a container from an image that may
// be a checkpoint. A restore may pull and name images, so that a scan marks only the pairs in Listed meanwhile.
type Creation struct {
	ID uint64 `json:"id"`
	// Image identifies the image and its names, "" if the runtime did not have the image.
	Image string `json:"image,omitempty"`
	// Listed contains the pairs without record and mark that were on the node before.
	Listed []Pair    `json:"listed,omitempty"`
	Begun  time.Time `json:"begun"`
	// Ended is when the answer of the runtime was lost; zero while it is in progress, or if its process died.
	Ended time.Time `json:"ended,omitzero"`
}

// BeginCreation writes a creation, with the pairs in Listed that have no record and mark, and returns its ID.
func (s *Store) BeginCreation(c Creation) (id uint64, err error) {
	return write(s, "write creation of a container", "", func(t *tx) uint64 {
		c.ID, c.Listed = t.lastCreation+1, t.unknown(c.Listed)
		t.put(bucketCreations, creationKey(c.ID), c)
		return c.ID
	})
}

func (t *facts) unknown(pairs []Pair) []Pair {
	return slices.DeleteFunc(slices.Clone(pairs), t.known)
}

// EndCreation notes that the answer of the runtime was lost. The creation stays until it is settled, and replaces
// earlier ones of the same image.
func (s *Store) EndCreation(id uint64, at time.Time) error {
	return s.update("end creation of a container", "", func(t *tx) {
		n := slices.IndexFunc(t.creations, func(c Creation) bool { return c.ID == id })
		if n < 0 {
			return
		}
		c := t.creations[n]
		c.Ended, c.Listed = at, slices.Clone(c.Listed)
		for _, e := range t.creations {
			if e.ID != id && e.Image != "" && e.Image == c.Image && !e.Ended.IsZero() {
				t.deleteCreation(e.ID)
				c.Listed = slices.DeleteFunc(c.Listed, func(p Pair) bool { return !slices.Contains(e.Listed, p) })
			}
		}
		t.put(bucketCreations, creationKey(c.ID), c)
	})
}

// DropCreation deletes a creation that brought no image, and those of the same image whose answer was lost: image is
// their Image, "" for none.
func (s *Store) DropCreation(id uint64, image string) error {
	return s.update("drop creation of a container", "", func(t *tx) {
		for _, c := range t.creations {
			if c.ID == id || image != "" && c.Image == image && !c.Ended.IsZero() {
				t.deleteCreation(c.ID)
			}
		}
	})
}

// SettleCreations deletes creations, in one transaction. Each present pair without record and mark that is missing in
// Listed of one of them, or every one if there are no creations, gets a record without proofs, and is returned.
func (s *Store) SettleCreations(ids []uint64, present []Pair, now time.Time) ([]Pair, error) {
	return write(s, "settle creations of containers", "", func(t *tx) (closed []Pair) {
		var settled []Creation
		for _, c := range t.creations {
			if slices.Contains(ids, c.ID) {
				settled = append(settled, c)
				t.deleteCreation(c.ID)
			}
		}
		for _, p := range t.unknown(present) {
			if len(settled) > 0 && listedByAll(settled, p) {
				continue
			}
			t.putRecord(Record{Pair: p, Created: now})
			closed = append(closed, p)
		}
		return closed
	})
}

// Creations returns every creation, ordered by ID.
func (s *Store) Creations() ([]Creation, error) {
	return read(s, "read creations of containers", func(t *facts) []Creation { return t.creations })
}

func listedByAll(all []Creation, p Pair) bool {
	return !slices.ContainsFunc(all, func(c Creation) bool { return !slices.Contains(c.Listed, p) })
}

func creationKey(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }

func creationID(key []byte) uint64 {
	if len(key) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(key)
}
