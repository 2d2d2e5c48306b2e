package records

import (
	"bytes"
	"errors"
	"iter"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/pkg/credential"
)

// MaxUnresolved bounds the intents of one repository whose pulls have ended without a known result. Pulls of the same name have
// one intent, that of the latest end. If there would be more than MaxUnresolved intents, one intent without a name replaces all
// of them: one of these pulls may have brought any image of the repository.
const MaxUnresolved = 64

// Begin writes the intent of a pull and returns it; the call that ends the pull takes it. When the error is nil, the caller may
// call the runtime.
func (s *Store) Begin(name, repository string, now time.Time) (Intent, error) {
	return write(s, "write pull intent for "+repository, crashpoint.BeginBefore, crashpoint.BeginAfter, func(tx *bolt.Tx) (Intent, error) {
		return begin(tx, name, repository, now)
	})
}

// BeginListed does the same and deletes, in the same transaction, those marks of the repository whose image is not in present.
// present contains the IDs of the images that the runtime lists under the repository. Otherwise the pull could bring back an
// image that was marked and has been removed. BeginListed returns the pairs of the deleted marks. If present is nil, because the
// runtime was not asked, and the repository has marks, it writes nothing and returns ErrMarked with their pairs.
func (s *Store) BeginListed(name, repository string, now time.Time, present map[string]struct{}) (in Intent, unmarked []Pair, err error) {
	in, err = write(s, "write pull intent for "+repository, crashpoint.BeginBefore, crashpoint.BeginAfter, func(tx *bolt.Tx) (Intent, error) {
		unmarked = nil
		marked := s.marksOf(tx, repository)
		if len(marked) > 0 && present == nil {
			unmarked = marked
			return Intent{}, ErrMarked
		}
		for _, p := range marked {
			if _, ok := present[p.ImageID]; ok {
				continue
			}
			if err := tx.Bucket([]byte(bucketMarks)).Delete(p.key()); err != nil {
				return Intent{}, err
			}
			unmarked = append(unmarked, p)
		}
		return begin(tx, name, repository, now)
	})
	return in, unmarked, err
}

func begin(tx *bolt.Tx, name, repository string, now time.Time) (Intent, error) {
	b, in := tx.Bucket([]byte(bucketIntents)), Intent{Name: name, Repository: repository, Begun: now}
	for in.ID == 0 || b.Get(in.key()) != nil { // no checksum covers the sequence
		var err error
		if in.ID, err = b.NextSequence(); err != nil {
			return Intent{}, err
		}
	}
	return in, put(tx, bucketIntents, in.key(), in)
}

// A Result is what a successful pull proved.
type Result struct {
	Pair Pair
	// Open means that the pair is open to every pod from now on. Otherwise Credential proved access.
	Open       bool
	Credential credential.ID
	Secrets    []SecretRef
	Namespace  string // of the pod that the pull was for; "" if it is not known
	At         time.Time
	// Created is the creation time of a new record. It is not before At; the zero value means At.
	Created time.Time
	// Revoked reports, inside the transaction, whether the proof has been revoked since the pull began; then the record does not
	// get the proof. Revoked must not call the store; nil means that the proof has not been revoked.
	Revoked func() bool
}

// Prove writes a record and deletes the intent, in one transaction. An open record stays open. A Secret is noted with the
// credential and removed from every other one, as by Rotate. Prove replaces a record that cannot be read: its proofs are lost.
// That record may have had a time of revocation, so the new record has one too.
func (s *Store) Prove(in Intent, r Result) error {
	if !r.Open && r.Credential == "" {
		return errors.New("records: neither open nor a credential, nothing is proved")
	}
	return s.update("write pull record for "+r.Pair.Repository, crashpoint.ProveBefore, crashpoint.ProveAfter, func(tx *bolt.Tx) error {
		rec, created := Record{}, later(r.At, r.Created)
		if ok, err := get(tx, bucketRecords, r.Pair.key(), &rec); err != nil {
			rec = Record{Pair: r.Pair, Created: created, Revoked: created, Unlisted: true}
		} else if !ok {
			rec = Record{Pair: r.Pair, Created: created, Unlisted: true}
		}
		if !rec.Gone.IsZero() {
			rec.Gone, rec.Unlisted = time.Time{}, true
		}
		if r.Revoked == nil || !r.Revoked() {
			rec.prove(r)
		}
		if err := s.putRecord(tx, rec); err != nil {
			return err
		}
		return deleteIntent(tx, in)
	})
}

func (r *Record) prove(by Result) {
	r.LastUsed = later(r.LastUsed, by.At)
	if by.Open {
		if !r.Open {
			r.Open, r.Opened = true, by.At
		}
		return
	}
	for _, ref := range by.Secrets {
		r.release(ref, by.Credential)
	}
	for i := range r.Proofs {
		p := &r.Proofs[i]
		if p.Credential == by.Credential {
			// Not the later time: if the clock was set back, the old time is in the future.
			p.LastProved, p.LastUsed, p.Denied = by.At, later(p.LastUsed, by.At), time.Time{}
			p.RotatedFrom = nil
			if by.At.Before(p.FirstProved) {
				p.FirstProved = by.At
			}
			for _, ref := range by.Secrets {
				p.note(ref)
			}
			return
		}
	}
	p := Proof{Credential: by.Credential, Namespace: by.Namespace, FirstProved: by.At, LastProved: by.At, LastUsed: by.At}
	for _, ref := range by.Secrets {
		p.note(ref)
	}
	if len(r.Proofs) >= MaxProofs {
		at := r.evicted(p.namespace())
		r.Proofs = slices.Delete(r.Proofs, at, at+1)
	}
	r.Proofs = append(r.Proofs, p)
}

// evicted returns the index of the proof to evict for a new proof of a namespace. The evicted proof belongs to the namespace that
// would have the most, and to the new proof's namespace if that has as many as the others. So no namespace can evict the proofs
// of a namespace with fewer.
func (r *Record) evicted(added string) (index int) {
	held := map[string]int{added: 1}
	for i := range r.Proofs {
		held[r.Proofs[i].namespace()]++
	}
	most := added
	for namespace, n := range held {
		if n > held[most] || n == held[most] && most != added && namespace < most {
			most = namespace
		}
	}
	index = -1
	for i := range r.Proofs {
		p := &r.Proofs[i]
		if p.namespace() == most && (index < 0 || p.goesBefore(&r.Proofs[index])) {
			index = i
		}
	}
	return index
}

// goesBefore reports whether the proof is evicted before another one of its namespace.
func (p *Proof) goesBefore(other *Proof) bool {
	if (len(p.Secrets) == 0) != (len(other.Secrets) == 0) {
		return len(p.Secrets) == 0
	}
	return p.LastUsed.Before(other.LastUsed)
}

// release removes a Secret from every credential except one, because the Secret does not contain the others any more. It deletes
// a proof that has lost its last Secret.
func (r *Record) release(ref SecretRef, but credential.ID) {
	r.Proofs = slices.DeleteFunc(r.Proofs, func(p Proof) bool {
		return p.Credential != but && len(p.Secrets) == 1 && p.Secrets[0] == ref
	})
	for i := range r.Proofs {
		if p := &r.Proofs[i]; p.Credential != but {
			p.Secrets = slices.DeleteFunc(p.Secrets, func(s SecretRef) bool { return s == ref })
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// wrote counts a write of a pair. It is called inside the transaction, before the commit, so that a transaction that sees the
// write also sees it counted.
func (s *Store) wrote(p Pair) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	s.written[p] = s.writes
}

// Written returns a counter of the writes of records and marks in this process.
func (s *Store) Written() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// putRecord writes a record and counts the write.
func (s *Store) putRecord(tx *bolt.Tx, r Record) error {
	s.wrote(r.Pair)
	return put(tx, bucketRecords, r.Pair.key(), r)
}

func deleteIntent(tx *bolt.Tx, in Intent) error {
	return tx.Bucket([]byte(bucketIntents)).Delete(in.key())
}

// Drop deletes the intent of a pull that certainly brought no image. An unknown intent is not an error.
func (s *Store) Drop(in Intent) error {
	return s.update("drop pull intent", crashpoint.DropBefore, crashpoint.DropAfter, func(tx *bolt.Tx) error { return deleteIntent(tx, in) })
}

// A Denial states that a registry refused a credential.
type Denial struct {
	Pair       Pair // the image that the name referred to
	Credential credential.ID
	At         time.Time
}

// Deny deletes the intent of a pull that a registry refused. If the record has a proof of the credential, Deny notes the refusal
// in it, in the same transaction. The proof stays, with its times.
func (s *Store) Deny(in Intent, d Denial) error {
	return s.update("note that "+d.Pair.Repository+" was denied", crashpoint.DropBefore, crashpoint.DropAfter, func(tx *bolt.Tx) error {
		if err := s.deny(tx, d); err != nil {
			return err
		}
		return deleteIntent(tx, in)
	})
}

func (s *Store) deny(tx *bolt.Tx, d Denial) error {
	var rec Record
	if ok, err := get(tx, bucketRecords, d.Pair.key(), &rec); !ok || err != nil {
		return nil //nolint:nilerr // what cannot be read proves nothing that could be denied
	}
	i := slices.IndexFunc(rec.Proofs, func(p Proof) bool { return p.Credential == d.Credential })
	if i < 0 {
		return nil
	}
	// If the clock was set back, the time of the proof is in the future, although it precedes the denial.
	rec.Proofs[i].Denied = later(d.At, rec.Proofs[i].LastProved)
	return s.putRecord(tx, rec)
}

// End notes that a pull has ended without a known result. Its intent stays, and replaces earlier ones as described at
// MaxUnresolved. An unknown intent is not an error.
func (s *Store) End(in Intent, at time.Time) error { return s.EndAll([]Intent{in}, at) }

// EndAll does the same for several intents, in transactions of a bounded size. After an error, some of them may have been ended.
func (s *Store) EndAll(intents []Intent, at time.Time) error {
	return s.inBatches(intents, "end pull intents", crashpoint.EndBefore, crashpoint.EndAfter, func(tx *bolt.Tx, in Intent) error {
		return end(tx, in, at)
	})
}

func end(tx *bolt.Tx, in Intent, at time.Time) error {
	var stored Intent
	switch ok, err := get(tx, bucketIntents, in.key(), &stored); {
	case err != nil:
		stored = intentOf(in.key()) // the key contains its repository and ID
	case !ok:
		return nil
	}
	stored.Ended = at
	return unresolved(tx, stored)
}

// unresolved writes the intent of a pull that has ended without a known result, and deletes the intents of the repository that it
// replaces.
func unresolved(tx *bolt.Tx, in Intent) error {
	var all, same [][]byte // keys of the other ended intents; those with the same name
	for k, other := range intentsOf(tx, in.Repository) {
		if other.ID == in.ID || other.Ended.IsZero() {
			continue
		}
		k = bytes.Clone(k) // bbolt's own slice becomes invalid after a write
		all = append(all, k)
		if other.Name == in.Name {
			same = append(same, k)
		}
	}
	if len(all)-len(same) >= MaxUnresolved {
		in.Name, same = "", all
	}
	if err := deleteKeys(tx, bucketIntents, same); err != nil {
		return err
	}
	return put(tx, bucketIntents, in.key(), in)
}

// intentsOf yields the intents of a repository with their keys. For one that cannot be read it yields the fields that the key
// contains.
func intentsOf(tx *bolt.Tx, repository string) iter.Seq2[[]byte, Intent] {
	prefix, length := ofRepository(repository)
	return func(yield func(key []byte, in Intent) bool) {
		for k, in := range eachOr(tx, bucketIntents, prefix, intentOf) {
			// Of another length, the prefix is only a prefix of the intent's repository.
			if len(k) == length && !yield(k, in) {
				return
			}
		}
	}
}
