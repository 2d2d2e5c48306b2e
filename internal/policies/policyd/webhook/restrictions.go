package webhook

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
)

// A comparison is a pod or pod template of a request, which restrictions are about.
type comparison struct {
	*question

	stage     admission.Stage
	ephemeral bool // only the ephemeral containers
	pod       *corev1.Pod
	old       *corev1.Pod // before an update; nil if it is not known
}

// restrictions asks the chain about a pod. The outcome is Unchanged without asking it if the pod before the update is
// the same in all that the chain judges. Otherwise the pod is added to the size of the object, and the outcome is
// Invalid without asking the chain if that exceeds the limits.
func (h *Handler) restrictions(ctx context.Context, c comparison, n *size) answer {
	s := c.subject(c.pod)
	if h.options.Chain.Exempts(s) == "" {
		s.Pod.NamespaceLabels = h.labels(ctx, c.Namespace)
	}
	var before admission.Subject
	if c.old != nil {
		before = c.subject(c.old)
		before.Pod.NamespaceLabels = s.Pod.NamespaceLabels
		if h.options.Chain.Same(before, s) {
			return answer{outcome: Unchanged, decision: admission.Decision{Answer: admission.Admit}}
		}
	}
	if n.add(&c.pod.Spec); n.exceeded() {
		return answer{outcome: Invalid, text: tooManyParts()}
	}
	a := answer{outcome: Allowed}
	if c.old != nil && c.stage == admission.StageAdmission && h.onlyMetadata(before, s) {
		// A pod that violates a newer policy in another field keeps running, and its labels can be changed.
		a.decision = h.options.Chain.EvaluateEdited(ctx, before, s)
	} else {
		a.decision = h.options.Chain.Evaluate(ctx, s)
	}
	if !a.decision.Admitted() {
		a.outcome = Denied
	}
	return a
}

// onlyMetadata reports whether two subjects differ in labels and annotations alone.
func (h *Handler) onlyMetadata(before, s admission.Subject) bool {
	before.Pod.Labels, before.Pod.Annotations = s.Pod.Labels, s.Pod.Annotations
	return h.options.Chain.Same(before, s)
}

// labels returns the labels of a namespace as a view has them.
func (h *Handler) labels(ctx context.Context, namespace string) admission.Value[map[string]string] {
	if h.options.Namespaces != nil && namespace != "" {
		if labels, ok := h.options.Namespaces.Labels(ctx, namespace); ok {
			return admission.Set(labels)
		}
	}
	return admission.Value[map[string]string]{}
}

// subject returns what the chain judges about a pod. The object does not decide where the pod is and where it comes
// from: the namespace is that of the request, and annotations that make a pod static for a kubelet can be set by every
// user here.
func (c *comparison) subject(pod *corev1.Pod) admission.Subject {
	view, containers := podfile.ViewOf(pod)
	view.Namespace, view.Static = c.Namespace, false
	if c.ephemeral {
		containers = slices.DeleteFunc(containers, func(c admission.Container) bool {
			kind, _ := c.Kind.Get()
			return kind != admission.KindEphemeral
		})
	}
	return admission.Subject{Stage: c.stage, Pod: view, Containers: containers}
}

// maxWarnings bounds the warnings of an answer. The API server cuts them at 4,096 bytes in all.
const maxWarnings = 10

// warnings returns the findings that are only reported, and sentences about images that are not judged.
func warnings(d admission.Decision, undetermined []string) []string {
	var texts []string
	for _, f := range d.Findings {
		switch {
		case !f.Reported():
		case f.Audit:
			texts = append(texts, "audit: "+f.Message)
		default:
			texts = append(texts, f.Message)
		}
	}
	texts = append(texts, undetermined...)
	more := len(texts) - maxWarnings
	if more > 0 {
		texts = texts[:maxWarnings]
	}
	var all []string
	for _, text := range texts {
		all = append(all, "pullgate: "+safetext.Valid(text))
	}
	if more > 0 {
		all = append(all, fmt.Sprintf("pullgate: and %d more", more))
	}
	return all
}
