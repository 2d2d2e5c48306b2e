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
	Review(ctx context.Context, r ReviewRequest) ([]policyfiles.Answer, error)
}

// ReviewerOptions are what a validator needs beside the backends. Client must be set if there are backends.
type ReviewerOptions struct {
	Client     ReviewClient
	PolicyHash string // of the policy files that have the backends
	// Successor is as EndorserOptions.Successor.
	Successor func(ctx context.Context) *Reviewer
	// Failed is called, concurrently, for each image without a valid answer, unless the caller ended the call; or nil.
	Failed func(a policyfiles.Answer, namespace, pod string)
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
	switch {
	case s.Stage == admission.StageSandbox:
		return admitted
	case s.Stage != admission.StageContainer || s.Container == nil:
		return nil
	}
	return v.judge(ctx, &s, v.options.Successor != nil)
}

// judge may read other policy files if again is true.
func (v *Reviewer) judge(ctx context.Context, s *admission.Subject, again bool) []admission.Finding {
	q := v.review(s)
	// Every backend could allow all images, by values that are not known.
	favorable := q.Namespace == "" || !q.annotationsKnown || len(q.Images)+len(q.VolumeImages) == 0
	switch {
	case len(q.backends) == 0, s.AssumeUnknown && (s.Offline || favorable):
		return admitted
	case s.Offline:
		return q.notAsked(admission.NotAsked, "")
	}
	if unknown := q.notAsked(admission.FieldUnknown, unknownText); len(unknown) > 0 && !s.AssumeUnknown {
		return unknown
	}
	if q.tooLarge() {
		return q.notAsked(admission.ReviewUnavailable, fmt.Sprintf(": the container has more than %d images, or their names "+
			"and the annotations for backends have more than %d KiB; denied", maxImages, maxRequest>>10))
	}
	begun := time.Now()
	q.results, q.err = v.options.Client.Review(ctx, q.ReviewRequest)
	q.took = time.Since(begun)
	if errors.Is(q.err, ErrOtherPolicies) && again {
		if next := v.options.Successor(ctx); next != nil && next.options.PolicyHash != v.options.PolicyHash {
			return next.judge(ctx, s, false)
		}
	}
	if !s.AssumeUnknown { // it is a repetition
		q.failed = v.options.Failed
	}
	return q.findings()
}

// Limits of a request. They are below those of pullgate-policyd, because a tenant must not be able to cause a failure
// that admits.
const (
	maxImages  = 64
	maxRequest = 512 << 10 // bytes of all names and annotations
)

// A review is what backends are asked about a container, and their answers. What is not known is "" or missing.
type review struct {
	ReviewRequest                 // VolumeImages are without the image, and empty if no backend reviews them
	pod                           string
	backends                      []policyfiles.Backend // that review the namespace
	annotationsKnown, mountsKnown bool
	results                       []policyfiles.Answer
	err                           error
	took                          time.Duration
	failed                        func(a policyfiles.Answer, namespace, pod string) // can be nil
	annotated                     int                                               // bytes of kept annotations
}

func (v *Reviewer) review(s *admission.Subject) *review {
	q := &review{pod: s.Pod.Name, mountsKnown: true}
	q.PolicyHash, q.Namespace = v.options.PolicyHash, s.Pod.Namespace
	volumes := false
	for _, b := range v.backends {
		// A namespace that is not known can be any.
		if b.Namespaces == nil || q.Namespace == "" || slices.Contains(b.Namespaces, q.Namespace) {
			q.backends = append(q.backends, b)
			volumes = volumes || b.IncludeImageVolumes
		}
	}
	q.Backends = len(q.backends)
	if q.Backends == 0 {
		return q
	}
	var state admission.State
	q.Annotations, state = s.Pod.ReviewAnnotations.Get()
	q.annotationsKnown = state != admission.StateUnknown
	if image, _ := s.Container.Image.Get(); image != "" {
		q.Images = []string{image}
	}
	if volumes {
		q.addMounts(s.Container.Mounts)
	}
	return q
}

func (q *review) addMounts(mounts admission.Value[[]admission.Mount]) {
	var list []admission.Mount
	list, q.mountsKnown = mounts.Effective()
	for _, m := range list {
		name, state := m.Image.Get()
		switch {
		case state == admission.StateAbsent:
		case name == "":
			q.mountsKnown = false
		case !slices.Contains(q.Images, name) && !slices.Contains(q.VolumeImages, name):
			q.VolumeImages = append(q.VolumeImages, name)
		}
	}
}

const unknownText = ", because this is not known of the container: "

func (q *review) unknown(b *policyfiles.Backend) string {
	known := []bool{q.Namespace != "", q.annotationsKnown, len(q.Images) > 0, q.mountsKnown || !b.IncludeImageVolumes}
	var names []string
	for i, name := range []string{
		"its namespace", "the annotations of its pod", "the name of its image", "the names of the images that it mounts",
	} {
		if !known[i] {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

func (q *review) images(b *policyfiles.Backend) []string {
	if b.IncludeImageVolumes {
		return slices.Concat(q.Images, q.VolumeImages)
	}
	return q.Images
}

func (q *review) tooLarge() bool {
	size := len(q.Namespace)
	for _, name := range slices.Concat(q.Images, q.VolumeImages) {
		size += len(name)
	}
	for k, v := range q.Annotations {
		size += len(k) + len(v)
	}
	return len(q.VolumeImages)+1 > maxImages || size > maxRequest
}

// notAsked returns findings for all backends or, with FieldUnknown, for those that need what is unknown.
func (q *review) notAsked(reason admission.Reason, why string) (all []admission.Finding) {
	for _, b := range q.backends {
		message := "the image review backend " + b.Name + " was not asked" + why
		if reason == admission.FieldUnknown {
			unknown := q.unknown(&b)
			if unknown == "" {
				continue
			}
			message += unknown
		}
		all = append(all, admission.Finding{Answer: admission.Deny, Policy: b.Name, Reason: reason, Message: message})
	}
	return all
}

func (q *review) findings() (all []admission.Finding) {
	for _, b := range q.backends {
		cause := q.failureOf(&b)
		for _, image := range q.images(&b) {
			f := q.finding(&b, image, cause)
			if !slices.Contains(q.Images, image) {
				f.Rule = image
			}
			all = append(all, f)
		}
	}
	return all
}

func (q *review) failureOf(b *policyfiles.Backend) string {
	if q.err != nil {
		return safetext.Line(strings.TrimPrefix(q.err.Error(), "policyclient: "), safetext.Event)
	}
	for _, r := range q.results {
		switch {
		case !slices.ContainsFunc(q.backends, func(b policyfiles.Backend) bool { return b.Name == r.Backend }):
			return "pullgate-policyd answered for a backend that was not to be asked"
		case r.Backend == b.Name && !slices.Contains(q.images(b), r.Image):
			return "pullgate-policyd answered about an image that was not to be reviewed"
		}
	}
	return ""
}

func (q *review) finding(b *policyfiles.Backend, image, cause string) admission.Finding {
	var own []policyfiles.Answer
	for _, r := range q.results {
		if q.err == nil && r.Backend == b.Name && r.Image == image {
			own = append(own, r)
		}
	}
	// A denial counts, whatever else is wrong.
	if i := slices.IndexFunc(own, func(r policyfiles.Answer) bool { return !r.Allowed && r.Failure == "" }); i >= 0 {
		return q.answered(own[i])
	}
	// A tenant's image can end or delay pullgate-policyd, so that only one that cannot be asked fails open.
	open, took := b.DefaultAllow && errors.Is(q.err, ErrNotReached), q.took
	switch {
	case q.err != nil, cause != "":
	case len(own) != 1:
		cause = "pullgate-policyd gave no answer of it, or several"
	case own[0].Failure != "":
		cause, took = safetext.Line(own[0].Failure, safetext.Event), own[0].Took
		open = b.DefaultAllow && own[0].Allowed
	default:
		return q.answered(own[0])
	}
	cause = cmp.Or(cause, "pullgate-policyd gave no reason")
	return q.failure(policyfiles.Answer{Backend: b.Name, Image: image, Allowed: open, Failure: cause, Took: took})
}

func (q *review) answered(r policyfiles.Answer) admission.Finding {
	r.Reason = safetext.Line(r.Reason, safetext.Event)
	f := admission.Finding{Answer: admission.Admit, Policy: r.Backend, Message: r.String()}
	f.AuditAnnotations = bounded(r.AuditAnnotations, &q.annotated)
	if !r.Allowed {
		f.Answer, f.Reason = admission.Deny, admission.ReviewDenied
	}
	return f
}

func (q *review) failure(r policyfiles.Answer) admission.Finding {
	if q.failed != nil && !errors.Is(q.err, context.Canceled) {
		q.failed(r, q.Namespace, q.pod)
	}
	f := admission.Finding{Answer: admission.Admit, Policy: r.Backend, Message: r.String(), FailedOpen: true}
	if !r.Allowed {
		f.Answer, f.Reason, f.FailedOpen = admission.Deny, admission.ReviewUnavailable, false
	}
	return f
}

// maxAnnotations bounds all audit annotations about a container, in bytes: pullgate-policyd is not trusted to do so.
const maxAnnotations = 16 << 10

func bounded(annotations map[string]string, annotated *int) map[string]string {
	kept := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if *annotated += len(key) + len(annotations[key]); *annotated > maxAnnotations {
			break
		}
		kept[key] = annotations[key]
	}
	return kept
}
