package policyfiles

import (
	"slices"

	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// Restrictions returns the PodRestrictions of a folder; nil, which admits every pod, if it has none.
func Restrictions(s *Set) *restriction.Set {
	return Of[*restriction.Set](s, restriction.Kind)
}

// Unjudged returns what the PodRestrictions of a folder restrict and a source of views never carries. The labels of
// namespaces are not in it if the set has them from a file.
func Unjudged(s *Set, from restriction.Source) []restriction.PolicyField {
	return slices.DeleteFunc(Restrictions(s).Unjudged(from), func(f restriction.PolicyField) bool {
		return s != nil && s.NamespaceLabels != nil && f.Path == "binding.namespaceSelector"
	})
}
