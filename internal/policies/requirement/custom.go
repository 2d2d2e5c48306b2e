package requirement

import (
	"slices"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// Custom is for a rule about custom resources: which objects it is for, and where they name images. Nodes do not see
// such objects, and so a rule with it is in no Set of NewSet.
type Custom struct {
	// Include and Exclude are lists of alternatives, each of which selects an object that all of its Objects select.
	Include, Exclude [][]Objects
	Paths            []ImagePath // The rule is for the images of all of them.
}

// Objects select the objects of kinds in namespaces. Nil Kinds and nil Namespaces select all.
type Objects struct {
	Kinds      []Kind
	Namespaces Namespaces
}

// A Kind is a kind of objects. Those of rules may contain the wildcards * and ?.
type Kind struct{ Group, Version, Kind string }

// An ImagePath says where an object names images.
type ImagePath struct {
	Kind string // the only kind of objects that it is for; "" if it is for all
	Path string // an expression; see package condition
	// Key and Value are the fields with the name and with the image of an element that the path finds.
	Key, Value string
	At         string // the place in the file of the policy, for errors
}

// Matches reports whether an object is of the kind, in any version: each object can be read in all of them.
func (k Kind) Matches(object Kind) bool {
	return Glob(k.Group).Matches(object.Group) && Glob(k.Kind).Matches(object.Kind)
}

// Names reports whether the rule names the version of a kind. Its paths need not be right for others.
func (c *Custom) Names(object Kind) bool {
	unnamed := func(o Objects) bool {
		return o.Kinds != nil && !slices.ContainsFunc(o.Kinds, func(k Kind) bool {
			return k.Matches(object) && Glob(k.Version).Matches(object.Version)
		})
	}
	return slices.ContainsFunc(c.Include, func(all []Objects) bool { return !slices.ContainsFunc(all, unnamed) })
}

// Selects reports whether the objects of a kind in a namespace are selected. Those that are in none, whose namespace is
// "", are, unless objects of all namespaces are excluded.
func (c *Custom) Selects(kind Kind, namespace string) bool {
	in := func(list [][]Objects, unknown bool) bool {
		var alternatives [][]Namespaces
		for _, all := range list {
			var namespaces []Namespaces
			for _, o := range all {
				if o.Kinds == nil || slices.ContainsFunc(o.Kinds, func(k Kind) bool { return k.Matches(kind) }) {
					namespaces = append(namespaces, o.Namespaces)
				}
			}
			if len(namespaces) == len(all) {
				alternatives = append(alternatives, namespaces)
			}
		}
		return selects(alternatives, namespace, unknown)
	}
	return in(c.Include, true) && !in(c.Exclude, false)
}

// SelectsAny reports whether objects of a kind of the rule are selected in some namespace.
func (c *Custom) SelectsAny() bool {
	return slices.ContainsFunc(slices.Concat(c.Include...), func(o Objects) bool {
		return slices.ContainsFunc(o.Kinds, func(k Kind) bool { return c.Selects(k, "") })
	})
}

// NewCustomSet is NewSet for the rules about custom resources.
func NewCustomSet(trustedRoot string, all ...*Policies) *Set {
	lists := make([][]Rule, len(all))
	for i, p := range all {
		lists[i] = p.Custom
	}
	return newSet(trustedRoot, lists)
}

// ForObject returns the rules about objects of a kind in a namespace. Apply returns what they say about an image.
func (s *Set) ForObject(kind Kind, namespace string) (all []*Rule) {
	rules := s.Rules()
	for i := range rules {
		if c := rules[i].Custom; c != nil && c.Selects(kind, namespace) {
			all = append(all, &rules[i])
		}
	}
	return all
}

// Apply returns what rules say about an image that they can be for.
func Apply(rules []*Rule, image imageref.Ref) ImageRules {
	return candidates{chosen: rules}.apply(image)
}
