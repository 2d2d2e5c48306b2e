package policyclient

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// An EndorsementStore holds endorsements; see [records.Store].
type EndorsementStore interface {
	Endorsed(p records.Pair, requirement string) (records.Endorsement, bool)
	Endorse(all []records.Endorsement, mayReplace func(earlier records.Endorsement) bool) error
	RevokeEndorsements(of records.EndorsementSelection) ([]records.Endorsement, error)
}

// A Verifier asks pullgate-policyd; see [Client].
type Verifier interface {
	Verify(ctx context.Context, r VerifyRequest) (requirement.Report, error)
}

// EndorserOptions are what an Endorser needs beside the rules. Store, Verifier and State must be set.
type EndorserOptions struct {
	Store    EndorsementStore
	Verifier Verifier
	// EndorserState is the same for all Endorsers of a process.
	State *EndorserState
	// PolicyHash is the hash of the policy files, and TrustedRoot identifies the trusted root; "" if there is none.
	PolicyHash, TrustedRoot string
	// Validity is how long an endorsement counts, 0 without end; Grace how much longer while its registry is unavailable.
	Validity, Grace time.Duration
	// Recheck is how often a Renewal verifies all images that pods use, 0 for never.
	Recheck time.Duration
	// Successor is called, concurrently, if pullgate-policyd has other policy files. It reads the files again and returns
	// the Endorser that is then in use, or nil. It returns when ctx ends. nil means that the files are not read again.
	Successor func(ctx context.Context) *Endorser
	// Failed is called for each verification without a stored result, Outcome for each; both concurrently, and may be nil.
	Failed  func(VerificationFailure)
	Outcome func(outcome string)
}

// A VerificationFailure is a verification without a result.
type VerificationFailure struct {
	Image, ImageID, Namespace string
	Err                       error
}

// An Endorser judges images by the rules of policies about signatures. It is immutable.
type Endorser struct {
	rules   *requirement.Set
	options EndorserOptions
	// requires has the hashes of all requirements. conditions says that one has conditions, which may read the clock.
	requires   map[string]bool
	conditions bool
}

// NewEndorser returns an Endorser. A set without rules admits everything.
func NewEndorser(rules *requirement.Set, o EndorserOptions) *Endorser {
	e := &Endorser{rules: rules, options: o, requires: map[string]bool{}}
	for _, r := range rules.Rules() {
		if r.Requirement != nil {
			e.requires[r.Hash] = true
			e.conditions = e.conditions || r.Requirement.HasConditions()
		}
	}
	return e
}

func (e *Endorser) version() [2]string {
	return [...]string{e.options.PolicyHash, e.options.TrustedRoot}
}

func (e *Endorser) rulesFor(namespace string, name imageref.Ref) requirement.Judgement {
	return e.rules.For(namespace, name).Judge(name)
}

// admitted is the answer if no rule applies. The chain does not modify it.
var admitted = []admission.Finding{{Answer: admission.Admit}} //nolint:gochecknoglobals // the constant of its type

// Validate returns a finding for each rule that applies to the image of a container or to one that it mounts, or one
// that admits. It judges only at StageContainer. At stages that are not of a node it returns none, which denies.
func (e *Endorser) Validate(_ context.Context, s admission.Subject) []admission.Finding {
	if s.Stage == admission.StageSandbox {
		return admitted
	}
	if s.Stage != admission.StageContainer || s.Container == nil {
		return nil
	}
	var findings []admission.Finding
	now := time.Now()
	judge := func(name imageref.Ref, id string) { // with AssumeUnknown what is not known counts as what is required
		rules := e.rulesFor(s.Pod.Namespace, name)
		for i := range rules.Findings {
			if !s.AssumeUnknown || rules.Findings[i].Reason != admission.FieldUnknown {
				findings = append(findings, rules.Findings[i])
			}
		}
		for _, r := range rules.Signed {
			if !s.AssumeUnknown || id != "" {
				findings = append(findings, e.judge(r, name, id, now))
			}
		}
	}
	own, _ := s.Container.Image.Get()
	judge(imageref.New(own), s.Image.ID)
	for i := range s.Mounted {
		judge(s.Mounted[i].Requested, s.Mounted[i].ID)
	}
	if len(findings) == 0 {
		return admitted
	}
	return findings
}

type endorsementState uint8

const (
	missing endorsementState = iota
	expired
	inGrace // expired, and it counts because the registry cannot be asked; so does what follows
	valid
)

func (e *Endorser) find(p records.Pair, hash string, now time.Time) (records.Endorsement, endorsementState) {
	got, ok := e.options.Store.Endorsed(p, hash)
	if !ok {
		return records.Endorsement{}, missing
	}
	ends := EndOf(got, e.options.Validity)
	// One from the future has expired: the clock was set back, and it would count for too long.
	switch {
	case ends.IsZero(), !got.At.After(now) && now.Before(ends):
		return got, valid
	case now.Before(ends.Add(e.options.Grace)) && e.options.State.unavailable(fact{p, hash}, now):
		return got, inGrace
	}
	return got, expired
}

// EndOf returns when an endorsement ends with a validity, which is 0 for no end of its own; the zero time for never.
func EndOf(e records.Endorsement, validity time.Duration) time.Time {
	if validity <= 0 {
		return e.Until
	}
	return earlier(e.Until, e.At.Add(validity))
}

// earlier returns the earlier one of two times; the zero time is later than all others.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// clockValidity is how long a result counts that depends on the clock in a way that is not known, without a Validity.
const clockValidity = time.Hour

// endorsement returns what is stored of a requirement that is met. begun is the time before it was verified.
func (e *Endorser) endorsement(p records.Pair, r requirement.Result, begun time.Time) records.Endorsement {
	out := records.Endorsement{
		Pair: p, Requirement: r.Requirement, Digest: r.Digest, Signers: r.Signers, At: begun, Until: r.Until,
	}
	if r.ReadsClock {
		out.Until = earlier(out.Until, begun.Add(cmp.Or(max(e.options.Validity, 0), clockValidity)))
	}
	for _, a := range r.Attestations {
		out.Attestations = append(out.Attestations, records.Attestation(a))
	}
	return out
}

func (e *Endorser) judge(r *requirement.Rule, name imageref.Ref, id string, now time.Time) admission.Finding {
	if id == "" {
		return missingFinding(r, fmt.Sprintf("image %q: it is not known which image this is on the node, and %s requires "+
			"signatures; pull the image", name, r))
	}
	p := records.Pair{ImageID: id, Repository: name.Repository()}
	got, state := e.find(p, r.Hash, now)
	if state >= inGrace {
		text := fmt.Sprintf("image %q: it has the signatures that %s requires", name, r)
		if state == inGrace {
			text = fmt.Sprintf("image %q: its signatures met %s at %s, and its registry cannot be asked again", name, r,
				got.At.UTC().Format(time.RFC3339))
		}
		f := r.Finding(admission.Admit, "", text)
		f.Signers, f.Digest = got.Signers, got.Digest
		return f
	}
	why := "has not verified them for this image yet"
	if state == expired {
		why = "verified them too long ago, at " + got.At.UTC().Format(time.RFC3339)
		if !got.Until.IsZero() && !now.Before(got.Until) {
			why = "has an attestation that counted until " + got.Until.UTC().Format(time.RFC3339)
		}
	}
	if d, ok := e.options.State.denial(fact{p, r.Hash}); ok {
		why += fmt.Sprintf("; the last verification denied it (%s): %s", d.reason, d.message)
	}
	return missingFinding(r, fmt.Sprintf("image %q: %s requires signatures, and pullgate %s; a pull verifies them, so "+
		"sign the image and do not use imagePullPolicy Never; required: %s",
		name, r, why, safetext.Shorten(r.Requirement.String(), requirement.MaxText)))
}

func missingFinding(r *requirement.Rule, message string) admission.Finding {
	return r.Finding(admission.Unverified, admission.EndorsementMissing, message)
}
