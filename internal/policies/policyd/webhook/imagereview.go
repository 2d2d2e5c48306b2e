package webhook

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	kjson "sigs.k8s.io/json"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
)

const (
	imageReviewKind = "ImageReview"
	maxImages       = 1000 // bounds the different images of a review. A pod has some dozens
	maxFindings     = 100  // how many findings of an event are enough
	// maxReasons bounds the images that a reason is about, and maxShown the characters of the name of each.
	maxReasons, maxShown = 3, 256
)

// imageReview allows an image if restrictions and rules about signatures allow a pod of the namespace to have it.
func (h *Handler) imageReview(ctx context.Context, b received, event *Event) (response any, refused *refusal) {
	version := imagepolicyv1alpha1.SchemeGroupVersion.String()
	answer := &imagepolicyv1alpha1.ImageReview{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: imageReviewKind}}
	deny := func(o Outcome, text string) {
		answer.Status.Allowed, answer.Status.Reason = false, "pullgate: "+text
		event.Outcome, event.Message = o, answer.Status.Reason
	}
	// An error would leave the answer to the caller's policy for failures.
	defer func() {
		if h.panicked(recover()) {
			deny(Failed, "the judgement failed, which is a defect of pullgate; see the log of pullgate-policyd")
			response, refused = answer, nil
		}
	}()
	if b.denied != "" {
		deny(Invalid, "the review "+b.denied)
		return answer, nil
	}
	var review imagepolicyv1alpha1.ImageReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(b.text, &review); err != nil {
		return nil, refuse(http.StatusBadRequest, "the body is not an ImageReview")
	}
	if review.Kind != imageReviewKind || review.APIVersion != version {
		return nil, refuse(http.StatusBadRequest, "apiVersion and kind must be "+version+" and "+imageReviewKind)
	}
	event.Namespace = review.Spec.Namespace
	images := sets.New[string]()
	for _, c := range review.Spec.Containers {
		images.Insert(c.Image)
	}
	switch {
	case len(images) == 0:
		deny(Invalid, "the review has no image")
		return answer, nil
	case len(images) > maxImages:
		deny(Invalid, fmt.Sprintf("the review has more than %d images", maxImages))
		return answer, nil
	}
	denied, refused := h.deniedImages(ctx, review.Spec.Namespace, sets.List(images), event)
	if refused != nil {
		return nil, refused
	}
	if len(denied) == 0 {
		b.done()
		denied = h.unsignedImages(ctx, review.Spec.Namespace, sets.List(images), event)
	}
	event.Outcome, answer.Status.Allowed = Allowed, true
	if len(denied) > 0 {
		deny(Denied, reason(denied))
	}
	return answer, nil
}

func (h *Handler) deniedImages(ctx context.Context, namespace string, images []string, event *Event) (
	denied []string, refused *refusal,
) {
	s := admission.Subject{Stage: admission.StageImageReview, Pod: admission.Pod{Namespace: namespace}}
	if h.options.Chain.Exempts(s) == "" {
		s.Pod.NamespaceLabels = h.labels(ctx, namespace)
	}
	event.Decision.Answer = admission.Admit
	for _, image := range images {
		if ctx.Err() != nil {
			return nil, refuse(http.StatusServiceUnavailable, "the review was not finished in time")
		}
		c := admission.Container{Image: admission.Absent[string]()}
		if image != "" {
			c.Image = admission.Set(image)
		}
		s.Containers = []admission.Container{c}
		d := h.options.Chain.Evaluate(ctx, s)
		event.Decision.PolicyHash, event.Decision.Exemption = d.PolicyHash, d.Exemption
		if len(event.Decision.Findings) < maxFindings {
			event.Decision.Findings = append(event.Decision.Findings, d.Findings...)
		}
		if !d.Admitted() {
			event.Decision.Answer = d.Answer
			_, text := d.Refusal()
			denied = append(denied, fmt.Sprintf("image %q: %s", safetext.Shorten(image, maxShown), text))
		}
	}
	return denied, nil
}

func (h *Handler) unsignedImages(ctx context.Context, namespace string, images []string, event *Event) []string {
	var denied []string
	if h.options.Signatures == nil {
		return nil
	}
	findings, _ := h.options.Signatures(ctx, namespace, images, false, nil)
	if len(findings) == 0 {
		return nil
	}
	event.Decision.Answer = admission.DecisionOf(findings).Answer
	event.Decision.Findings = append(event.Decision.Findings, findings[:min(len(findings), maxFindings)]...)
	for _, f := range findings {
		if f.Answer != admission.Admit && !f.Audit {
			denied = append(denied, f.Message)
		}
	}
	return denied
}

func reason(denied []string) string {
	more := ""
	if n := len(denied) - maxReasons; n > 0 {
		denied, more = denied[:maxReasons], fmt.Sprintf("; and %d more images", n)
	}
	return safetext.Valid(strings.Join(denied, "; ")) + more
}
