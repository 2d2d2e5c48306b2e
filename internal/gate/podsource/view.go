package podsource

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/podfile"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// A view is the part of a pod that policies use. It does not change.
type view struct {
	pod        admission.Pod
	containers []admission.Container
}

// ReviewAnnotations is the field admission.Pod.ReviewAnnotations for KeepFields.
const ReviewAnnotations = "reviewAnnotations"

// KeepFields sets the fields that views have, by the paths of restriction.Field; without fields there are no views. If
// they change while the source runs, it lists the pods again; until then, new fields are unknown.
func (s *Source) KeepFields(paths []string) {
	paths = slices.Compact(slices.Sorted(slices.Values(paths)))
	if before := s.fields.Swap(&paths); before == nil && len(paths) == 0 || before != nil && slices.Equal(*before, paths) {
		return
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.relist != nil { // else the first list has them
		s.relist()
	}
}

// View returns the view of a pod and of its containers, if there is one. The caller must not modify it.
func (s *Source) View(ctx context.Context, uid string) (pod admission.Pod, containers []admission.Container, ok bool) {
	if len(s.kept()) == 0 {
		return pod, nil, false
	}
	if p, known := s.Await(ctx, uid); known && p.view != nil {
		return p.view.pod, p.view.containers, true
	}
	return pod, nil, false
}

func (s *Source) kept() []string {
	if fields := s.fields.Load(); fields != nil {
		return *fields
	}
	return nil
}

// untilRelist returns a context that ends when the pods have to be listed again.
func (s *Source) untilRelist(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relist = cancel
	return ctx, cancel
}

func viewOf(p *corev1.Pod, fields []string) *view {
	if len(fields) == 0 {
		return nil
	}
	pod, containers := podfile.ViewOf(p)
	v := &view{}
	v.pod, v.containers = restriction.Keep(&pod, containers, fields)
	v.pod.UID, v.pod.Namespace, v.pod.Name, v.pod.Static = pod.UID, pod.Namespace, pod.Name, pod.Static
	for i, c := range containers {
		v.containers[i].Name, v.containers[i].Kind = c.Name, c.Kind
	}
	if slices.Contains(fields, ReviewAnnotations) {
		v.pod.ReviewAnnotations = pod.ReviewAnnotations
	}
	return v
}
