package requirement

import (
	"slices"
	"strings"
)

// A Mode says what follows if a rule is not met. The zero Mode enforces.
type Mode uint8

// The modes.
const (
	Enforce Mode = iota
	Audit
)

// String returns the name of the mode.
func (m Mode) String() string {
	if m == Audit {
		return "Audit"
	}
	return "Enforce"
}

// A Default says what happens to images that no rule matches.
type Default uint8

// The defaults. NoDefault admits, as AllowUnmatched does, which also reports the image.
const (
	NoDefault Default = iota
	AllowUnmatched
	DenyUnmatched
)

// String returns the value in policies, "" if there is none.
func (d Default) String() string {
	switch d {
	case AllowUnmatched:
		return "allow"
	case DenyUnmatched:
		return "deny"
	case NoDefault:
	}
	return ""
}

// A Rule is what a policy requires of the images that it is for.
type Rule struct {
	// Kind is the kind of the policy, and Policy its name. Name is the name of the rule in the policy.
	Kind, Policy, Name string
	// File is the name of the policy's file.
	File string
	Mode Mode
	// Scope says which pods the rule is for.
	Scope Scope
	// Images are patterns. The rule is for an image that matches one of them.
	Images []Pattern
	// Requirement is nil if the rule only requires a digest or has a default. A Requirement that a static authority
	// decides is not nil; see NeedsSignature.
	Requirement *Requirement
	// RequireDigest requires that the pod names the image by a digest.
	RequireDigest bool
	// Default is for images in the scope that match no rule of any policy.
	Default Default
	// PodsOnly says that the rule is not for pod templates of other objects.
	PodsOnly bool
	// Hash is the hash of Requirement. NewSet sets it; it is "" if Requirement is nil.
	Hash string
}

// NeedsSignature reports whether a signature decides whether an image meets the rule; see Requirement.NeedsSignature.
func (r *Rule) NeedsSignature() bool { return r.Requirement != nil && r.Requirement.NeedsSignature() }

// Namespaces are names of namespaces, of which one must match; nil includes every namespace.
type Namespaces []Text

// A Scope selects namespaces: those of Include, and all of them if it is nil, without those of Exclude. Both are lists
// of alternatives, each of which selects a namespace that all of its Namespaces include.
type Scope struct {
	Include, Exclude [][]Namespaces
}

// String describes the scope in words: "all", "team-a, team-b", "all except kube-system".
func (s Scope) String() string {
	text := "all"
	if s.Include != nil {
		text = alternatives(s.Include)
	}
	if len(s.Exclude) > 0 {
		text += " except " + alternatives(s.Exclude)
	}
	return text
}

func alternatives(list [][]Namespaces) string {
	texts := make([]string, len(list))
	for i, all := range list {
		var each []string
		for _, namespaces := range all {
			if namespaces == nil {
				continue // every namespace
			}
			names := make([]string, len(namespaces))
			for j, n := range namespaces {
				names[j] = n.String()
			}
			each = append(each, strings.Join(names, ", "))
		}
		if texts[i] = strings.Join(each, " and "); len(each) == 0 {
			texts[i] = "all"
		}
	}
	return strings.Join(texts, ", ")
}

// Includes reports whether pods of a namespace are in the scope. The namespace "" is an unknown one. It is included
// unless every namespace is excluded.
func (s Scope) Includes(namespace string) bool {
	return (s.Include == nil || selects(s.Include, namespace, true)) && !selects(s.Exclude, namespace, false)
}

func selects(alternatives [][]Namespaces, namespace string, unknown bool) bool {
	return slices.ContainsFunc(alternatives, func(all []Namespaces) bool {
		return !slices.ContainsFunc(all, func(n Namespaces) bool { return !n.include(namespace, unknown) })
	})
}

func (n Namespaces) include(namespace string, unknown bool) bool {
	switch {
	case n == nil:
		return true
	case namespace == "":
		return unknown
	}
	return slices.ContainsFunc(n, func(t Text) bool { return t.Matches(namespace) })
}
