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
	"time"

	bolt "go.etcd.io/bbolt"
)

// The facts of a store are in memory. They never change in place: a write transaction replaces whole values after they
// are on disk. What a caller gets stays as it is, and the caller must not change it.

// facts are all facts of a store.
type facts struct {
	images    map[string]image               // by image ID
	marked    map[string]map[string]struct{} // the image IDs with a mark, by repository
	intents   map[string][]Intent            // by repository, ordered by ID
	creations []Creation                     // ordered by ID
	meta      meta
	endorsed  int // the number of endorsements

	lastIntent, lastCreation uint64 // the highest ID so far
}

// An image is what is known about an image ID, ordered by repository.
type image []entry

// An entry is what is known about one pair.
type entry struct {
	repository   string
	record       *Record
	latest       time.Time // see Facts.LatestProof
	mark         *Mark
	endorsements []Endorsement // ordered by requirement
}

// meta are the values of the meta bucket.
type meta struct {
	format   int
	distrust *Distrust
	scanned  bool
	revoked  time.Time
	key      string
}

func newFacts() *facts {
	return &facts{images: map[string]image{}, marked: map[string]map[string]struct{}{}, intents: map[string][]Intent{}}
}

func (i image) find(repository string) (at int, ok bool) {
	return slices.BinarySearchFunc(i, repository, func(e entry, r string) int { return strings.Compare(e.repository, r) })
}

// entry returns what is known about a repository, nil if nothing is.
func (i image) entry(repository string) *entry {
	if at, ok := i.find(repository); ok {
		return &i[at]
	}
	return nil
}

// load reads the facts of a file, and returns the places of the values that do not belong to their keys.
func load(b *bolt.Tx) (_ *facts, lost []place) {
	t := beginTx(newFacts())
	t.loading = true
	for _, bucket := range append(buckets(), bucketCreations, bucketEndorsements) {
		of := b.Bucket([]byte(bucket))
		if of == nil {
			continue
		}
		_ = of.ForEach(func(k, v []byte) error { // the function returns no error
			if value, err := decode(bucket, k, v); err != nil {
				lost = append(lost, place{bucket: bucket, key: bytes.Clone(k)})
			} else {
				t.set(bucket, k, t.shared(value))
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
	t.publish()
	return t.now, lost
}

// shared returns a value that has its texts in common with the values that the transaction has read before: the
// credentials and Secrets of a node are in many records.
func (t *tx) shared(value any) any {
	if t.texts == nil {
		t.texts = map[string]string{}
	}
	share := func(texts ...*string) {
		for _, text := range texts {
			known, ok := t.texts[*text]
			if !ok {
				known = *text
				t.texts[known] = known
			}
			*text = known
		}
	}
	switch v := value.(type) {
	case Record:
		share(&v.Pair.ImageID, &v.Pair.Repository)
		for i := range v.Proofs {
			p := &v.Proofs[i]
			share((*string)(&p.Credential), &p.Namespace)
			for j := range p.Secrets {
				s := &p.Secrets[j]
				share(&s.UID, &s.Namespace, &s.Name)
			}
		}
		return v
	case Mark:
		share(&v.Pair.ImageID, &v.Pair.Repository, &v.Origin)
		return v
	case Endorsement:
		share(&v.Pair.ImageID, &v.Pair.Repository, &v.Requirement, &v.Digest)
		for i := range v.Signers {
			share(&v.Signers[i])
		}
		return v
	}
	return value
}

// A tx is a write transaction, or a view of the facts. It reads what it has written.
type tx struct {
	now       *facts // as they were before
	images    map[string]image
	intents   map[string][]Intent
	creations []Creation
	meta      meta
	endorsed  int

	lastIntent, lastCreation uint64

	changes []change
	err     error  // of a value that cannot be encoded: then nothing is written
	wrote   []Pair // whose records, marks or endorsements it has written; see Store.wrote
	loading bool
	texts   map[string]string // see shared
}

// A change is a value to write in its stored form, or to delete if that is nil.
type change struct {
	bucket      string
	key, stored []byte
}

func beginTx(now *facts) *tx {
	return &tx{
		now: now, creations: now.creations, meta: now.meta, endorsed: now.endorsed,
		lastIntent: now.lastIntent, lastCreation: now.lastCreation,
	}
}

func (t *tx) image(id string) image {
	if i, ok := t.images[id]; ok {
		return i
	}
	return t.now.images[id]
}

func (t *tx) entry(p Pair) *entry { return t.image(p.ImageID).entry(p.Repository) }

func (t *tx) record(p Pair) *Record {
	if e := t.entry(p); e != nil {
		return e.record
	}
	return nil
}

func (t *tx) marked(p Pair) bool {
	e := t.entry(p)
	return e != nil && e.mark != nil
}

// known reports whether a pair has a record or a mark.
func (t *tx) known(p Pair) bool {
	e := t.entry(p)
	return e != nil && (e.record != nil || e.mark != nil)
}

// ids returns the image IDs, sorted.
func (t *tx) ids() []string {
	ids := slices.AppendSeq(make([]string, 0, len(t.now.images)+len(t.images)), maps.Keys(t.now.images))
	for id := range t.images {
		if _, ok := t.now.images[id]; !ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// all yields everything that is known, ordered by image ID and repository. The loop may write.
func (t *tx) all() iter.Seq2[Pair, entry] {
	return func(yield func(Pair, entry) bool) {
		for _, id := range t.ids() {
			for _, e := range t.image(id) {
				if !yield(Pair{ImageID: id, Repository: e.repository}, e) {
					return
				}
			}
		}
	}
}

// records yields every record, ordered by image ID and repository. The loop may write.
func (t *tx) records() iter.Seq2[Pair, *Record] {
	return func(yield func(Pair, *Record) bool) {
		for p, e := range t.all() {
			if e.record != nil && !yield(p, e.record) {
				return
			}
		}
	}
}

func (t *tx) intentsOf(repository string) []Intent {
	if all, ok := t.intents[repository]; ok {
		return all
	}
	return t.now.intents[repository]
}

func (t *tx) putRecord(r Record) {
	t.wrote = append(t.wrote, r.Pair)
	t.put(bucketRecords, r.Pair.key(), r)
}

// rewriteRecord is putRecord for a write that says nothing new about the image, so that Prune need not spare the
// record.
func (t *tx) rewriteRecord(r Record) { t.put(bucketRecords, r.Pair.key(), r) }

func (t *tx) deleteRecord(p Pair) { t.remove(bucketRecords, p.key()) }

func (t *tx) putMark(m Mark) {
	t.wrote = append(t.wrote, m.Pair)
	t.put(bucketMarks, m.Pair.key(), m)
}

func (t *tx) deleteMark(p Pair) { t.remove(bucketMarks, p.key()) }

func (t *tx) putIntent(in Intent) { t.put(bucketIntents, in.key(), in) }

func (t *tx) deleteIntent(in Intent) { t.remove(bucketIntents, in.key()) }

func (t *tx) putCreation(c Creation) { t.put(bucketCreations, creationKey(c.ID), c) }

func (t *tx) deleteCreation(id uint64) { t.remove(bucketCreations, creationKey(id)) }

func (t *tx) putEndorsement(e Endorsement) {
	t.wrote = append(t.wrote, e.Pair)
	t.put(bucketEndorsements, e.key(), e)
	t.setFormat(formatEndorsing)
}

// rewriteEndorsement is what rewriteRecord is for a record.
func (t *tx) rewriteEndorsement(e Endorsement) { t.put(bucketEndorsements, e.key(), e) }

// deleteEndorsement deletes an endorsement. The last one takes the format along, so that a version that knows no
// endorsements can open the store again.
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
	if bucket == bucketRecords {
		if known := t.record(pairOf(key)); known != nil {
			t.shared(known.clone()) // so that the next one has its texts
		}
	}
	t.set(bucket, key, t.shared(value))
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
		stored, ok := value.(Intent)
		t.lastIntent = max(t.lastIntent, in.ID)
		if t.intents == nil {
			t.intents = map[string][]Intent{}
		}
		t.intents[in.Repository] = with(t.intentsOf(in.Repository), stored, ok, t.loading, func(i Intent) int { return cmp.Compare(i.ID, in.ID) })
	case bucketCreations:
		id := creationID(key)
		c, ok := value.(Creation)
		t.lastCreation = max(t.lastCreation, id)
		t.creations = with(t.creations, c, ok, t.loading, func(c Creation) int { return cmp.Compare(c.ID, id) })
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
	if known, ok := t.texts[p.ImageID]; ok {
		p.ImageID = known
	}
	if known, ok := t.texts[p.Repository]; ok {
		p.Repository = known
	}
	i, own := t.images[p.ImageID]
	if !own {
		if t.images == nil {
			t.images = map[string]image{}
		}
		i = slices.Clone(t.now.images[p.ImageID])
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
			for i := range e.record.Proofs {
				e.latest = later(e.latest, e.record.Proofs[i].LastProved)
			}
		}
	case bucketMarks:
		e.mark = pointer[Mark](value)
	case bucketEndorsements:
		n := len(e.endorsements)
		one, ok := value.(Endorsement)
		e.endorsements = with(e.endorsements, one, ok, t.loading, func(e Endorsement) int { return strings.Compare(e.Requirement, requirement) })
		t.endorsed += len(e.endorsements) - n
	}
	if e.record == nil && e.mark == nil && len(e.endorsements) == 0 {
		i = slices.Delete(i, at, at+1)
	}
	t.images[p.ImageID] = i
}

func pointer[T any](value any) *T {
	if v, ok := value.(T); ok {
		return &v
	}
	return nil
}

// with returns an ordered slice with a value at its place, or without it. It copies the slice, unless nobody else has
// it.
func with[T any](all []T, value T, put, own bool, compare func(T) int) []T {
	at, found := slices.BinarySearchFunc(all, struct{}{}, func(v T, _ struct{}) int { return compare(v) })
	if !own {
		all = slices.Clone(all)
	}
	switch {
	case put && found:
		all[at] = value
	case put:
		all = slices.Insert(all, at, value)
	case found:
		all = slices.Delete(all, at, at+1)
	}
	return all
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

// publish changes the facts to those of the transaction.
func (t *tx) publish() {
	f := t.now
	for id, i := range t.images {
		for _, e := range f.images[id] {
			if e.mark != nil {
				f.unindex(Pair{ImageID: id, Repository: e.repository})
			}
		}
		for _, e := range i {
			if e.mark != nil {
				f.index(Pair{ImageID: id, Repository: e.repository})
			}
		}
		if len(i) == 0 {
			delete(f.images, id)
			continue
		}
		f.images[id] = i
	}
	for repository, all := range t.intents {
		if len(all) == 0 {
			delete(f.intents, repository)
			continue
		}
		f.intents[repository] = all
	}
	f.creations, f.meta, f.endorsed, f.lastIntent, f.lastCreation = t.creations, t.meta, t.endorsed, t.lastIntent, t.lastCreation
}

func (f *facts) index(p Pair) {
	if f.marked[p.Repository] == nil {
		f.marked[p.Repository] = map[string]struct{}{}
	}
	f.marked[p.Repository][p.ImageID] = struct{}{}
}

func (f *facts) unindex(p Pair) {
	delete(f.marked[p.Repository], p.ImageID)
	if len(f.marked[p.Repository]) == 0 {
		delete(f.marked, p.Repository)
	}
}

// write writes the changes of a transaction into the file.
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
