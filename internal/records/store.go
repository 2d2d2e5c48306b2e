package records

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
)

// A Store is one bbolt file with its facts in memory. Its methods may be called concurrently.
type Store struct {
	file      *boltfile.File
	onSync    func(time.Duration)
	lastWrite uint64      // see WrittenBefore
	reserved  atomic.Bool // see Reserve

	// writing is held during a write transaction. It precedes mu. Neither calls out, except for the functions Brought.
	writing sync.Mutex

	// mu guards the fields below. It is never held during a call to bbolt.
	mu     sync.RWMutex
	facts  *facts
	failed error // the store is closed, or a panic or a failed write has left unknown what is in the file
}

// Close closes the file. Every later call fails.
func (s *Store) Close() error {
	s.fail(errClosed)
	if err := s.file.Close(); err != nil {
		return fmt.Errorf("close records: %w", err)
	}
	return nil
}

var errClosed = errors.New("records: the store is closed")

func (s *Store) fail(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = why
}

// read returns the result of f for the present facts, or the zero value and an error that begins with what.
func read[T any](s *Store, what string, f func(*facts) T) (v T, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.failed != nil {
		return v, fmt.Errorf("%s: %w", what, s.failed)
	}
	return f(s.facts), nil
}

// write is read in a write transaction, between two crash points.
func write[T any](s *Store, what, point string, f func(*tx) T) (T, error) {
	var v, none T
	if err := s.update(what, point, func(t *tx) { v = f(t) }); err != nil {
		return none, err
	}
	return v, nil
}

// correct returns what look finds, and passes it to do in a write transaction, unless it is a dry run.
func correct[T any](s *Store, what, point string, dryRun bool, look func(*facts) T, do func(*tx, T)) (T, error) {
	if dryRun {
		return read(s, what, look)
	}
	return write(s, what, point, func(t *tx) T {
		found := look(&t.facts)
		do(t, found)
		return found
	})
}

// update runs one write transaction; after nil the change is on disk and in memory.
func (s *Store) update(what, point string, f func(*tx)) error {
	crashpoint.Hit(crashpoint.Before(point))
	if err := s.transact(f); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	crashpoint.Hit(crashpoint.After(point))
	return nil
}

func (s *Store) transact(f func(*tx)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	t := beginTx(s.facts) // only a writer changes them
	if f(t); t.err != nil || len(t.changes) == 0 {
		return t.err // nothing is written
	}
	began := time.Now()
	err := s.file.Update(t.write)
	if s.onSync != nil {
		s.onSync(time.Since(began))
	}
	if err != nil {
		s.fail(err)
		return errors.Join(err, s.reload())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := t.facts // without the changes
	s.facts = &now
	return nil
}

// usable returns why the facts are not known. After a failed write it reads them again.
func (s *Store) usable() error {
	s.mu.RLock()
	failed := s.failed
	s.mu.RUnlock()
	if failed == nil {
		return nil
	}
	return s.reload()
}

// reload reads the facts again: it is unknown what the failed write has written.
func (s *Store) reload() error {
	var now *facts
	err := s.file.View(func(b *bolt.Tx) (err error) {
		var lost []place
		if now, lost = load(b); len(lost) > 0 {
			return fmt.Errorf("%w: %s", ErrUnreadable, lost[0])
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.failed, errClosed) {
		return s.failed
	}
	if s.failed = err; err == nil {
		now.reserved = s.facts.reserved
		now.writes = s.facts.writes + 1 // any pair may have been written
		for _, i := range now.images {
			for at := range i {
				i[at].written = now.writes
			}
		}
		s.facts = now
	}
	return err
}

// Ping waits until the store can begin a write transaction, and writes nothing.
func (s *Store) Ping() error {
	err := s.transact(func(t *tx) {
		t.err = s.file.Update(func(*bolt.Tx) error { return errPing })
	})
	if errors.Is(err, errPing) {
		return nil
	}
	return fmt.Errorf("begin a write: %w", err)
}

var errPing = errors.New("nothing to write")

// Lookup returns the facts about a pair. After an error the pair needs proof whatever the policy. The caller must not
// change the Record.
func (s *Store) Lookup(p Pair) (Facts, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.failed != nil {
		return Facts{}, fmt.Errorf("look up %s of %s: %w", p.ImageID, p.Repository, s.failed)
	}
	return s.facts.lookup(p), nil
}

func (t *facts) lookup(p Pair) (f Facts) {
	image := t.images[p.ImageID]
	f.Intents = t.intents[p.Repository]
	for i := range image {
		e := &image[i]
		if e.repository == p.Repository {
			f.Record, f.Mark, f.LatestProof = e.record, e.mark, e.latest
			continue
		}
		f.OtherRecords = f.OtherRecords || t.rival(e)
		f.OtherMarks = f.OtherMarks || t.otherMark(e)
	}
	f.Arriving = f.Record == nil && f.Mark == nil && !listedByAll(t.creations, p)
	return f
}

func (t *facts) rival(e *entry) bool { return e.record != nil && !t.open(e.record) }

// open reports whether every pod may use what the record is about.
func (t *facts) open(r *Record) bool { return r.Open && (r.ForEveryPod() || !t.reserved.Load()) }

// Reserve sets whether credentials of the node are for some pods only. Then a record that is open by them is like one
// that is not open.
func (s *Store) Reserve(reserved bool) { s.reserved.Store(reserved) }

// otherMark reports whether the mark of another repository of an image counts: a tenant may have given the image its
// name later (docs/design/0024). None counts before the first scan, when all names have the same age.
func (t *facts) otherMark(e *entry) bool {
	return e.mark != nil && t.meta.scanned && t.meta.distrust == nil // the next scan of a distrusted store is a first one
}

// Distrusted returns why the store is distrusted, nil if it is not.
func (s *Store) Distrusted() *Distrust {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.facts.meta.distrust
}

// Trust ends distrust, and makes the next scan a first scan.
func (s *Store) Trust() error {
	return s.update("end distrust", "", func(t *tx) {
		t.deleteMeta(metaDistrust)
		t.deleteMeta(metaScanned)
	})
}

// SetKeyFingerprint notes with which key the credential IDs of the store were made.
func (s *Store) SetKeyFingerprint(fingerprint string) error {
	return s.update("note the fingerprint of the key", "", func(t *tx) { t.putMeta(metaKey, fingerprint) })
}

// KeyFingerprint returns what SetKeyFingerprint noted, "" for nothing.
func (s *Store) KeyFingerprint() (string, error) {
	return read(s, "read the fingerprint of the key", func(f *facts) string { return f.meta.key })
}

// LastWrite returns the number of the last write transaction of any program.
func (s *Store) LastWrite() (number uint64, err error) {
	err = s.file.View(func(tx *bolt.Tx) error {
		number = uint64(tx.ID()) //nolint:gosec // it begins at 0 and goes up
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read the number of the last write: %w", err)
	}
	return number, nil
}

// WrittenBefore returns what LastWrite was when the store was opened; 0 for a new store and for a copy, because another
// store, or the original of the copy, has the same numbers.
func (s *Store) WrittenBefore() uint64 { return s.lastWrite }

// Stats counts the content of the store. Bytes is the size of the file.
type Stats struct {
	Records, Intents, Marks, Endorsements int
	Bytes                                 int64
	Format                                int
}

// Stats returns the counts.
func (s *Store) Stats() (Stats, error) {
	info, err := os.Stat(s.file.DB.Path())
	if err != nil {
		return Stats{}, fmt.Errorf("count records: %w", err)
	}
	return read(s, "count records", func(f *facts) Stats {
		n := Stats{Bytes: info.Size(), Format: f.meta.format, Endorsements: f.endorsed}
		for _, e := range f.all() {
			if e.record != nil {
				n.Records++
			}
			if e.mark != nil {
				n.Marks++
			}
		}
		for _, all := range f.intents {
			n.Intents += len(all)
		}
		return n
	})
}
