package restriction

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// A binding is a compiled Binding. The zero binding includes every namespace.
type binding struct {
	namespaces []string
	selector   *selector
}

// An inclusion says whether a binding includes a pod.
type inclusion uint8

const (
	unknown inclusion = iota // the name or the labels of the namespace decide, and are not known
	no
	yes
)

func (b *binding) includes(p *admission.Pod) inclusion {
	switch {
	case b.namespaces == nil && b.selector == nil, slices.Contains(b.namespaces, p.Namespace):
		return yes
	case b.selector != nil && len(*b.selector) == 0:
		return yes // whatever the labels are
	case b.namespaces != nil && p.Namespace == "":
		return unknown
	case b.selector == nil:
		return no
	}
	labels, ok := p.NamespaceLabels.Effective()
	switch {
	case !ok && p.NamespaceLabels.State() == admission.StateUnknown:
		return unknown
	case b.selector.matches(labels):
		return yes
	default:
		return no
	}
}

// A selector is a compiled LabelSelector: all of its conditions must be met.
type selector []condition

// A condition is about one label. Without a label of the key, NotIn and DoesNotExist are met.
type condition struct {
	key    string
	values []string // nil: any
	negate bool
}

func (s selector) matches(labels map[string]string) bool {
	for _, c := range s {
		v, ok := labels[c.key]
		if met := ok && (c.values == nil || slices.Contains(c.values, v)); met == c.negate {
			return false
		}
	}
	return true
}

// Everywhere reports whether a binding selects every namespace.
func (b *Binding) Everywhere() bool {
	if b == nil || b.NamespaceSelector == nil {
		return b == nil || b.Namespaces == nil
	}
	return len(b.NamespaceSelector.MatchLabels) == 0 && len(b.NamespaceSelector.MatchExpressions) == 0
}

// String returns the selector in the notation of kubectl --selector; "" for nil, and for a selector that matches
// everything.
func (s *LabelSelector) String() string {
	if s == nil {
		return ""
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		all = append(all, key+"="+s.MatchLabels[key])
	}
	for _, e := range s.MatchExpressions {
		switch e.Operator {
		case "In", "NotIn":
			all = append(all, fmt.Sprintf("%s %s (%s)", e.Key, strings.ToLower(e.Operator), strings.Join(e.Values, ",")))
		case "Exists":
			all = append(all, e.Key)
		case "DoesNotExist":
			all = append(all, "!"+e.Key)
		}
	}
	return strings.Join(all, ",")
}
