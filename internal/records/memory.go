package records

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unique"

	bolt "go.etcd.io/bbolt"
)

// facts are all facts of a store. They never change in place: a write transaction makes new ones.
type facts struct {
	images    map[string]image    // by image ID
	intents   map[string][]Intent // by repository, ordered by ID
	creations []Creation          // ordered by ID
	meta      meta
	endorsed  int          // the number of endorsements
	reserved  *atomic.Bool // see Store.Reserve

	lastIntent, lastCreation uint64 // the highest ID so far
	writes                   uint64 // see Store.Written
}

// An image is what is known about an image ID, ordered by repository.
type image []entry

type entry struct {
	repository   string
	record       *Record
	latest       time.Time // see Facts.LatestProof
	mark         *Mark
	endorsements []Endorsement // ordered by requirement
	written      uint64        // the value of facts.writes when it was last written
}

type meta struct {
	format   int
	distrust *Distrust
	scanned  bool
	revoked  time.Time
	key      string
}

func (i image) find(repository string) (at int, ok bool) {
	return slices.BinarySearchFunc(i, repository, func(e entry, r string) int { return strings.Compare(e.repository, r) })
}

func (i image) entry(repository string) *entry {
	if at, ok := i.find(repository); ok {
		return &i[at]
	}
	return nil
}

// load reads the facts of a file, and returns the places of the values that do not belong to their keys.
func load(b *bolt.Tx) (_ *facts, lost []place) {
	t := beginTx(&facts{})
	t.loading = true
	for _, bucket := range allBuckets() {
		of := b.Bucket([]byte(bucket))
		if of == nil {
			continue
		}
		_ = of.ForEach(func(k, v []byte) error { // the function returns no error
			if value, err := decode(bucket, k, v); err != nil {
				lost = append(lost, place{bucket: bucket, key: bytes.Clone(k)})
			} else {
				t.set(bucket, k, value)
			}
			return nil
		})
		switch bucket {
		case bucketIntents:
			t.lastIntent = max(t.lastIntent, of.Sequence())
		case bucketCreations:
			t.lastCreation = max(t.lastCreation, of.Sequence())
		}
	}
	now := t.facts // without the transaction
	return &now, lost
}

// A tx is a write transaction with the facts that it leaves.
type tx struct {
	facts
	changes []change
	err     error // of a value that cannot be encoded: then nothing is written
	// The maps are its own, and, while it loads a file, the slices in them.
	ownImages, ownIntents, loading bool
}

type change struct {
	bucket      string
	key, stored []byte
}

func beginTx(now *facts) *tx { return &tx{facts: *now} }

func (t *facts) entry(p Pair) *entry { return t.images[p.ImageID].entry(p.Repository) }

func (t *facts) record(p Pair) *Record {
	if e := t.entry(p); e != nil {
		return e.record
	}
	return nil
}

func (t *facts) known(p Pair) bool {
	e := t.entry(p)
	return e != nil && (e.record != nil || e.mark != nil)
}

// all yields everything, ordered by image ID and repository. The loop may write.
func (t *facts) all() iter.Seq2[Pair, entry] {
	return func(yield func(Pair, entry) bool) {
		images := t.images
		for _, id := range slices.Sorted(maps.Keys(images)) {
			for _, e := range images[id] {
				if !yield(Pair{ImageID: id, Repository: e.repository}, e) {
					return
				}
			}
		}
	}
}

// records yields every record in the same order.
func (t *facts) records() iter.Seq2[Pair, *Record] {
	return func(yield func(Pair, *Record) bool) {
		for p, e := range t.all() {
			if e.record != nil && !yield(p, e.record) {
				return
			}
		}
	}
}

func (t *tx) putRecord(r Record) {
	t.put(bucketRecords, r.Pair.key(), r)
	t.count(r.Pair)
}

func (t *tx) count(p Pair) {
	if t.err != nil {
		return // the entry may be one that others read
	}
	t.writes++
	t.entry(p).written = t.writes
}

// rewriteRecord is putRecord for a write that says nothing new about the image: Prune need not spare the record.
func (t *tx) rewriteRecord(r Record) { t.put(bucketRecords, r.Pair.key(), r) }

func (t *tx) deleteMark(p Pair) { t.remove(bucketMarks, p.key()) }

func (t *tx) deleteIntent(in Intent) { t.remove(bucketIntents, in.key()) }

func (t *tx) deleteCreation(id uint64) { t.remove(bucketCreations, creationKey(id)) }

func (t *tx) putEndorsement(e Endorsement) {
	t.put(bucketEndorsements, e.key(), e)
	t.count(e.Pair)
	if len(e.Attestations) > 0 {
		t.setFormat(formatAttesting)
	} else if t.meta.format != formatAttesting {
		t.setFormat(formatEndorsing)
	}
}

// deleteEndorsement lowers the format with the last one, so that an older version can open the store again.
func (t *tx) deleteEndorsement(e Endorsement) {
	t.remove(bucketEndorsements, e.key())
	if t.endorsed == 0 {
		t.setFormat(formatPlain)
	}
}

func (t *tx) setFormat(format int) {
	if t.meta.format != format {
		t.put(bucketMeta, []byte(metaFormat), format)
	}
}

func (t *tx) putMeta(key string, value any) { t.put(bucketMeta, []byte(key), value) }

func (t *tx) deleteMeta(key string) { t.remove(bucketMeta, []byte(key)) }

// put writes a value. In memory it is what will be read from the file: a time loses what JSON does not write.
func (t *tx) put(bucket string, key []byte, value any) {
	stored, err := encode(bucket, key, value)
	if err == nil {
		value, err = decode(bucket, key, stored)
	}
	if err != nil {
		t.err = errors.Join(t.err, err)
		return
	}
	t.changes = append(t.changes, change{bucket: bucket, key: key, stored: stored})
	t.set(bucket, key, value)
}

func (t *tx) remove(bucket string, key []byte) {
	t.changes = append(t.changes, change{bucket: bucket, key: key})
	t.set(bucket, key, nil)
}

// set changes the facts of the transaction; a nil value deletes.
func (t *tx) set(bucket string, key []byte, value any) {
	switch bucket {
	case bucketMeta:
		t.meta.set(string(key), value)
	case bucketIntents:
		in := intentOf(key)
		if !t.ownIntents {
			t.ownIntents, t.intents = true, cloned(t.intents)
		}
		t.lastIntent = max(t.lastIntent, in.ID)
		all := with(t.intents[in.Repository], pointer[Intent](value), func(i Intent) int { return cmp.Compare(i.ID, in.ID) })
		if t.intents[in.Repository] = all; len(all) == 0 {
			delete(t.intents, in.Repository)
		}
	case bucketCreations:
		id := creationID(key)
		t.lastCreation = max(t.lastCreation, id)
		t.creations = with(t.creations, pointer[Creation](value), func(c Creation) int { return cmp.Compare(c.ID, id) })
	default:
		t.setImage(bucket, key, value)
	}
}

func (t *tx) setImage(bucket string, key []byte, value any) {
	p, requirement := pairOf(key), ""
	if bucket == bucketEndorsements {
		e := endorsementOf(key)
		p, requirement = e.Pair, e.Requirement
	}
	if !t.ownImages {
		t.ownImages, t.images = true, cloned(t.images)
	}
	i := t.images[p.ImageID]
	if !t.loading {
		i = slices.Clone(i)
	}
	at, ok := i.find(p.Repository)
	if !ok {
		i = slices.Insert(i, at, entry{repository: p.Repository})
	}
	e := &i[at]
	switch bucket {
	case bucketRecords:
		e.record, e.latest = pointer[Record](value), time.Time{}
		if e.record != nil {
			e.record.intern()
			e.record.Pair = p
			for i := range e.record.Proofs {
				e.latest = later(e.latest, e.record.Proofs[i].LastProved)
			}
		}
	case bucketMarks:
		e.mark = pointer[Mark](value)
	case bucketEndorsements:
		n, one := len(e.endorsements), pointer[Endorsement](value)
		if one != nil {
			one.intern()
			one.Pair = p
		}
		e.endorsements = with(e.endorsements, one, func(e Endorsement) int {
			return strings.Compare(e.Requirement, requirement)
		})
		t.endorsed += len(e.endorsements) - n
	}
	if e.record == nil && e.mark == nil && len(e.endorsements) == 0 {
		i = slices.Delete(i, at, at+1)
	}
	if t.images[p.ImageID] = i; len(i) == 0 {
		delete(t.images, p.ImageID)
	}
}

// intern replaces a text by one copy of it: the same texts are in many values.
func intern[T ~string](text *T) { *text = T(unique.Make(string(*text)).Value()) }

func (r *Record) intern() {
	for i := range r.Proofs {
		p := &r.Proofs[i]
		intern(&p.Credential)
		intern(&p.Namespace)
		for j := range p.Secrets {
			s := &p.Secrets[j]
			intern(&s.UID)
			intern(&s.Namespace)
			intern(&s.Name)
		}
	}
}

func (e *Endorsement) intern() {
	intern(&e.Requirement)
	intern(&e.Digest)
	for i := range e.Signers {
		intern(&e.Signers[i])
	}
}

func pointer[T any](value any) *T {
	if v, ok := value.(T); ok {
		return &v
	}
	return nil
}

func cloned[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return maps.Clone(m)
}

// with returns a copy of an ordered slice with a value at its place, or without it if the value is nil.
func with[T any](all []T, value *T, compare func(T) int) []T {
	at, found := slices.BinarySearchFunc(all, struct{}{}, func(v T, _ struct{}) int { return compare(v) })
	rest := all[at:]
	if found {
		rest = rest[1:]
	}
	if value == nil {
		return slices.Concat(all[:at], rest)
	}
	return slices.Concat(all[:at], []T{*value}, rest)
}

func (m *meta) set(key string, value any) {
	switch key {
	case metaFormat:
		m.format, _ = value.(int)
	case metaDistrust:
		m.distrust = pointer[Distrust](value)
	case metaScanned:
		_, m.scanned = value.(time.Time)
	case metaRevoked:
		m.revoked, _ = value.(time.Time)
	case metaKey:
		m.key, _ = value.(string)
	}
}

func (t *tx) write(b *bolt.Tx) error {
	for _, c := range t.changes {
		// creations and endorsements have a bucket from the first one on
		bucket, err := b.CreateBucketIfNotExists([]byte(c.bucket))
		if err != nil {
			return err
		}
		if c.stored == nil {
			err = bucket.Delete(c.key)
		} else {
			err = bucket.Put(c.key, c.stored)
		}
		if err != nil {
			return fmt.Errorf("bucket %s: %w", c.bucket, err)
		}
	}
	// No checksum covers the sequence of a bucket; an older version continues with it.
	var err error
	for name, last := range map[string]uint64{bucketIntents: t.lastIntent, bucketCreations: t.lastCreation} {
		if of := b.Bucket([]byte(name)); of != nil && of.Sequence() < last {
			err = errors.Join(err, of.SetSequence(last))
		}
	}
	if t.meta.format == formatPlain && b.Bucket([]byte(bucketEndorsements)) != nil {
		err = errors.Join(err, b.DeleteBucket([]byte(bucketEndorsements)))
	}
	return err
}
