package policyclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
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
	// Successor is as EndorserOptions.Successor.
	Successor func(ctx context.Context) *Reviewer
	// Failed is called, concurrently, for each image without a valid answer, unless the caller ended the call; or nil.
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
func NewReviewer(set policyfiles.Backends, o ReviewerOptions) *Reviewer {
	return &Reviewer{backends: set, options: o}
}

// Validate is as Endorser.Validate, with a finding for each backend and image.
func (v *Reviewer) Validate(ctx context.Context, s admission.Subject) []admission.Finding {
	if s.Stage == admission.StageSandbox {
		return admitted
	}
	if s.Stage != admission.StageContainer || s.Container == nil {
		return nil
	}
	return v.judge(ctx, &s, v.options.Successor != nil)
}

// judge answers about a container. again says that it may read other policy files.
func (v *Reviewer) judge(ctx context.Context, s *admission.Subject, again bool) []admission.Finding {
	q := v.question(s)
	switch {
	case len(q.backends) == 0:
		return admitted
	case s.AssumeUnknown && (s.Offline || q.favorable()):
		return admitted
	case s.Offline:
		return q.notAsked(admission.NotAsked, func(*policyfiles.Backend) (string, bool) { return "", true })
	}
	if unknown := q.notAsked(admission.FieldUnknown, q.unknown); len(unknown) > 0 && !s.AssumeUnknown {
		return unknown
	}
	if q.tooLarge() {
		return q.notAsked(admission.ReviewUnavailable, func(*policyfiles.Backend) (string, bool) {
			return fmt.Sprintf(": the container has more than %d images, or their names and the annotations for "+
				"backends have more than %d KiB; denied", maxImages, maxRequest>>10), true
		})
	}
	r := ReviewRequest{
		PolicyHash: v.options.PolicyHash, Namespace: q.namespace, VolumeImages: q.mounted, Annotations: q.annotations,
		Backends: len(q.backends),
	}
	if q.image != "" {
		r.Images = []string{q.image}
	}
	begun := time.Now()
	results, err := v.options.Client.Review(ctx, r)
	if errors.Is(err, ErrOtherPolicies) && again {
		if next := v.options.Successor(ctx); next != nil && next.options.PolicyHash != v.options.PolicyHash {
			return next.judge(ctx, s, false)
		}
	}
	a := reviewAnswers{reviewQuestion: q, results: results, err: err, took: time.Since(begun)}
	if !s.AssumeUnknown { // it is a repetition
		a.failed = v.options.Failed
	}
	return a.findings()
}

// Limits of a request. They are below those of pullgate-policyd, because a tenant must not be able to cause a failure
// that admits.
const (
	maxImages  = 64
	maxRequest = 512 << 10 // bytes of all names and annotations
)

// A reviewQuestion is what backends are asked about a container. What is not known is "" or missing.
type reviewQuestion struct {
	namespace, pod string
	backends       []policyfiles.Backend // that review the namespace
	image          string
	mounted        []string // without image and duplicates; none if no backend reviews them
	annotations    map[string]string

	annotationsKnown, mountsKnown bool
}

func (v *Reviewer) question(s *admission.Subject) *reviewQuestion {
	q := &reviewQuestion{namespace: s.Pod.Namespace, pod: s.Pod.Name, mountsKnown: true}
	volumes := false
	for _, b := range v.backends {
		// A namespace that is not known can be any.
		if b.Namespaces == nil || q.namespace == "" || slices.Contains(b.Namespaces, q.namespace) {
			q.backends = append(q.backends, b)
			volumes = volumes || b.IncludeImageVolumes
		}
	}
	if len(q.backends) == 0 {
		return q
	}
	var state admission.State
	q.annotations, state = s.Pod.ReviewAnnotations.Get()
	q.annotationsKnown = state != admission.StateUnknown
	q.image, _ = s.Container.Image.Get()
	if volumes {
		q.addMounts(s.Container.Mounts)
	}
	return q
}

func (q *reviewQuestion) addMounts(mounts admission.Value[[]admission.Mount]) {
	var list []admission.Mount
	list, q.mountsKnown = mounts.Effective()
	for _, m := range list {
		name, state := m.Image.Get()
		switch {
		case state == admission.StateAbsent:
		case name == "":
			q.mountsKnown = false
		case name != q.image && !slices.Contains(q.mounted, name):
			q.mounted = append(q.mounted, name)
		}
	}
}

// unknown reports whether a backend needs what is not known of the container, and what that is.
func (q *reviewQuestion) unknown(b *policyfiles.Backend) (string, bool) {
	var names []string
	for _, f := range []struct {
		name  string
		known bool
	}{
		{"its namespace", q.namespace != ""},
		{"the annotations of its pod", q.annotationsKnown},
		{"the name of its image", q.image != ""},
		{"the names of the images that it mounts", q.mountsKnown || !b.IncludeImageVolumes},
	} {
		if !f.known {
			names = append(names, f.name)
		}
	}
	return ", because this is not known of the container: " + strings.Join(names, ", "), len(names) > 0
}

// favorable reports whether every backend could allow all images, by values that are not known.
func (q *reviewQuestion) favorable() bool {
	return q.namespace == "" || !q.annotationsKnown || q.image == "" && len(q.mounted) == 0
}

func (q *reviewQuestion) images(b *policyfiles.Backend) (names []string) {
	if q.image != "" {
		names = append(names, q.image)
	}
	if b.IncludeImageVolumes {
		names = append(names, q.mounted...)
	}
	return names
}

func (q *reviewQuestion) tooLarge() bool {
	size := len(q.namespace) + len(q.image)
	for _, name := range q.mounted {
		size += len(name)
	}
	for k, v := range q.annotations {
		size += len(k) + len(v)
	}
	return len(q.mounted)+1 > maxImages || size > maxRequest
}

func (q *reviewQuestion) notAsked(reason admission.Reason,
	why func(*policyfiles.Backend) (text string, denies bool),
) (all []admission.Finding) {
	for _, b := range q.backends {
		if text, denies := why(&b); denies {
			all = append(all, admission.Finding{
				Answer: admission.Deny, Policy: b.Name, Reason: reason,
				Message: "the image review backend " + b.Name + " was not asked" + text,
			})
		}
	}
	return all
}

// maxAnnotations bounds all audit annotations about a container, in bytes: pullgate-policyd is not trusted to do so.
const maxAnnotations = 16 << 10

type reviewAnswers struct {
	*reviewQuestion

	results []ReviewResult
	err     error
	took    time.Duration
	failed  func(ReviewFailure) // can be nil

	annotated int // bytes of audit annotations that were kept
}

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
		return cmp.Or(safetext.Line(strings.TrimPrefix(a.err.Error(), "policyclient: "), safetext.Event),
			"pullgate-policyd gave no reason")
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

func (a *reviewAnswers) answered(r ReviewResult) admission.Finding {
	said := policyfiles.Answer{
		Backend: r.Backend, Image: r.Image, Allowed: r.Allowed,
		Reason: safetext.Line(r.Reason, safetext.Event), Cached: r.Cached, Took: r.Duration,
	}
	f := admission.Finding{
		Answer: admission.Admit, Policy: r.Backend, Message: said.String(),
		AuditAnnotations: a.annotations(r.AuditAnnotations),
	}
	if !r.Allowed {
		f.Answer, f.Reason = admission.Deny, admission.ReviewDenied
	}
	return f
}

func (a *reviewAnswers) failure(said policyfiles.Answer) admission.Finding {
	if a.failed != nil && !errors.Is(a.err, context.Canceled) {
		a.failed(ReviewFailure{Answer: said, Namespace: a.namespace, Pod: a.pod})
	}
	f := admission.Finding{Answer: admission.Admit, Policy: said.Backend, Message: said.String(), FailedOpen: true}
	if !said.Allowed {
		f.Answer, f.Reason, f.FailedOpen = admission.Deny, admission.ReviewUnavailable, false
	}
	return f
}

func (a *reviewAnswers) annotations(all map[string]string) map[string]string {
	kept := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if a.annotated += len(key) + len(all[key]); a.annotated > maxAnnotations {
			break
		}
		kept[key] = all[key]
	}
	return kept
}
