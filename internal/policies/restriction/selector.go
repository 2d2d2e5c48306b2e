package restriction

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A LabelSelector is a selector as files have it.
type LabelSelector = metav1.LabelSelector

// A Selector selects by labels. The zero value selects everything.
type Selector struct{ compiled labels.Selector }

// CompileSelector returns a selector; nil selects everything.
func CompileSelector(at *field.Path, s *LabelSelector) (Selector, field.ErrorList) {
	if s == nil {
		return Selector{}, nil
	}
	c := compiler{}
	c.selector(at, s)
	compiled, err := metav1.LabelSelectorAsSelector(s)
	if err != nil && len(c.errs) == 0 { // the checks above find the same with better words
		c.invalid(at, "selector", err.Error())
	}
	return Selector{compiled}, c.errs
}

// String returns the selector in the form of kubectl; "" if it selects everything.
func (s Selector) String() string {
	if s.compiled == nil {
		return ""
	}
	return s.compiled.String()
}

// MaySelect reports whether something with these labels is selected. Unless all of them are known, others than these
// can have any value.
func (s Selector) MaySelect(known map[string]string, all bool) bool {
	if s.compiled == nil {
		return true
	}
	requirements, selectable := s.compiled.Requirements()
	for i := range requirements {
		r := &requirements[i]
		if _, ok := known[r.Key()]; (ok || all) && !r.Matches(labels.Set(known)) {
			return false
		}
	}
	return selectable
}

// ReadsOther reports whether it selects by another label than one.
func (s Selector) ReadsOther(label string) bool {
	if s.compiled == nil {
		return false
	}
	requirements, _ := s.compiled.Requirements()
	return slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Key() != label })
}
