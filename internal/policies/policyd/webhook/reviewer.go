package webhook

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/review"
)

// A Reviewer asks the backends of image reviews about a pod.
type Reviewer interface {
	// Review returns at least one finding, also if no backend reviews the namespace; none denies. The finding of a
	// backend has its name as Policy, and its audit annotations. A backend that cannot be asked admits or denies by its
	// failure policy; the finding has FailedOpen if it admits so. Review returns when ctx ends, and may be called
	// concurrently.
	Review(ctx context.Context, p review.Subject) []admission.Finding
}

// reviewedPod returns what backends may know about a pod or, with ephemeral, about its ephemeral containers.
func reviewedPod(namespace string, p *corev1.Pod, ephemeral bool) review.Subject {
	out := review.Subject{Namespace: namespace, Annotations: admission.ForReview(p.Annotations)}
	if ephemeral {
		for i := range p.Spec.EphemeralContainers {
			out.Images = append(out.Images, p.Spec.EphemeralContainers[i].Image)
		}
		return out
	}
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			out.Images = append(out.Images, list[i].Image)
		}
	}
	for i := range p.Spec.Volumes {
		if v := p.Spec.Volumes[i].Image; v != nil && v.Reference != "" {
			out.Volumes = append(out.Volumes, v.Reference)
		}
	}
	return out
}

// failedOpen is the key of the annotation that the API server's own plugin uses too.
const failedOpen = "failed-open"

// auditAnnotations returns the audit annotations of findings. The values of a key that several backends use are joined.
// The keys have no prefix: the API server uses the name of the webhook, and would log an error for each key that is not
// valid after it.
func auditAnnotations(findings []admission.Finding) map[string]string {
	all := map[string]string{}
	for _, f := range findings {
		for key, value := range f.AuditAnnotations {
			if strings.Contains(key, "/") || len(validation.IsQualifiedName(key)) > 0 {
				continue
			}
			if before, several := all[key]; several {
				value = before + "; " + value
			}
			all[key] = value
		}
	}
	if slices.ContainsFunc(findings, func(f admission.Finding) bool { return f.FailedOpen }) {
		all[failedOpen] = "true"
	}
	if len(all) == 0 {
		return nil
	}
	return all
}
