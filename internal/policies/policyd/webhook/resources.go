package webhook

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pullgate/pullgate/internal/config"
)

// Resources returns the resources that a Handler with these templates judges, with subresources, in the order of a
// configuration of webhooks: by API group and name.
func Resources(templates []config.PodTemplate) []schema.GroupResource {
	all := map[schema.GroupResource]bool{{Resource: "pods"}: true, {Resource: "pods/ephemeralcontainers"}: true}
	for _, t := range slices.Concat(config.BuiltInPodTemplates(), templates) {
		all[schema.GroupResource{Group: t.Group, Resource: t.Resource}] = true
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b schema.GroupResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
}
