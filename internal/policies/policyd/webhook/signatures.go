package webhook

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// Signatures judges images by rules about signatures.
type Signatures interface {
	// Judge returns the findings of rules, none if no rule is for the images, and a sentence for each image that cannot
	// be judged. Such an image is not denied, because the node judges it again. Judge returns when ctx ends, and may be
	// called concurrently.
	Judge(ctx context.Context, s SignedImages) (findings []admission.Finding, undetermined []string)
}

// SignedImages are images of pods or of pod templates in a namespace. Images are as written, and can repeat.
type SignedImages struct {
	Namespace string
	Images    []string
	Template  bool
}

// signatures judges the signatures of images, and adds the findings to an answer that admits. The objects of the
// request are not needed any more.
func (h *Handler) signatures(ctx context.Context, q *question, a answer, s SignedImages) answer {
	switch {
	case h.options.Signatures == nil || len(s.Images) == 0:
		return a
	case len(s.Images) > maxContainers+maxVolumes:
		return answer{outcome: Invalid, text: tooManyParts()}
	}
	// A registry can take all of the time, and backends need some.
	if deadline, ok := ctx.Deadline(); ok {
		half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
		ctx = half
	}
	q.Object.Raw, q.OldObject.Raw = nil, nil // they are large
	q.done()
	findings, undetermined := h.options.Signatures.Judge(ctx, s)
	a.warnings = undetermined
	if len(findings) == 0 {
		return a
	}
	return a.with(findings)
}

// newImages returns the images of a pod or of a pod template, or of ephemeral containers, without those that it had
// before an update; none if signatures are not judged.
func (h *Handler) newImages(q *question, ephemeral bool, pod, old *corev1.Pod) SignedImages {
	s := SignedImages{Namespace: q.Namespace}
	if h.options.Signatures == nil {
		return s
	}
	imagesOf := func(p *corev1.Pod) []string {
		r := reviewedPod(q.Namespace, p, ephemeral)
		return append(r.Images, r.Volumes...)
	}
	s.Images = imagesOf(pod)
	if old != nil {
		before := sets.New(imagesOf(old)...)
		s.Images = slices.DeleteFunc(s.Images, before.Has)
	}
	return s
}
