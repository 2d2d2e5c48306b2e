package records

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
)

// MaxEndorsements bounds the endorsements of one pair. There is one for each requirement, and they outlive the policy that had the
// requirement, because the policy may come back. Beyond the bound, [Store.Endorse] deletes those that were verified first. With the
// image or its name, [Store.Prune] deletes all of them.
const MaxEndorsements = 256

// MaxSigners and MaxSignerBytes bound what an endorsement says about its signers. Endorse cuts off what is beyond.
const (
	MaxSigners     = 16
	MaxSignerBytes = 512
)

// An Endorsement states that the signatures of a pair were verified and met a requirement. It is about the content of the image and
// not about credentials.
type Endorsement struct {
	Pair        Pair   `json:"pair"`
	Requirement string `json:"requirement"` // the hash of the requirement
	// Digest is the digest of the manifest or index that was signed and that leads to the image ID.
	Digest string `json:"digest"`
	// Signers are the keys and identities that were found. They are for people: no decision depends on them.
	Signers []string  `json:"signers,omitempty"`
	At      time.Time `json:"at"` // when it was verified
	// Until is the time after which the endorsement may not be used; zero means that there is none. The store does not compare it
	// with the clock.
	Until time.Time `json:"until,omitzero"`
}

// endorsements are all of one pair that can be read, ordered by requirement.
type endorsements []Endorsement

func (all endorsements) bytes() int64 {
	const fixed = 128
	n := fixed
	for i := range all {
		e := &all[i]
		n += int(unsafe.Sizeof(*e)) + len(e.Pair.ImageID) + len(e.Pair.Repository) + len(e.Requirement) + len(e.Digest)
		for _, signer := range e.Signers {
			n += int(unsafe.Sizeof(signer)) + len(signer)
		}
	}
	return int64(n)
}

func (e *Endorsement) key() []byte { return append(e.Pair.prefix(), e.Requirement...) }

// prefix returns the beginning of the keys of the endorsements of a pair.
func (p Pair) prefix() []byte { return append(p.key(), 0) }

// endorsementOf returns the fields that the key of an endorsement contains.
func endorsementOf(key []byte) Endorsement {
	p := pairOf(key)
	repository, requirement, _ := strings.Cut(p.Repository, "\x00")
	return Endorsement{Pair: Pair{ImageID: p.ImageID, Repository: repository}, Requirement: requirement}
}

// Endorsed returns the endorsement of a pair for a requirement, if there is one. One that cannot be read does not count: the image
// needs verification. Endorsed does not judge its times. Several callers may get the same Signers: they must not change them.
//
// Like [Store.Lookup], Endorsed sees every change whose call has returned, and answers from memory if an earlier call has read the
// endorsements of the pair and nothing was written since. Then it allocates nothing.
func (s *Store) Endorsed(p Pair, requirement string) (Endorsement, bool) {
	all := s.endorsementsOf(p)
	for i := range all {
		if all[i].Requirement == requirement {
			return all[i], true
		}
	}
	return Endorsement{}, false
}

// Endorsements returns the endorsements of a pair, ordered by requirement, without those that cannot be read. It reads like
// Endorsed. Callers may change the slice and not the Signers.
func (s *Store) Endorsements(p Pair) []Endorsement { return slices.Clone(s.endorsementsOf(p)) }

func (s *Store) endorsementsOf(p Pair) endorsements {
	if all, ok := s.endorsed.get(p); ok {
		return all
	}
	state, idle := s.endorsed.now()
	var all endorsements
	err := s.file.View(func(tx *bolt.Tx) error {
		all = nil
		for k, v := range each(tx, bucketEndorsements, p.prefix()) {
			var e Endorsement
			if decode(bucketEndorsements, k, v, &e) == nil {
				all = append(all, e)
			}
		}
		return nil
	})
	if err != nil {
		return nil // what cannot be read proves nothing
	}
	if idle {
		s.endorsed.put(p, state, all)
	}
	return all
}

// Endorse writes endorsements, in one transaction. An endorsement replaces the earlier one of the same pair and requirement. The
// first one in a store raises its format to 2. For each pair Endorse deletes the oldest others beyond [MaxEndorsements], and none that it
// has just written. It returns an error, and writes nothing, if an endorsement has no image ID, repository or requirement.
func (s *Store) Endorse(all []Endorsement) error {
	if len(all) == 0 {
		return nil
	}
	for i := range all {
		if err := all[i].check(); err != nil {
			return err
		}
	}
	return s.update("write endorsements of "+all[0].Pair.Repository, crashpoint.EndorseBefore, crashpoint.EndorseAfter, func(tx *bolt.Tx) error {
		if _, err := tx.CreateBucketIfNotExists([]byte(bucketEndorsements)); err != nil {
			return err
		}
		if err := setFormat(tx, formatEndorsing); err != nil {
			return err
		}
		written, pairs := map[string]bool{}, map[Pair]bool{}
		for _, e := range all {
			e.Signers = bounded(e.Signers)
			key := e.key()
			written[string(key)], pairs[e.Pair] = true, true
			s.wrote(e.Pair)
			if err := put(tx, bucketEndorsements, key, e); err != nil {
				return err
			}
		}
		for p := range pairs {
			if err := boundEndorsements(tx, p, written); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *Endorsement) check() error {
	for name, text := range map[string]string{"image ID": e.Pair.ImageID, "repository": e.Pair.Repository, "requirement": e.Requirement} {
		if text == "" || strings.Contains(text, "\x00") {
			return fmt.Errorf("records: endorsement with invalid %s %q", name, text)
		}
	}
	return nil
}

// bounded returns the signers that are stored.
func bounded(signers []string) []string {
	signers = slices.Clone(signers[:min(len(signers), MaxSigners)])
	for i, signer := range signers {
		signers[i] = strings.ToValidUTF8(signer[:min(len(signer), MaxSignerBytes)], "")
	}
	return signers
}

// boundEndorsements deletes endorsements of a pair beyond MaxEndorsements: first those that cannot be read, then the oldest ones.
func boundEndorsements(tx *bolt.Tx, p Pair, keep map[string]bool) error {
	var others []Endorsement
	n := 0
	for k, e := range eachOr(tx, bucketEndorsements, p.prefix(), endorsementOf) { // without a time if it cannot be read
		if n++; !keep[string(k)] {
			others = append(others, e)
		}
	}
	if n <= MaxEndorsements {
		return nil
	}
	slices.SortFunc(others, func(a, b Endorsement) int { return a.At.Compare(b.At) })
	for _, e := range others[:min(n-MaxEndorsements, len(others))] {
		if err := tx.Bucket([]byte(bucketEndorsements)).Delete(e.key()); err != nil {
			return err
		}
	}
	return nil
}

// setFormat writes the number of the format if the store has another one.
func setFormat(tx *bolt.Tx, format int) error {
	if found, err := readFormat(tx); err != nil || found == format {
		return err
	}
	return tx.Bucket([]byte(bucketMeta)).Put([]byte(metaFormat), []byte(strconv.Itoa(format)))
}

// deleteEndorsements deletes endorsements by their keys. With the last one it deletes their bucket and lowers the format, so that a
// version that knows no endorsements can open the store again.
func deleteEndorsements(tx *bolt.Tx, keys [][]byte) error {
	b := tx.Bucket([]byte(bucketEndorsements))
	if b == nil {
		return nil
	}
	if err := deleteKeys(tx, bucketEndorsements, keys); err != nil {
		return err
	}
	if k, _ := b.Cursor().First(); k != nil {
		return nil
	}
	return errors.Join(tx.DeleteBucket([]byte(bucketEndorsements)), setFormat(tx, formatPlain))
}

// An EndorsementSelection selects endorsements. All fields that are set have to match; the zero value selects nothing. One that
// cannot be read matches only by what is in its key: image ID, repository and requirement.
type EndorsementSelection struct {
	ImageID     string
	Repository  string
	Requirement string
	Digest      string
	// Signer is one of the signers of the endorsement, as a whole.
	Signer string
	// At is when the endorsement was verified; the zero value means any time.
	At time.Time
	// All selects every endorsement, and excludes the other fields.
	All bool
}

// Empty reports whether the selection selects nothing.
func (s EndorsementSelection) Empty() bool { return s == EndorsementSelection{} }

// Selects reports whether the selection selects an endorsement.
func (s EndorsementSelection) Selects(e Endorsement) bool {
	return !s.Empty() && (s.ImageID == "" || s.ImageID == e.Pair.ImageID) && (s.Repository == "" || s.Repository == e.Pair.Repository) &&
		(s.Requirement == "" || s.Requirement == e.Requirement) && (s.Digest == "" || s.Digest == e.Digest) &&
		(s.Signer == "" || slices.Contains(e.Signers, s.Signer)) && (s.At.IsZero() || s.At.Equal(e.At))
}

// prefix returns the beginning of the keys of all endorsements that can be selected.
func (s EndorsementSelection) prefix() []byte {
	switch p := (Pair{ImageID: s.ImageID, Repository: s.Repository}); {
	case s.ImageID == "":
		return nil
	case s.Repository == "":
		return p.key()
	default:
		return p.prefix()
	}
}

// RevokeEndorsements deletes the selected endorsements, in one transaction, and returns them. Their images need verification again.
// With the last endorsement of the store its format becomes 1 again.
func (s *Store) RevokeEndorsements(of EndorsementSelection) ([]Endorsement, error) {
	return write(s, "revoke endorsements", crashpoint.WithdrawBefore, crashpoint.WithdrawAfter, func(tx *bolt.Tx) ([]Endorsement, error) {
		found, keys := selectedEndorsements(tx, of)
		return found, deleteEndorsements(tx, keys)
	})
}

// RevocableEndorsements returns what RevokeEndorsements would delete, and changes nothing.
func (s *Store) RevocableEndorsements(of EndorsementSelection) ([]Endorsement, error) {
	return read(s, "look for endorsements", func(tx *bolt.Tx) ([]Endorsement, error) {
		found, _ := selectedEndorsements(tx, of)
		return found, nil
	})
}

func selectedEndorsements(tx *bolt.Tx, of EndorsementSelection) (found []Endorsement, keys [][]byte) {
	for k, e := range eachOr(tx, bucketEndorsements, of.prefix(), endorsementOf) {
		if of.Selects(e) {
			found, keys = append(found, e), append(keys, bytes.Clone(k))
		}
	}
	return found, keys
}
