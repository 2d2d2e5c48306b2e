package policyclient

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

// maxAnnotations bounds what is kept of all audit annotations about a container, in bytes. pullgate-policyd has limits
// too; it is not trusted to keep them.
const maxAnnotations = 16 << 10

// reviewAnswers are what pullgate-policyd says to a question.
type reviewAnswers struct {
	*reviewQuestion

	results []ReviewResult
	err     error
	took    time.Duration
	failed  func(ReviewFailure) // can be nil

	annotated int // bytes of audit annotations that were kept
}

// findings returns one for each backend and image.
func (a *reviewAnswers) findings() (all []admission.Finding) {
	for _, b := range a.backends {
		cause := a.failureOf(&b)
		for _, image := range a.images(&b) {
			f := a.finding(&b, image, cause)
			if image != a.image {
				f.Rule = image
			}
			all = append(all, f)
		}
	}
	return all
}

// failureOf returns why no answer of a backend counts, "" if they count.
func (a *reviewAnswers) failureOf(b *policyfiles.Backend) string {
	if a.err != nil {
		return cmp.Or(safetext.Line(strings.TrimPrefix(a.err.Error(), "policyclient: "), safetext.Event), "pullgate-policyd gave no reason")
	}
	for _, r := range a.results {
		asked := slices.IndexFunc(a.backends, func(b policyfiles.Backend) bool { return b.Name == r.Backend })
		switch {
		case asked < 0:
			return "pullgate-policyd answered for a backend that was not to be asked"
		case r.Backend == b.Name && !slices.Contains(a.images(b), r.Image):
			return "pullgate-policyd answered about an image that was not to be reviewed"
		}
	}
	return ""
}

// finding returns what a backend, or its failure policy, says about an image.
func (a *reviewAnswers) finding(b *policyfiles.Backend, image, cause string) admission.Finding {
	var own []ReviewResult
	for _, r := range a.results {
		if a.err == nil && r.Backend == b.Name && r.Image == image {
			own = append(own, r)
		}
	}
	// A denial counts, whatever else is wrong.
	if i := slices.IndexFunc(own, func(r ReviewResult) bool { return !r.Allowed && !r.Failed }); i >= 0 {
		return a.answered(own[i])
	}
	// A tenant's image can end or delay pullgate-policyd, so that only one that cannot be asked fails open.
	open := b.DefaultAllow && errors.Is(a.err, ErrNotReached)
	took := a.took
	switch {
	case cause != "":
	case len(own) != 1:
		cause = "pullgate-policyd gave no answer of it, or several"
	case own[0].Failed:
		cause, took = cmp.Or(safetext.Line(own[0].Reason, safetext.Event), "pullgate-policyd gave no reason"), own[0].Duration
		open = b.DefaultAllow && own[0].Allowed
	default:
		return a.answered(own[0])
	}
	return a.failure(policyfiles.Answer{Backend: b.Name, Image: image, Allowed: open, Failure: cause, Took: took})
}

// answered returns the finding for an answer of a backend.
func (a *reviewAnswers) answered(r ReviewResult) admission.Finding {
	said := policyfiles.Answer{Backend: r.Backend, Image: r.Image, Allowed: r.Allowed, Reason: safetext.Line(r.Reason, safetext.Event), Cached: r.Cached, Took: r.Duration}
	f := admission.Finding{Answer: admission.Admit, Policy: r.Backend, Message: said.String(), AuditAnnotations: a.annotations(r.AuditAnnotations)}
	if !r.Allowed {
		f.Answer, f.Reason = admission.Deny, admission.ReviewDenied
	}
	return f
}

// failure returns the finding by the failure policy of a backend.
func (a *reviewAnswers) failure(said policyfiles.Answer) admission.Finding {
	if a.failed != nil && !errors.Is(a.err, context.Canceled) {
		a.failed(ReviewFailure{Answer: said, Namespace: a.namespace, Pod: a.pod})
	}
	if said.Allowed {
		return admission.Finding{Answer: admission.Admit, Policy: said.Backend, Message: said.String(), FailedOpen: true}
	}
	return admission.Finding{Answer: admission.Deny, Policy: said.Backend, Reason: admission.ReviewUnavailable, Message: said.String()}
}

// annotations returns those that are kept.
func (a *reviewAnswers) annotations(all map[string]string) map[string]string {
	var kept map[string]string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		a.annotated += len(key) + len(all[key])
		if a.annotated > maxAnnotations {
			break
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = all[key]
	}
	return kept
}
