package restriction

import (
	"maps"
	"reflect"
	"slices"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// Same reports whether two pods, which are in the same namespace, have the same values in all fields that policies of
// the namespace restrict. Judge then gives the same answer for both. It returns false if it is in doubt.
func (s *Set) Same(a, b *admission.Pod, containersOfA, containersOfB []admission.Container) bool {
	restricted := map[string]bool{}
	for _, p := range s.all() {
		included := p.binding.includes(a)
		if included != p.binding.includes(b) {
			return false
		}
		if included != no {
			maps.Copy(restricted, p.restricts)
		}
	}
	paths := slices.Collect(maps.Keys(restricted))
	podA, keptOfA := Keep(a, containersOfA, paths)
	podB, keptOfB := Keep(b, containersOfB, paths)
	if !reflect.DeepEqual(podA, podB) {
		return false
	}
	return !restricted[pathContainers] && !restricted[pathVolumes] || reflect.DeepEqual(keptOfA, keptOfB)
}
