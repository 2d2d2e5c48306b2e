package policyclient

import (
	"context"
	"errors"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// A ReviewClient asks pullgate-policyd; see [Client].
type ReviewClient interface {
	Review(ctx context.Context, r ReviewRequest) ([]ReviewResult, error)
}

// ReviewerOptions are what a validator needs beside the backends.
type ReviewerOptions struct {
	// Client must be set if there are backends.
	Client ReviewClient
	// PolicyHash is the hash of the policy files that have the backends.
	PolicyHash string
	// Successor is called if pullgate-policyd has other policy files. It reads the files again and returns the
	// validator that is then in use, which can be the same one. It returns when ctx ends, and may be called
	// concurrently. nil means that the files are not read again.
	Successor func(ctx context.Context) *Reviewer
	// Failed is called for each image that a backend gave no valid answer about, unless the caller ended the call. It
	// may be called concurrently; nil is allowed.
	Failed func(ReviewFailure)
}

// A ReviewFailure is an image that a backend did not review.
type ReviewFailure struct {
	Answer         policyfiles.Answer
	Namespace, Pod string
}

// A Reviewer has images reviewed. It is immutable. The zero value has no backend.
type Reviewer struct {
	backends []policyfiles.Backend
	options  ReviewerOptions
}

// NewReviewer returns a validator. Without a backend it admits everything.
func NewReviewer(set *policyfiles.Backends, o ReviewerOptions) *Reviewer {
	return &Reviewer{backends: set.All(), options: o}
}

// admittedReview is the answer if no backend has to be asked.
func admittedReview() []admission.Finding { return []admission.Finding{{Answer: admission.Admit}} }

// Validate returns a finding for each backend and image, or one that admits if no backend reviews the container. It
// asks only at StageContainer. At stages that are not of a node it returns none, which denies.
func (v *Reviewer) Validate(ctx context.Context, s admission.Subject) []admission.Finding {
	if s.Stage == admission.StageSandbox {
		return admittedReview()
	}
	if s.Stage != admission.StageContainer || s.Container == nil {
		return nil
	}
	return v.judge(ctx, &s, v.options.Successor)
}

// judge answers about a container. successor can be nil.
func (v *Reviewer) judge(ctx context.Context, s *admission.Subject, successor func(context.Context) *Reviewer) []admission.Finding {
	q := v.question(s)
	switch {
	case len(q.backends) == 0:
		return admittedReview()
	case s.AssumeUnknown && (s.Offline || q.favorable()):
		return admittedReview()
	case s.Offline:
		return q.notAsked()
	case !s.AssumeUnknown && q.incomplete():
		return q.notKnown()
	case q.tooLarge():
		return q.refused()
	}
	begun := time.Now()
	results, err := v.options.Client.Review(ctx, q.request(v.options.PolicyHash))
	if errors.Is(err, ErrOtherPolicies) && successor != nil {
		if next := successor(ctx); next != nil && next.options.PolicyHash != v.options.PolicyHash {
			return next.judge(ctx, s, nil)
		}
	}
	a := reviewAnswers{reviewQuestion: q, results: results, err: err, took: time.Since(begun)}
	if !s.AssumeUnknown { // it is a repetition
		a.failed = v.options.Failed
	}
	return a.findings()
}

// Same reports whether two subjects of the same stage and namespace are the same in all that backends see.
func (v *Reviewer) Same(a, b admission.Subject) bool {
	switch {
	case a.Stage != b.Stage:
		return false
	case a.Stage == admission.StageSandbox:
		return true
	case a.Stage != admission.StageContainer || a.Container == nil || b.Container == nil:
		return false
	}
	p, q := v.question(&a), v.question(&b)
	return !p.incomplete() && !q.incomplete() && p.same(q)
}
