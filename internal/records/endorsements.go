package records

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
)

// MaxEndorsements bounds the endorsements of one pair, one for each requirement. They outlive the policy, which may
// come back. Beyond the bound, [Store.Endorse] deletes those that were verified first.
const MaxEndorsements = 256

// MaxSigners and MaxSignerBytes bound what an endorsement says about its signers. Endorse cuts off what is beyond.
const (
	MaxSigners     = 16
	MaxSignerBytes = 512
)

// MaxAttestations bounds the attestations of an endorsement. Endorse cuts off what is beyond.
const MaxAttestations = 16

// An Attestation is a statement about an image: the type of its predicate, and its digest.
type Attestation struct {
	PredicateType string `json:"predicateType"`
	Digest        string `json:"digest"`
}

// An Endorsement states that the signatures of a pair were verified and met a requirement. It is about the content of
// the image and not about credentials.
type Endorsement struct {
	Pair        Pair   `json:"pair"`
	Requirement string `json:"requirement"` // the hash of the requirement
	// Digest is the digest of the manifest or index that was signed and that leads to the image ID.
	Digest string `json:"digest"`
	// Signers are the keys and identities that were found. They are for people: no decision depends on them.
	Signers []string `json:"signers,omitempty"`
	// Attestations are the statements that count, at most MaxAttestations. They are for people too.
	Attestations []Attestation `json:"attestations,omitempty"`

	At time.Time `json:"at"` // when it was verified
	// Until is the time after which the endorsement may not be used; zero means that there is none. The store does not
	// compare it with the clock.
	Until time.Time `json:"until,omitzero"`
}

func (e *Endorsement) key() []byte { return append(e.Pair.prefix(), e.Requirement...) }

func (p Pair) prefix() []byte { return append(p.key(), 0) }

func endorsementOf(key []byte) Endorsement {
	p := pairOf(key)
	repository, requirement, _ := strings.Cut(p.Repository, "\x00")
	return Endorsement{Pair: Pair{ImageID: p.ImageID, Repository: repository}, Requirement: requirement}
}

// Endorsed returns the endorsement of a pair for a requirement, if there is one, whatever its times. The caller must
// not change the Signers.
func (s *Store) Endorsed(p Pair, requirement string) (Endorsement, bool) {
	all := s.endorsementsOf(p)
	for i := range all {
		if all[i].Requirement == requirement {
			return all[i], true
		}
	}
	return Endorsement{}, false
}

// Endorsements returns the endorsements of a pair, ordered by requirement. The caller may change the slice and not the
// Signers.
func (s *Store) Endorsements(p Pair) []Endorsement {
	return append([]Endorsement(nil), s.endorsementsOf(p)...)
}

func (s *Store) endorsementsOf(p Pair) []Endorsement {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.facts.images[p.ImageID].entry(p.Repository); e != nil && s.failed == nil {
		return e.endorsements
	}
	return nil
}

// Endorse writes endorsements, in one transaction. One replaces the earlier one of the same pair and requirement. The
// first one in a store raises its format to 2. An endorsement without image ID, repository or requirement is an error.
func (s *Store) Endorse(all []Endorsement) error {
	if len(all) == 0 {
		return nil
	}
	for i := range all {
		if err := all[i].check(); err != nil {
			return err
		}
	}
	return s.update("write endorsements of "+all[0].Pair.Repository, crashpoint.Endorse, func(t *tx) {
		written, pairs := map[string]bool{}, map[Pair]bool{}
		for _, e := range all {
			e.Signers = bounded(e.Signers)
			e.Attestations = slices.Clone(e.Attestations[:min(len(e.Attestations), MaxAttestations)])
			for i := range e.Attestations {
				a := &e.Attestations[i]
				a.PredicateType = strings.ToValidUTF8(a.PredicateType[:min(len(a.PredicateType), MaxSignerBytes)], "")
			}
			written[string(e.key())], pairs[e.Pair] = true, true
			t.putEndorsement(e)
		}
		for p := range pairs {
			t.boundEndorsements(p, written)
		}
	})
}

func (e *Endorsement) check() error {
	for name, text := range map[string]string{
		"image ID": e.Pair.ImageID, "repository": e.Pair.Repository,
		"requirement": e.Requirement,
	} {
		if text == "" || strings.Contains(text, "\x00") {
			return fmt.Errorf("records: endorsement with invalid %s %q", name, text)
		}
	}
	return nil
}

func bounded(signers []string) []string {
	signers = slices.Clone(signers[:min(len(signers), MaxSigners)])
	for i, signer := range signers {
		signers[i] = strings.ToValidUTF8(signer[:min(len(signer), MaxSignerBytes)], "")
	}
	return signers
}

func (t *tx) boundEndorsements(p Pair, keep map[string]bool) {
	all := t.entry(p).endorsements
	excess := len(all) - MaxEndorsements
	if excess <= 0 {
		return
	}
	others := slices.DeleteFunc(slices.Clone(all), func(e Endorsement) bool { return keep[string(e.key())] })
	slices.SortStableFunc(others, func(a, b Endorsement) int { return a.At.Compare(b.At) })
	for _, e := range others[:min(excess, len(others))] {
		t.deleteEndorsement(e)
	}
}

// An EndorsementSelection selects endorsements. All fields that are set have to match; the zero value selects nothing.
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
	return !s.Empty() && (s.ImageID == "" || s.ImageID == e.Pair.ImageID) &&
		(s.Repository == "" || s.Repository == e.Pair.Repository) &&
		(s.Requirement == "" || s.Requirement == e.Requirement) && (s.Digest == "" || s.Digest == e.Digest) &&
		(s.Signer == "" || slices.Contains(e.Signers, s.Signer)) && (s.At.IsZero() || s.At.Equal(e.At))
}

// RevokeEndorsements deletes the selected endorsements, in one transaction, and returns them. Their images need
// verification again. With the last endorsement of the store its format becomes 1 again.
func (s *Store) RevokeEndorsements(of EndorsementSelection) ([]Endorsement, error) {
	return write(s, "revoke endorsements", crashpoint.Withdraw, func(t *tx) []Endorsement {
		found := t.selectedEndorsements(of)
		for _, e := range found {
			t.deleteEndorsement(e)
		}
		return found
	})
}

// SelectedEndorsements returns the selected endorsements, ordered by image ID, repository and requirement.
func (s *Store) SelectedEndorsements(of EndorsementSelection) ([]Endorsement, error) {
	return read(s, "look for endorsements", func(t *facts) []Endorsement { return t.selectedEndorsements(of) })
}

func (t *facts) selectedEndorsements(of EndorsementSelection) (found []Endorsement) {
	if of.Empty() {
		return nil
	}
	for _, e := range t.all() {
		for _, one := range e.endorsements {
			if of.Selects(one) {
				found = append(found, one)
			}
		}
	}
	return found
}
