package requirement

import (
	"cmp"
	"slices"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// Policies are what the files of one dialect say. They are immutable.
type Policies struct {
	// Rules are in the order of the names of policies, and in a policy in its own order.
	Rules []Rule
	// Notes are sentences about fields that are valid and have no effect, or another one than in the program whose
	// dialect it is. Each begins with the name of the file and the path of the field.
	Notes []string
	// Count is the number of policies.
	Count int
	// Webhook is what the policies with rules require of a webhook that judges them.
	Webhook Webhook
}

// A Webhook has fields of a webhook configuration. They are zero if no policy has them.
type Webhook struct {
	// FailurePolicy is Fail if a policy says so, and otherwise Ignore.
	FailurePolicy string
	// TimeoutSeconds is the longest of all policies, from 1 to 30.
	TimeoutSeconds int64
}

// Len returns the number of policies. Nil Policies have none.
func (p *Policies) Len() int {
	if p == nil {
		return 0
	}
	return p.Count
}

// A Set has the rules of all policies. It is immutable, and may be used concurrently. A nil Set has no rules.
type Set struct {
	rules []Rule
}

// NewSet returns the set of policies; nil ones are ignored. trustedRoot identifies the trusted root, for the hashes of
// the requirements that use it.
func NewSet(trustedRoot string, all ...*Policies) *Set {
	s := &Set{}
	for _, p := range all {
		if p != nil {
			s.rules = append(s.rules, p.Rules...)
		}
	}
	slices.SortStableFunc(s.rules, func(a, b Rule) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Policy, b.Policy)) })
	for i := range s.rules {
		if r := &s.rules[i]; r.Requirement != nil {
			r.Hash = r.Requirement.Hash(trustedRoot)
		}
	}
	return s
}

// Rules returns all rules. The caller must not modify them.
func (s *Set) Rules() []Rule {
	if s == nil {
		return nil
	}
	return s.rules
}

// ImageRules are what the rules of a set say about an image of a pod.
type ImageRules struct { //nolint:recvcheck // setDefault completes a new value
	// Rules are those that the image must meet, each in its own mode. The caller must not modify them.
	Rules []*Rule
	// Unknown says that the name of the image is not known, or can mean an image ID. Rules then has every rule for the
	// namespace.
	Unknown bool
	// Default is set if no rule matches the image and a rule for the namespace says what happens then. DefaultRule is
	// one that says it, and an enforced one if there is any. For an enforced default only enforced rules count as
	// matching, and for both only rules that require a signature or have a default themselves.
	Default     Default
	DefaultRule *Rule
}

// For returns what a set says about an image of a pod in a namespace. The namespace "" is an unknown one, which is in
// the scope of every rule that does not exclude all namespaces.
func (s *Set) For(namespace string, image imageref.Ref) ImageRules {
	a := ImageRules{Unknown: !image.Parsed() || image.MayBeImageID()}
	var matched, audited bool // by an enforced rule, by any rule
	names := spellings(image.Name())
	for i := range s.Rules() {
		r := &s.rules[i]
		if !r.Scope.Includes(namespace) || !a.Unknown && !r.matches(names) {
			continue
		}
		a.Rules = append(a.Rules, r)
		if r.Requirement != nil || r.Default != NoDefault {
			matched = matched || r.Mode == Enforce
			audited = true
		}
	}
	if !a.Unknown && !matched {
		a.setDefault(s.Rules(), namespace, audited)
	}
	return a
}

func (r *Rule) matches(names []string) bool {
	return slices.ContainsFunc(r.Images, func(p Pattern) bool { return p.matchesAny(names) })
}

// setDefault sets the default of the rules for a namespace. A denial comes before an allowance, and an enforced one
// before an audited one.
func (a *ImageRules) setDefault(rules []Rule, namespace string, onlyEnforced bool) {
	for i := range rules {
		r := &rules[i]
		if r.Default == NoDefault || r.Default < a.Default || onlyEnforced && r.Mode != Enforce || !r.Scope.Includes(namespace) {
			continue
		}
		if r.Default > a.Default || r.Mode < a.DefaultRule.Mode {
			a.Default, a.DefaultRule = r.Default, r
		}
	}
}
