package policyclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/mechanics/inflight"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// pullVerifyLimit bounds a verification. It is longer than that of pullgate-policyd, whose answer says more.
const pullVerifyLimit = 90 * time.Second

// The outcomes of a verification of all requirements that an image needs. The first one that applies counts.
const (
	NotStored   = "not_stored"  // an endorsement could not be written
	Unavailable = "unavailable" // pullgate-policyd or the registry could not be asked
	Denied      = "denied"      // at least one requirement is not met
	Endorsed    = "endorsed"    // all are met
)

// VerificationOutcomes returns all outcomes.
func VerificationOutcomes() []string { return []string{NotStored, Unavailable, Denied, Endorsed} }

var errRevoked = errors.New("endorsements were revoked during the verification")

type pullVerifier struct {
	endorser *Endorser
	pull     admission.Pull
}

// PullVerifier returns the validator for a pull. It judges the image by ID and by Requested, and mounted images not at
// all. It verifies the signatures that rules require and that have no endorsement, and returns a finding for each rule
// about signatures. Deny means that a requirement is not met, Unverified that this is not known or cannot be written.
// If ctx ends, a verification that has begun completes, so that the next pull finds its result.
func (e *Endorser) PullVerifier(p admission.Pull) admission.Validator { //nolint:ireturn // the chain asks any validator
	return &pullVerifier{e, p}
}

// Validate implements admission.Validator.
func (v *pullVerifier) Validate(ctx context.Context, s admission.Subject) []admission.Finding {
	return v.validate(ctx, &s, v.endorser.options.Successor != nil)
}

// validate answers about a pull. again says that it may read other policy files.
func (v *pullVerifier) validate(ctx context.Context, s *admission.Subject, again bool) []admission.Finding {
	e, now := v.endorser, time.Now()
	rules := e.rulesFor(s.Pod.Namespace, s.Image.Requested).Signed
	p := records.Pair{ImageID: s.Image.ID, Repository: s.Image.Requested.Repository()}
	if len(rules) == 0 || p.ImageID == "" {
		return admitted // a name that is not known is denied when a container is created
	}
	q := pullQuestions{pair: p, by: e.options.State.idOf(v.pull.Login)}
	var got pullResult
	if hashes := q.unverified(e, rules, now); len(hashes) > 0 {
		got = v.shared(ctx, s, &q, hashes)
		if errors.Is(got.err, ErrOtherPolicies) && again {
			if next := e.options.Successor(ctx); next != nil && next.version() != e.version() {
				return (&pullVerifier{next, v.pull}).validate(ctx, s, false)
			}
		}
	}
	findings := make([]admission.Finding, len(rules))
	for i, r := range rules {
		findings[i] = q.judge(e, r, s.Image.Requested, &got)
	}
	return findings
}

type pullQuestions struct {
	pair records.Pair
	by   credentialID
}

func (q *pullQuestions) of(hash string) pullQuestion { return pullQuestion{fact{q.pair, hash}, q.by} }

func (q *pullQuestions) unverified(e *Endorser, rules []*requirement.Rule, now time.Time) (hashes []string) {
	for _, r := range rules {
		if e.needsVerification(q, r.Hash, now) {
			hashes = append(hashes, r.Hash)
		}
	}
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

func (e *Endorser) needsVerification(q *pullQuestions, hash string, now time.Time) bool {
	_, state := e.find(q.pair, hash, now)
	_, denied := e.options.State.deniedLately(q.of(hash), now)
	return state != valid && !denied
}

type pullResult struct {
	err    error                         // why there is none, or it is not used
	of     map[string]requirement.Result // by requirement
	stored error                         // why endorsements could not be written
}

func (v *pullVerifier) shared(ctx context.Context, s *admission.Subject, q *pullQuestions, hashes []string) pullResult {
	e := v.endorser
	key := flightKey{*q, s.Image.Requested.String(), strings.Join(hashes, " "), e.version()}
	run := func(ctx context.Context, _ inflight.Turn[pullResult]) (pullResult, error) {
		// The same verification may have ended between the look at the store and now.
		still := slices.DeleteFunc(slices.Clone(hashes),
			func(hash string) bool { return !e.needsVerification(q, hash, time.Now()) })
		if len(still) == 0 {
			return pullResult{}, nil
		}
		got := v.verify(ctx, s, q, still)
		e.count(s, q.pair, got)
		return got, nil
	}
	// The runtime has pulled, and other calls can wait for this, so it completes even if the client has disconnected.
	got, err := e.options.State.inFlight.Do(ctx, key,
		inflight.Work[pullResult]{Tenant: s.Pod.Namespace, Ending: inflight.Finish, Run: run})
	if p, ok := errors.AsType[*inflight.PanicError](err); ok {
		panic(fmt.Sprintf("%v\n%s", p.Value, p.Stack)) // the chain has the failure of this validator logged
	}
	if err != nil {
		return pullResult{err: err}
	}
	return got
}

// verify asks pullgate-policyd, and notes and writes what it answers: disk, memory, answer.
func (v *pullVerifier) verify(ctx context.Context, s *admission.Subject, q *pullQuestions, hashes []string) pullResult {
	e := v.endorser
	ctx, cancel := context.WithTimeout(ctx, pullVerifyLimit)
	defer cancel()
	begun, revocations := time.Now(), e.options.State.revocations.Load()
	request := VerifyRequest{
		PolicyHash: e.options.PolicyHash, TrustedRoot: e.options.TrustedRoot, Name: s.Image.Requested.String(),
		ImageID: q.pair.ImageID, Requirements: hashes, Credential: v.pull.Login,
	}
	if v.pull.Digests != nil {
		request.Digests = v.pull.Digests(ctx)
	}
	answer, err := e.options.Verifier.Verify(ctx, request)
	crashpoint.Hit(crashpoint.Verified)
	if err != nil {
		// One that does not answer in time is reached, and what takes long can be chosen by a tenant.
		if errors.Is(err, ErrNotReached) {
			for _, hash := range hashes {
				e.options.State.noteOutage(fact{q.pair, hash}, begun)
			}
		}
		return pullResult{err: err}
	}
	got := pullResult{of: map[string]requirement.Result{}}
	var met []records.Endorsement
	for _, r := range answer.Results {
		if !slices.Contains(hashes, r.Requirement) {
			continue
		}
		got.of[r.Requirement] = r
		switch {
		case r.Met:
			met = append(met, e.endorsement(q.pair, r, begun))
		case r.Unavailable():
			e.options.State.noteOutage(fact{q.pair, r.Requirement}, begun)
		default:
			d, err := e.noteDenial(fact{q.pair, r.Requirement}, r)
			e.options.State.answers.Add(q.of(r.Requirement), d)
			got.stored = errors.Join(got.stored, err)
		}
	}
	err = e.store(met, revocations)
	if errors.Is(err, errRevoked) {
		return pullResult{err: err}
	}
	got.stored = errors.Join(got.stored, err)
	return got
}

// noteDenial notes a denial. One of the image ends an expired endorsement, so that it does not count in an outage. An
// endorsement that another pod has got meanwhile stays: a tenant does not decide for another one.
func (e *Endorser) noteDenial(f fact, r requirement.Result) (denied, error) {
	d := denied{admission.Reason(r.Reason), sentence(r.Message), r.Reason != requirement.RegistryDenied, time.Now()}
	e.options.State.denials.Add(f, d)
	if !d.ofImage {
		return d, nil
	}
	e.options.State.outages.Remove(f)
	old, state := e.find(f.pair, f.requirement, d.at)
	if state == missing || state == valid {
		return d, nil
	}
	_, err := e.options.Store.RevokeEndorsements(records.EndorsementSelection{
		ImageID: f.pair.ImageID, Repository: f.pair.Repository, Requirement: f.requirement, At: old.At,
	})
	return d, err
}

// store writes endorsements, unless some were revoked since the verification began. A revocation that begins later
// deletes them: both are transactions.
func (e *Endorser) store(met []records.Endorsement, revocations uint64) error {
	revoked := false
	err := e.options.Store.Endorse(met, func(records.Endorsement) bool {
		revoked = revoked || e.options.State.revocations.Load() != revocations
		return !revoked
	})
	switch {
	case err != nil:
		return err
	case revoked:
		return errRevoked
	}
	for _, m := range met {
		e.options.State.verified(fact{m.Pair, m.Requirement})
	}
	return nil
}

func (e *Endorser) count(s *admission.Subject, p records.Pair, got pullResult) {
	outcome := Endorsed
	for _, r := range got.of {
		switch {
		case r.Met:
		case !r.Unavailable() && outcome == Endorsed:
			outcome = Denied
		case r.Unavailable():
			outcome = Unavailable
		}
	}
	failure := got.err
	switch {
	case got.err != nil:
		outcome = Unavailable
	case got.stored != nil:
		outcome, failure = NotStored, got.stored
	}
	if e.options.Outcome != nil {
		e.options.Outcome(outcome)
	}
	if failure != nil && e.options.Failed != nil {
		e.options.Failed(VerificationFailure{s.Image.Requested.String(), p.ImageID, s.Pod.Namespace, failure})
	}
}

func (q *pullQuestions) judge(e *Endorser, r *requirement.Rule, name imageref.Ref, got *pullResult) admission.Finding {
	now := time.Now()
	said, answered := got.of[r.Hash]
	_, state := e.find(q.pair, r.Hash, now)
	d, denied := e.options.State.deniedLately(q.of(r.Hash), now)
	switch {
	case state >= inGrace:
		return e.judge(r, name, q.pair.ImageID, now)
	case answered && !said.Met && !said.Unavailable():
		return r.NotMet(name, said.Reason, safetext.Line(said.Message, safetext.Event))
	case denied && !answered:
		return r.NotMet(name, string(d.reason), d.message)
	default:
		return missingFinding(r, fmt.Sprintf(
			"image %q: its signatures, which %s requires, could not be verified: %s; the next pull tries again", name, r,
			whyUnverified(said, got)))
	}
}

func sentence(s string) string {
	return safetext.Shorten(safetext.Line(s, safetext.Event), requirement.MaxText)
}

func whyUnverified(said requirement.Result, got *pullResult) string {
	switch {
	case got.stored != nil:
		return "the store of pull records on this node cannot be written; see the log of pullgated"
	case got.err != nil:
		return sentence(strings.TrimPrefix(got.err.Error(), "policyclient: "))
	case said.Message != "":
		return sentence(said.Message)
	default:
		return "pullgate-policyd gave no answer"
	}
}
