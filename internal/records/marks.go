package records

import (
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
)

// A Scan is a full list of the runtime's images.
type Scan struct {
	Pairs  []Pair
	Origin string
	Now    time.Time
	First  bool // sets the durable flag that the store has been scanned once
	// Brought reports whether the pull of an intent may have brought the image of a pair of its repository; nil: it may.
	// It is pure.
	Brought func(Intent, Pair) bool
}

// MarkPreloaded marks the pairs of the scan that are due, and returns them. A pair is due if the store is trusted and
// has nothing about it or other repositories of the image, no pull with an intent may have brought the image under any
// of its names, and the list of every [Creation] has the pair. Pairs contains every pair of an image, or none.
// Without a change it waits for no other write, since scans hold the turn of the tracker.
func (s *Store) MarkPreloaded(sc Scan) ([]Pair, error) {
	if due, err := s.Due(sc.Pairs, sc.Brought); err != nil || len(due) == 0 && !sc.First {
		return nil, err
	}
	return write(s, "write preloaded marks", crashpoint.Mark, func(t *tx) []Pair {
		if t.meta.distrust != nil {
			return nil
		}
		pairs := t.due(sc.Pairs, sc.Brought)
		t.mark(pairs, sc.Origin, sc.Now)
		if sc.First {
			t.putMeta(metaScanned, sc.Now)
		}
		return pairs
	})
}

// Due returns the pairs that MarkPreloaded would mark if the store is trusted.
func (s *Store) Due(pairs []Pair, brought func(Intent, Pair) bool) ([]Pair, error) {
	return read(s, "look for what is preloaded", func(t *facts) []Pair { return t.due(pairs, brought) })
}

func (t *facts) due(pairs []Pair, brought func(Intent, Pair) bool) (found []Pair) {
	listed := map[string]bool{}
	for _, p := range pairs {
		listed[p.ImageID] = true
	}
	images, repositories := map[string]bool{}, t.unlistedRepositories(listed)
	for _, p := range pairs {
		if repositories[p.Repository] {
			images[p.ImageID] = true
			continue
		}
		for _, in := range t.intents[p.Repository] {
			if brought == nil || brought(in, p) {
				images[p.ImageID] = true
			}
		}
	}
	for _, p := range pairs {
		if images[p.ImageID] || t.known(p) || !listedByAll(t.creations, p) {
			continue
		}
		if f := t.lookup(p); !f.OtherRecords && !f.OtherMarks {
			found = append(found, p)
		}
	}
	return found
}

func (t *tx) mark(pairs []Pair, origin string, now time.Time) {
	for _, p := range pairs {
		t.put(bucketMarks, p.key(), Mark{Pair: p, Set: now, Origin: origin})
		t.count(p)
	}
}

func (t *facts) marksOf(repository string) (pairs []Pair) {
	for id, i := range t.images {
		if e := i.entry(repository); e != nil && e.mark != nil {
			pairs = append(pairs, Pair{ImageID: id, Repository: repository})
		}
	}
	return pairs
}

// Acceptable is what AcceptMarks marks, or would mark.
type Acceptable struct {
	Pairs  []Pair
	Proved []Record // those of Pairs that are not open and that a credential proved access to
}

// AcceptMarks marks the pairs that have no mark yet, whatever else is in the store, and returns them. A dry run changes
// nothing.
func (s *Store) AcceptMarks(pairs []Pair, origin string, now time.Time, dryRun bool) (Acceptable, error) {
	look := func(t *facts) Acceptable { return t.acceptable(pairs) }
	return correct(s, "accept preloaded marks", crashpoint.Accept, dryRun, look, func(t *tx, found Acceptable) {
		t.mark(found.Pairs, origin, now)
	})
}

func (t *facts) acceptable(pairs []Pair) (found Acceptable) {
	for _, p := range pairs {
		e := t.entry(p)
		if e != nil && e.mark != nil {
			continue
		}
		found.Pairs = append(found.Pairs, p)
		if e != nil && t.rival(e) && len(e.record.Proofs) > 0 {
			found.Proved = append(found.Proved, *e.record)
		}
	}
	return found
}

// Forgotten is what ForgetMarks removed, or would remove.
type Forgotten struct {
	Marks []Mark
	Open  []Pair // those of the images of Marks that every pod can still use, because their record is open
}

// ForgetMarks removes marks, in one transaction, and returns them. A pair without a record gets one without proofs, so
// that no scan marks it again. The record gets the time, as in a revocation. A selection with only a repository selects
// all marks of the images that have a mark in it: a tenant may have given such an image another name. A dry run changes
// nothing.
func (s *Store) ForgetMarks(of Selection, now time.Time, dryRun bool) (Forgotten, error) {
	look := func(t *facts) Forgotten { return t.forgettable(of) }
	return correct(s, "forget preloaded marks", crashpoint.Forget, dryRun, look, func(t *tx, gone Forgotten) {
		for _, m := range gone.Marks {
			rec := Record{Pair: m.Pair, Created: now}
			if known := t.record(m.Pair); known != nil {
				rec = known.clone()
			}
			rec.Revoked = later(rec.Revoked, now)
			t.putRecord(rec)
			t.deleteMark(m.Pair)
		}
		if len(gone.Marks) > 0 {
			t.noteRevoked(now)
		}
	})
}

func (t *facts) forgettable(of Selection) (found Forgotten) {
	found.Marks = t.selectedMarks(of.Covers)
	images := map[string]bool{}
	for _, m := range found.Marks {
		images[m.Pair.ImageID] = true
	}
	if of.ImageID == "" {
		found.Marks = t.selectedMarks(func(p Pair) bool { return images[p.ImageID] })
	}
	for p, r := range t.records() {
		if images[p.ImageID] && r.Open {
			found.Open = append(found.Open, p)
		}
	}
	return found
}

// A Selection selects pairs. All fields that are set have to match; the zero value selects nothing.
type Selection struct {
	ImageID    string
	Repository string
	All        bool // selects every pair, and excludes the others
}

// Empty reports whether the selection selects nothing.
func (s Selection) Empty() bool { return s == Selection{} }

// Covers reports whether the selection selects a pair.
func (s Selection) Covers(p Pair) bool {
	return !s.Empty() && (s.ImageID == "" || s.ImageID == p.ImageID) &&
		(s.Repository == "" || s.Repository == p.Repository)
}

// Marks returns every mark, ordered by image ID and repository.
func (s *Store) Marks() ([]Mark, error) {
	return read(s, "list preloaded marks", func(t *facts) []Mark { return t.selectedMarks(Selection{All: true}.Covers) })
}

func (t *facts) selectedMarks(selected func(Pair) bool) (found []Mark) {
	for p, e := range t.all() {
		if e.mark != nil && selected(p) {
			found = append(found, *e.mark)
		}
	}
	return found
}

// unlistedRepositories returns the repositories with a record whose image no list has contained, including this one:
// the image of such a pull may be listed under another ID.
func (t *facts) unlistedRepositories(listed map[string]bool) map[string]bool {
	repositories := map[string]bool{}
	for p, r := range t.records() {
		if r.Unlisted && !listed[p.ImageID] {
			repositories[p.Repository] = true
		}
	}
	return repositories
}

// ScannedOnce reports whether a first scan has been made.
func (s *Store) ScannedOnce() (bool, error) {
	return read(s, "look for the first scan", func(t *facts) bool { return t.meta.scanned })
}
