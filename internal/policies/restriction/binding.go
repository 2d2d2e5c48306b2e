package restriction

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

type binding struct {
	namespaces []string
	selector   labels.Selector
}

// A Bound is a binding of another kind of policy. The zero value is bound to all namespaces.
type Bound struct{ binding }

// CompileBinding returns a binding; nil is one to all namespaces.
func CompileBinding(at *field.Path, b *Binding) (Bound, field.ErrorList) {
	c := compiler{out: &policy{}}
	if b != nil {
		c.binding(at, b)
	}
	return Bound{c.out.binding}, c.errs
}

// Includes reports whether the namespace of a pod is bound; known is false if that is not known.
func (b *Bound) Includes(p *admission.Pod) (included, known bool) {
	i := b.includes(p)
	return i == yes, i != unknown
}

// Summary returns what it is bound to.
func (b *Bound) Summary() (s Summary) {
	s.Everywhere, s.Namespaces = b.everywhere(), b.namespaces
	if b.selector != nil {
		s.Selector = b.selector.String()
	}
	return s
}

type inclusion uint8

const (
	unknown inclusion = iota // the name or the labels of the namespace decide, and are not known
	no
	yes
)

func (b *binding) includes(p *admission.Pod) inclusion {
	switch {
	case b.everywhere(), slices.Contains(b.namespaces, p.Namespace):
		return yes // whatever the labels are
	case b.namespaces != nil && p.Namespace == "":
		return unknown
	case b.selector == nil:
		return no
	}
	switch known, ok := p.NamespaceLabels.Effective(); {
	case !ok && p.NamespaceLabels.State() == admission.StateUnknown:
		return unknown
	case b.selector.Matches(labels.Set(known)):
		return yes
	}
	return no
}

func (b *binding) everywhere() bool {
	return b.selector == nil && b.namespaces == nil || b.selector != nil && b.selector.Empty()
}

func (c *compiler) binding(p *field.Path, b *Binding) {
	switch b.Mode {
	case BindingModeAccept:
		c.out.accept = true
	case "", BindingModeDrop:
	default:
		c.errs = append(c.errs, field.NotSupported(p.Child("mode"), b.Mode,
			[]BindingMode{BindingModeAccept, "Allow", BindingModeDrop}))
	}
	notEmpty(c, place{path: p.String()}, "namespaces", b.Namespaces)
	for i, ns := range b.Namespaces {
		c.each(p.Child("namespaces").Index(i), ns, validation.IsDNS1123Label(ns))
	}
	c.out.binding.namespaces = b.Namespaces
	if b.NamespaceSelector == nil {
		return
	}
	c.selector(p.Child("namespaceSelector"), b.NamespaceSelector)
	compiled, err := metav1.LabelSelectorAsSelector(b.NamespaceSelector)
	switch {
	case err == nil:
		c.out.binding.selector = compiled
		if !compiled.Empty() {
			c.keep(&leaf{path: pathNamespaceSelector, field: fieldAt[pathNamespaceSelector]})
		}
	case len(c.errs) == 0: // the checks above find the same with better words
		c.invalid(p.Child("namespaceSelector"), "selector", err.Error())
	}
}

func (c *compiler) selector(p *field.Path, s *metav1.LabelSelector) {
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		c.label(p.Child("matchLabels").Key(key), key, s.MatchLabels[key])
	}
	for i, e := range s.MatchExpressions {
		at := p.Child("matchExpressions").Index(i)
		c.label(at, e.Key, e.Values...)
		switch e.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			if len(e.Values) == 0 {
				c.errs = append(c.errs, field.Required(at.Child("values"), "In and NotIn need values"))
			}
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			if len(e.Values) > 0 {
				c.invalid(at.Child("values"), e.Values, "must be absent with Exists and DoesNotExist")
			}
		default:
			c.errs = append(c.errs, field.NotSupported(at.Child("operator"), e.Operator,
				[]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}))
		}
	}
}

func (c *compiler) label(p *field.Path, key string, values ...string) {
	c.each(p, key, validation.IsQualifiedName(key))
	for _, v := range values {
		c.each(p, v, validation.IsValidLabelValue(v))
	}
}
