package gate

import (
	"context"
	"slices"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// ExplainPolicies returns what the policies say about the sandbox of a pod, and about containers with an image that its
// spec names so; nothing without policies. A container named "" is not known. Without a pod source almost everything is
// unknown. A denial is not certain before the gate is synced, nor what validators ask over the network unless ask is
// set. Nothing is noted or counted.
func (g *Gate) ExplainPolicies(
	ctx context.Context, who tracker.Pod, containers []string, image admission.Image, name string, ask bool,
) []admission.Explanation {
	a := g.admitting.Load()
	if a == nil {
		return nil
	}
	complete := who.UID == "" || g.rebuilt()
	var (
		api   admission.Pod
		known []admission.Container
	)
	if a.Views != nil && who.UID != "" && !who.Static { // as in view
		api, known, _ = a.Views.View(ctx, who.UID)
	}
	explain := func(container *admission.Container) admission.Explanation {
		s := admission.Subject{Stage: admission.StageSandbox, Offline: !ask}
		_, s.Containers = split(known, container)
		if container != nil {
			s.Stage, s.Image = admission.StageContainer, image
		}
		s.Pod, s.Container = admission.Expected(api, container)
		s.Pod, s.Container, _ = admission.Merge(s.Pod, api, s.Container, container)
		s.Pod = a.identified(s.Pod, who)
		e := a.Chain.Explain(ctx, s)
		e.Certain = e.Certain && (complete || e.Admitted())
		return e
	}
	all := []admission.Explanation{explain(nil)}
	for _, c := range containers {
		view := admission.Container{Name: c}
		if i := slices.IndexFunc(known, func(k admission.Container) bool { return k.Name == c }); i >= 0 {
			view = known[i]
		}
		view.Image = admission.Set(name)
		all = append(all, explain(&view))
	}
	return all
}
