package records

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
	"github.com/pullgate/pullgate/pkg/credential"
)

// A Store is one bbolt file. Its methods may be called concurrently.
type Store struct {
	file     *boltfile.File
	onSync   func(time.Duration)
	distrust atomic.Pointer[Distrust]

	facts    pairCache[factsFor]
	endorsed pairCache[endorsements]

	// mu guards the fields below. It is never held during a call to bbolt.
	mu      sync.Mutex
	writes  uint64
	written map[Pair]uint64 // the value of writes when the pair was last written

	// marked has the image IDs of the marks of each repository, because the keys of the marks begin with the image ID. After a
	// failed write it may contain IDs without a mark, but no mark is missing. It is used only in write transactions, which bbolt
	// runs one after the other.
	marked map[string]map[string]struct{}
}

// Close closes the file. Every later call fails.
func (s *Store) Close() error {
	s.commit() // it does not finish, so that nothing comes from memory any more
	if err := s.file.Close(); err != nil {
		return fmt.Errorf("close records: %w", err)
	}
	return nil
}

// read returns the result of f in one read transaction, or the zero value and an error that begins with what.
func read[T any](s *Store, what string, f func(*bolt.Tx) (T, error)) (v T, err error) {
	err = s.file.View(func(tx *bolt.Tx) error {
		v, err = f(tx)
		return err
	})
	if err != nil {
		var none T
		return none, fmt.Errorf("%s: %w", what, err)
	}
	return v, nil
}

// write is read in a write transaction, between two crash points. If it returns no error, the change is on disk.
func write[T any](s *Store, what, before, after string, f func(*bolt.Tx) (T, error)) (v T, err error) {
	err = s.update(what, before, after, func(tx *bolt.Tx) error {
		v, err = f(tx)
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return v, nil
}

// update runs one write transaction; after nil the change is on disk.
func (s *Store) update(what, before, after string, f func(*bolt.Tx) error) error {
	crashpoint.Hit(before)
	began := time.Now()
	committing := false
	err := s.file.Update(func(tx *bolt.Tx) error {
		if err := f(tx); err != nil {
			return err // nothing is written
		}
		committing = true
		s.commit()
		return nil
	})
	if committing {
		s.facts.finish()
		s.endorsed.finish()
	}
	if s.onSync != nil {
		s.onSync(time.Since(began))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	crashpoint.Hit(after)
	return nil
}

// commit ends the use of what was read before.
func (s *Store) commit() {
	s.facts.commit()
	s.endorsed.commit()
}

// Ping waits until the store can begin a write transaction, and writes nothing.
func (s *Store) Ping() error {
	err := s.file.Update(func(*bolt.Tx) error { return errPing })
	if errors.Is(err, errPing) {
		return nil
	}
	return fmt.Errorf("begin a write: %w", err)
}

// errPing ends the transaction of Ping without a write.
var errPing = errors.New("nothing to write")

// put writes a value with its checksum.
func put(tx *bolt.Tx, bucket string, key []byte, v any) error {
	stored, err := encode(bucket, key, v)
	if err != nil {
		return err
	}
	return tx.Bucket([]byte(bucket)).Put(key, stored)
}

// get reads a value, and reports whether it exists.
func get(tx *bolt.Tx, bucket string, key []byte, into any) (bool, error) {
	return getFrom(tx.Bucket([]byte(bucket)), bucket, key, into)
}

// getFrom is get for an open bucket, with its name.
func getFrom(b *bolt.Bucket, name string, key []byte, into any) (bool, error) {
	stored := b.Get(key)
	if stored == nil {
		return false, nil
	}
	return true, decode(name, key, stored, into)
}

// each yields the values of a bucket whose keys begin with prefix, in the order of the keys. The loop must not write to the bucket.
func each(tx *bolt.Tx, bucket string, prefix []byte) iter.Seq2[[]byte, []byte] {
	b := tx.Bucket([]byte(bucket))
	if b == nil && !slices.Contains(buckets(), bucket) {
		return func(func(key, value []byte) bool) {} // it is created by the first write to it
	}
	return eachIn(b, prefix)
}

// eachIn is each for an open bucket.
func eachIn(b *bolt.Bucket, prefix []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		c := b.Cursor()
		for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix) && yield(k, v); {
			k, v = c.Next()
		}
	}
}

// eachOr is each with decoded values. For a value that cannot be read it yields what byKey returns.
func eachOr[T any](tx *bolt.Tx, bucket string, prefix []byte, byKey func(key []byte) T) iter.Seq2[[]byte, T] {
	return func(yield func(key []byte, value T) bool) {
		for k, v := range each(tx, bucket, prefix) {
			if !yield(k, decodeOr(bucket, k, v, byKey)) {
				return
			}
		}
	}
}

// decodeOr returns the decoded value, or what byKey returns if it cannot be read.
func decodeOr[T any](bucket string, key, stored []byte, byKey func(key []byte) T) T {
	var value T
	if decode(bucket, key, stored, &value) != nil {
		return byKey(key)
	}
	return value
}

func deleteKeys(tx *bolt.Tx, bucket string, keys [][]byte) error {
	for _, k := range keys {
		if err := tx.Bucket([]byte(bucket)).Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// Lookup returns the facts about a pair. The Record has at least the proofs by these credentials, and not every other one: see
// Facts.Proved, and [Store.Describe] for all. An error means that a part of the facts cannot be read; the pair then needs proof whatever the
// policy. Several callers may get the same Record: they must not change it.
//
// Lookup sees every change whose call has returned. It may return facts that an earlier call read from the file, if nothing was
// written since.
func (s *Store) Lookup(p Pair, of ...credential.ID) (Facts, error) {
	known, _ := s.facts.get(p)
	if known.answer(of) {
		return known.Facts, nil
	}
	state, idle := s.facts.now()
	found := factsFor{of: known.with(of)}
	err := s.file.View(func(tx *bolt.Tx) (err error) {
		found.Facts, err = lookupWith(tx, p, func(key, stored []byte) (Record, bool, error) { return decodeFor(key, stored, found.of) })
		found.Arriving = arriving(tx, p, found.Facts)
		return err
	})
	if err != nil {
		return Facts{}, fmt.Errorf("look up %s of %s: %w", p.ImageID, p.Repository, err)
	}
	if idle {
		s.facts.put(p, state, found)
	}
	return found.Facts, nil
}

// lookup returns the facts with all proofs.
func lookup(tx *bolt.Tx, p Pair) (Facts, error) {
	return lookupWith(tx, p, func(key, stored []byte) (r Record, proved bool, err error) {
		err = decode(bucketRecords, key, stored, &r)
		return r, len(r.Proofs) > 0, err
	})
}

func lookupWith(tx *bolt.Tx, p Pair, record func(key, stored []byte) (r Record, proved bool, err error)) (Facts, error) {
	var f Facts
	own := p.key()
	// Opened once each, because every pre-check waits for this.
	all, marks := tx.Bucket([]byte(bucketRecords)), tx.Bucket([]byte(bucketMarks))
	if stored := all.Get(own); stored != nil {
		r, proved, err := record(own, stored)
		if err != nil {
			return f, err
		}
		f.Record, f.Proved = &r, proved
	}
	var m Mark
	ok, err := getFrom(marks, bucketMarks, own, &m)
	if err != nil {
		return f, err
	}
	f.Marked = ok
	f.Intents = countIntents(tx, p.Repository)
	f.Rivals = some(rivalRecords(all, own))
	f.MarkedElsewhere = some(rivalMarks(marks, own))
	return f, nil
}

func countIntents(tx *bolt.Tx, repository string) (n int) {
	prefix, length := ofRepository(repository)
	for k := range each(tx, bucketIntents, prefix) {
		if len(k) == length {
			n++
		}
	}
	return n
}

// rivalRecords yields the other repositories of the image whose record needs proof: every record that is not open, and every
// unreadable one.
func rivalRecords(records *bolt.Bucket, own []byte) iter.Seq[[]byte] {
	return func(yield func(key []byte) bool) {
		for k, v := range otherRepositories(records, own) {
			if (!sound(bucketRecords, k, v) || !says(v, fieldOpen)) && !yield(k) {
				return
			}
		}
	}
}

// rivalMarks yields the other repositories of the image that are marked. It yields none before the first scan, when all names of
// an image have the same age. A tenant may have given a preloaded image a name later; under it, the image would stay usable after
// an operator has removed the mark of the first name (docs/design/0024).
func rivalMarks(marks *bolt.Bucket, own []byte) iter.Seq[[]byte] {
	return func(yield func(key []byte) bool) {
		asked := false
		for k := range otherRepositories(marks, own) {
			if !asked && (!scannedOnce(marks.Tx()) || distrusted(marks.Tx())) {
				return // the next scan of a distrusted store is a first one
			}
			if asked = true; !yield(k) {
				return
			}
		}
	}
}

// otherRepositories yields the values in a bucket for the other repositories of the image. own is the key of the pair.
func otherRepositories(b *bolt.Bucket, own []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for k, v := range eachIn(b, own[:bytes.IndexByte(own, 0)+1]) {
			if !bytes.Equal(k, own) && !yield(k, v) {
				return
			}
		}
	}
}

func some(keys iter.Seq[[]byte]) bool {
	for range keys {
		return true
	}
	return false
}

func repositoriesOf(keys iter.Seq[[]byte]) (all []string) {
	for k := range keys {
		all = append(all, pairOf(k).Repository)
	}
	return all
}

// Distrusted returns why the store is distrusted, nil if it is not.
func (s *Store) Distrusted() *Distrust { return s.distrust.Load() }

func (s *Store) readDistrust() error {
	return s.file.View(func(tx *bolt.Tx) error {
		var d Distrust
		ok, err := get(tx, bucketMeta, []byte(metaDistrust), &d)
		if ok && err != nil {
			d = Distrust{Reason: "the reason cannot be read"}
		}
		if ok {
			s.distrust.Store(&d)
		}
		return nil
	})
}

// Trust ends distrust, and makes the next scan a first scan.
func (s *Store) Trust() error {
	err := s.update("end distrust", "", "", func(tx *bolt.Tx) error {
		meta := tx.Bucket([]byte(bucketMeta))
		return errors.Join(meta.Delete([]byte(metaDistrust)), meta.Delete([]byte(metaScanned)))
	})
	if err == nil {
		s.distrust.Store(nil)
	}
	return err
}

// SetKeyFingerprint notes with which key the credential IDs of the store were made.
func (s *Store) SetKeyFingerprint(fingerprint string) error {
	return s.update("note the fingerprint of the key", "", "", func(tx *bolt.Tx) error {
		return put(tx, bucketMeta, []byte(metaKey), fingerprint)
	})
}

// KeyFingerprint returns what SetKeyFingerprint noted, "" for nothing.
func (s *Store) KeyFingerprint() (string, error) {
	return read(s, "read the fingerprint of the key", func(tx *bolt.Tx) (fingerprint string, err error) {
		_, err = get(tx, bucketMeta, []byte(metaKey), &fingerprint)
		return fingerprint, err
	})
}

// LastWrite returns the number of the last write transaction. If it has not changed, no program has written to the file.
func (s *Store) LastWrite() (uint64, error) {
	return read(s, "read the number of the last write", func(tx *bolt.Tx) (uint64, error) {
		return uint64(tx.ID()), nil //nolint:gosec // it begins at 0 and goes up
	})
}

// Stats counts the content of the store. Bytes is the size of the file, Format the number of its format.
type Stats struct {
	Records, Intents, Marks, Endorsements int
	Bytes                                 int64
	Format                                int
}

// Stats returns the counts.
func (s *Store) Stats() (Stats, error) {
	return read(s, "count records", func(tx *bolt.Tx) (Stats, error) {
		info, err := os.Stat(s.file.DB.Path())
		if err != nil {
			return Stats{}, err
		}
		format, err := readFormat(tx)
		if err != nil {
			return Stats{}, err
		}
		count := func(bucket string) int {
			if b := tx.Bucket([]byte(bucket)); b != nil {
				return b.Stats().KeyN
			}
			return 0
		}
		return Stats{
			Records: count(bucketRecords), Intents: count(bucketIntents), Marks: count(bucketMarks), Endorsements: count(bucketEndorsements),
			Bytes: info.Size(), Format: format,
		}, nil
	})
}
