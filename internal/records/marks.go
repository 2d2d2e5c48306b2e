package records

import (
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
)

// A Scan is a full list of the runtime's images. MarkPreloaded marks those pairs that are due.
type Scan struct {
	Pairs  []Pair
	Origin string
	Now    time.Time
	// First sets the durable flag that the store has been scanned once.
	First bool
	// Unchanged reports, inside the transaction, whether the images are still those of the list; if not, nothing is written. It
	// must not call the store.
	Unchanged func() bool
	// Brought reports whether the pull of an intent may have brought the image of a pair of its repository; nil: it may.
	// It must not call the store.
	Brought func(Intent, Pair) bool
	// Agree is called inside the transaction with the pairs that are due. If it returns an error, MarkPreloaded writes nothing
	// and returns that error. It must not call the store; nil agrees.
	Agree func(due []Pair) error
}

// MarkPreloaded marks every pair of the scan that is due, and returns these pairs. A pair is due if all of this is true: the
// store is trusted; the pair has neither record nor mark; no pull with an intent may have brought the image under any of its
// names; the store has no other repository of the image ([Facts.MayBeMarked]); the list of every [Creation] has the pair. Pairs
// contains every pair of an image, or none. If a value of the store cannot be read, MarkPreloaded writes nothing and returns
// ErrUnreadable: the value may be the record of an image that looks untracked.
func (s *Store) MarkPreloaded(sc Scan) ([]Pair, error) {
	return write(s, "write preloaded marks", crashpoint.MarkBefore, crashpoint.MarkAfter, func(tx *bolt.Tx) ([]Pair, error) {
		if distrusted(tx) || !sc.Unchanged() {
			return nil, nil
		}
		pairs, err := due(tx, sc.Pairs, sc.Brought)
		if err != nil {
			return nil, err
		}
		if sc.Agree != nil {
			if err := sc.Agree(pairs); err != nil {
				return nil, err
			}
		}
		err = s.mark(tx, pairs, sc.Origin, sc.Now)
		if err == nil && sc.First {
			err = put(tx, bucketMeta, []byte(metaScanned), sc.Now)
		}
		return pairs, err
	})
}

// Due returns the pairs that MarkPreloaded would mark, with Scan.Brought, if the store is trusted and the list is current.
func (s *Store) Due(pairs []Pair, brought func(Intent, Pair) bool) ([]Pair, error) {
	return read(s, "look for what is preloaded", func(tx *bolt.Tx) ([]Pair, error) { return due(tx, pairs, brought) })
}

func distrusted(tx *bolt.Tx) bool {
	return tx.Bucket([]byte(bucketMeta)).Get([]byte(metaDistrust)) != nil
}

func due(tx *bolt.Tx, pairs []Pair, brought func(Intent, Pair) bool) (found []Pair, err error) {
	if lost := unreadable(tx); len(lost) > 0 {
		return nil, fmt.Errorf("%w: %s: restart pullgated, which removes it and distrusts the store", ErrUnreadable, lost[0])
	}
	listed := map[string]bool{}
	for _, p := range pairs {
		listed[p.ImageID] = true
	}
	images, repositories := map[string]bool{}, strayed(tx, listed)
	// A pull may have brought the image, under whatever other names it has now.
	for _, p := range pairs {
		if repositories[p.Repository] {
			images[p.ImageID] = true
			continue
		}
		for _, in := range intentsOf(tx, p.Repository) {
			if brought == nil || brought(in, p) {
				images[p.ImageID] = true
			}
		}
	}
	creating := creations(tx)
	for _, p := range pairs {
		// Almost every pair is known; its values, readable or not, need not be read.
		if images[p.ImageID] || known(tx, p) || !listedByAll(creating, p) {
			continue
		}
		f, err := lookup(tx, p)
		f.Intents = 0 // of pulls that did not bring the image
		if err == nil && f.MayBeMarked() {
			found = append(found, p)
		}
	}
	return found, nil
}

func (s *Store) mark(tx *bolt.Tx, pairs []Pair, origin string, now time.Time) error {
	for _, p := range pairs {
		s.wrote(p)
		s.index(p)
		if err := put(tx, bucketMarks, p.key(), Mark{Pair: p, Set: now, Origin: origin}); err != nil {
			return err
		}
	}
	return nil
}

// indexMarks fills Store.marked.
func (s *Store) indexMarks() error {
	return s.file.View(func(tx *bolt.Tx) error {
		for k := range each(tx, bucketMarks, nil) {
			s.index(pairOf(k))
		}
		return nil
	})
}

func (s *Store) index(p Pair) {
	of := s.marked[p.Repository]
	if of == nil {
		of = map[string]struct{}{}
		s.marked[p.Repository] = of
	}
	of[p.ImageID] = struct{}{}
}

// marksOf returns the pairs of a repository that have a mark. It is called in a write transaction, before the transaction deletes
// any mark.
func (s *Store) marksOf(tx *bolt.Tx, repository string) (pairs []Pair) {
	for id := range s.marked[repository] {
		p := Pair{ImageID: id, Repository: repository}
		if tx.Bucket([]byte(bucketMarks)).Get(p.key()) != nil {
			pairs = append(pairs, p)
		} else {
			delete(s.marked[repository], id)
		}
	}
	if len(s.marked[repository]) == 0 {
		delete(s.marked, repository)
	}
	return pairs
}

// Acceptable is what AcceptMarks marks, or would mark.
type Acceptable struct {
	// Pairs have no mark yet.
	Pairs []Pair
	// Proved contains the records of Pairs that are not open and that a credential proved access to. For a record that cannot be
	// read it has only the pair.
	Proved []Record
}

// AcceptMarks marks the pairs that have no mark yet, whatever else is in the store about them, also in a distrusted store, and
// returns them. Records and intents stay as they are. agree is called inside the transaction with the pairs to be marked; if it
// returns an error, AcceptMarks marks nothing and returns that error. agree must not call the store; nil agrees.
func (s *Store) AcceptMarks(pairs []Pair, origin string, now time.Time, agree func(Acceptable) error) (Acceptable, error) {
	return write(s, "accept preloaded marks", crashpoint.AcceptBefore, crashpoint.AcceptAfter, func(tx *bolt.Tx) (Acceptable, error) {
		found := acceptable(tx, pairs)
		if agree != nil {
			if err := agree(found); err != nil {
				return found, err
			}
		}
		return found, s.mark(tx, found.Pairs, origin, now)
	})
}

// Acceptable returns what AcceptMarks would mark.
func (s *Store) Acceptable(pairs []Pair) (Acceptable, error) {
	return read(s, "look for pairs without a mark", func(tx *bolt.Tx) (Acceptable, error) { return acceptable(tx, pairs), nil })
}

// acceptable treats an unreadable mark as missing, because it opens nothing.
func acceptable(tx *bolt.Tx, pairs []Pair) (found Acceptable) {
	for _, p := range pairs {
		var m Mark
		if ok, err := get(tx, bucketMarks, p.key(), &m); ok && err == nil {
			continue
		}
		found.Pairs = append(found.Pairs, p)
		var r Record
		switch ok, err := get(tx, bucketRecords, p.key(), &r); {
		case err != nil:
			found.Proved = append(found.Proved, Record{Pair: p})
		case ok && !r.Open && len(r.Proofs) > 0:
			found.Proved = append(found.Proved, r)
		}
	}
	return found
}

// Forgotten is what ForgetMarks removed, or would remove.
type Forgotten struct {
	Marks []Mark
	// Open contains the pairs of the images of Marks that every pod can still use, because their record is open.
	Open []Pair
}

// ForgetMarks removes marks, in one transaction, and returns them. A pair without a record gets a record without proofs: it needs
// proof, and no scan marks it again. The record gets the time, as in a revocation. An empty selection removes nothing.
//
// A selection with only a repository selects the images that have a mark in it, and ForgetMarks removes all marks of these
// images: the same content must not stay usable under another name, which a tenant may have given it. With an image ID and a
// repository, ForgetMarks removes only the mark of that pair.
func (s *Store) ForgetMarks(of Selection, now time.Time) (Forgotten, error) {
	return write(s, "forget preloaded marks", crashpoint.ForgetBefore, crashpoint.ForgetAfter, func(tx *bolt.Tx) (Forgotten, error) {
		gone := forgettable(tx, of)
		if len(gone.Marks) == 0 {
			return gone, nil
		}
		for _, m := range gone.Marks {
			k := m.Pair.key()
			rec := Record{Pair: m.Pair, Created: now}
			if _, err := get(tx, bucketRecords, k, &rec); err == nil { // otherwise it already needs proof
				rec.Revoked = later(rec.Revoked, now)
				if err := put(tx, bucketRecords, k, rec); err != nil {
					return gone, err
				}
			}
			if err := tx.Bucket([]byte(bucketMarks)).Delete(k); err != nil {
				return gone, err
			}
			s.wrote(m.Pair)
		}
		return gone, noteRevoked(tx, now)
	})
}

// Forgettable returns what ForgetMarks would remove.
func (s *Store) Forgettable(of Selection) (Forgotten, error) {
	return read(s, "look for preloaded marks", func(tx *bolt.Tx) (Forgotten, error) { return forgettable(tx, of), nil })
}

func forgettable(tx *bolt.Tx, of Selection) (found Forgotten) {
	found.Marks = selectedMarks(tx, of.Covers)
	images := map[string]bool{}
	for _, m := range found.Marks {
		images[m.Pair.ImageID] = true
	}
	if of.ImageID == "" {
		found.Marks = selectedMarks(tx, func(p Pair) bool { return images[p.ImageID] })
	}
	for k, v := range each(tx, bucketRecords, nil) {
		var r Record
		if images[pairOf(k).ImageID] && decode(bucketRecords, k, v, &r) == nil && r.Open {
			found.Open = append(found.Open, pairOf(k))
		}
	}
	return found
}

// A Selection selects pairs. All fields that are set have to match; the zero value selects nothing.
type Selection struct {
	ImageID    string
	Repository string
	// All selects every pair, and excludes the others.
	All bool
}

// Empty reports whether the selection selects nothing.
func (s Selection) Empty() bool { return s == Selection{} }

// Covers reports whether the selection selects a pair.
func (s Selection) Covers(p Pair) bool {
	return !s.Empty() && (s.ImageID == "" || s.ImageID == p.ImageID) && (s.Repository == "" || s.Repository == p.Repository)
}

// selectedMarks returns the marks of the selected pairs. For a mark that cannot be read it returns only the pair.
func selectedMarks(tx *bolt.Tx, selected func(Pair) bool) (found []Mark) {
	for k, v := range each(tx, bucketMarks, nil) {
		if selected(pairOf(k)) {
			found = append(found, decodeOr(bucketMarks, k, v, markOf))
		}
	}
	return found
}

// markOf returns the fields that the key of a mark contains.
func markOf(key []byte) Mark { return Mark{Pair: pairOf(key)} }

// strayed returns the repositories that need proof because they have a record whose image no list has contained, including this
// one: the image of such a pull may be listed under another ID.
func strayed(tx *bolt.Tx, listed map[string]bool) map[string]bool {
	repositories := map[string]bool{}
	for k, v := range each(tx, bucketRecords, nil) {
		if p := pairOf(k); saysAtEnd(v, fieldUnlisted) && !listed[p.ImageID] {
			repositories[p.Repository] = true
		}
	}
	return repositories
}

func scannedOnce(tx *bolt.Tx) bool {
	return tx.Bucket([]byte(bucketMeta)).Get([]byte(metaScanned)) != nil
}

// ScannedOnce reports whether a first scan has been made.
func (s *Store) ScannedOnce() (bool, error) {
	return read(s, "look for the first scan", func(tx *bolt.Tx) (bool, error) { return scannedOnce(tx), nil })
}
