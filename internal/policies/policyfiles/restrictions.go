package policyfiles

import (
	"slices"

	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// restrictionKind returns the kind of policy files that have PodRestrictions.
func restrictionKind() Kind {
	return Kind{
		Name: restriction.Kind, APIVersions: []string{restriction.APIVersion, restriction.ProposedAPIVersion},
		Read: func(list []File) (Policies, error) {
			texts := make([]restriction.File, len(list))
			for i, f := range list {
				texts[i] = restriction.File(f)
			}
			return restriction.Load(texts)
		},
	}
}

// Restrictions returns the PodRestrictions of a folder; nil, which admits every pod, if it has none.
func Restrictions(s *Set) *restriction.Set {
	return Of[*restriction.Set](s, restriction.Kind)
}

// Unjudged returns what the PodRestrictions of a folder restrict and a source of views never carries. The labels of namespaces are not
// in it if the set has them from a file.
func Unjudged(s *Set, from restriction.Source) []restriction.PolicyField {
	return slices.DeleteFunc(Restrictions(s).Unjudged(from), func(f restriction.PolicyField) bool {
		return s != nil && s.NamespaceLabels != nil && f.Path == "binding.namespaceSelector"
	})
}
