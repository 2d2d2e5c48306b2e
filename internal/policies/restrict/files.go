package restrict

import (
	"slices"

	"github.com/pullgate/pullgate/internal/policies/files"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// Files returns the kind of policy files that have PodRestrictions.
func Files() files.Kind {
	return files.Kind{
		Name: restriction.Kind, APIVersions: []string{restriction.APIVersion, restriction.ProposedAPIVersion},
		Read: func(list []files.File) (files.Policies, error) {
			texts := make([]restriction.File, len(list))
			for i, f := range list {
				texts[i] = restriction.File(f)
			}
			return restriction.Load(texts)
		},
	}
}

// Of returns the PodRestrictions of a folder; nil, which admits every pod, if it has none.
func Of(s *files.Set) *restriction.Set { return files.Of[*restriction.Set](s, restriction.Kind) }

// Unjudged returns what the PodRestrictions of a folder restrict and a source of views never carries. The labels of namespaces are not
// in it if the set has them from a file.
func Unjudged(s *files.Set, from restriction.Source) []restriction.PolicyField {
	return slices.DeleteFunc(Of(s).Unjudged(from), func(f restriction.PolicyField) bool {
		return s != nil && s.NamespaceLabels != nil && f.Path == "binding.namespaceSelector"
	})
}
