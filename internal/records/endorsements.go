package records

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
)

// MaxEndorsements bounds the endorsements of one pair, one for each requirement. Beyond the bound, [Store.Endorse]
// deletes those that were verified first.
const MaxEndorsements = 256

// Bounds of one endorsement. Endorse cuts off what is beyond.
const (
	MaxSigners      = 16
	MaxSignerBytes  = 512 // of a signer, and of the type of a predicate
	MaxAttestations = 16
)

// An Attestation is a statement about an image: the type of its predicate, and its digest.
type Attestation struct {
	PredicateType string `json:"predicateType"`
	Digest        string `json:"digest"`
}

// An Endorsement states that the signatures of a pair were verified and met a requirement.
type Endorsement struct {
	Pair        Pair   `json:"pair"`
	Requirement string `json:"requirement"` // the hash of the requirement
	// Digest is the digest of the manifest or index that was signed and that leads to the image ID.
	Digest string `json:"digest"`
	// Signers are the keys and identities that were found, and Attestations the statements that count. No decision depends
	// on them.
	Signers      []string      `json:"signers,omitempty"`
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
	return find(s.endorsementsOf(p), requirement)
}

func find(all []Endorsement, requirement string) (Endorsement, bool) {
	for _, e := range all {
		if e.Requirement == requirement {
			return e, true
		}
	}
	return Endorsement{}, false
}

// Endorsements returns the endorsements of a pair, ordered by requirement. The caller may change the slice and not the
// Signers.
func (s *Store) Endorsements(p Pair) []Endorsement {
	return slices.Clone(s.endorsementsOf(p))
}

func (s *Store) endorsementsOf(p Pair) []Endorsement {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.facts.images[p.ImageID].entry(p.Repository); e != nil && s.failed == nil {
		return e.endorsements
	}
	return nil
}

// Endorse writes endorsements, in one transaction. One replaces the earlier one of the same pair and requirement. Those
// for which mayReplace returns false are not written: it is called within the transaction, with the earlier one or the
// zero value, and nil stands for true. An endorsement without image ID, repository or requirement is an error.
func (s *Store) Endorse(all []Endorsement, mayReplace func(earlier Endorsement) bool) error {
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
			var earlier Endorsement
			if known := t.entry(e.Pair); known != nil {
				earlier, _ = find(known.endorsements, e.Requirement)
			}
			if mayReplace != nil && !mayReplace(earlier) {
				continue
			}
			written[string(e.key())], pairs[e.Pair] = true, true
			e.Signers = slices.Clone(e.Signers[:min(len(e.Signers), MaxSigners)])
			for i := range e.Signers {
				bound(&e.Signers[i])
			}
			e.Attestations = slices.Clone(e.Attestations[:min(len(e.Attestations), MaxAttestations)])
			for i := range e.Attestations {
				bound(&e.Attestations[i].PredicateType)
			}
			t.putEndorsement(e)
		}
		for p := range pairs {
			t.boundEndorsements(p, written)
		}
	})
}

func (e *Endorsement) check() error {
	for _, text := range []string{e.Pair.ImageID, e.Pair.Repository, e.Requirement} {
		if text == "" || strings.Contains(text, "\x00") {
			return fmt.Errorf("records: endorsement with invalid image ID, repository or requirement %q", text)
		}
	}
	return nil
}

func bound(text *string) { *text = strings.ToValidUTF8((*text)[:min(len(*text), MaxSignerBytes)], "") }

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
	Signer      string // one of its signers, as a whole
	At          time.Time
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

// RevokeEndorsements deletes the selected endorsements, in one transaction, and returns them.
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
