package requirement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// A Mode says what follows if a rule is not met. The zero Mode enforces.
type Mode uint8

// The modes.
const (
	Enforce Mode = iota
	Audit
)

func (m Mode) String() string { return [...]string{"Enforce", "Audit"}[m] }

// A Default says what happens to images that no rule matches.
type Default uint8

// The defaults. NoDefault admits, as AllowUnmatched does, which also reports the image.
const (
	NoDefault Default = iota
	AllowUnmatched
	DenyUnmatched
)

// String returns the value in policies, "" if there is none.
func (d Default) String() string { return [...]string{"", "allow", "deny"}[d] }

// A Rule is what a policy requires of the images that it is for.
type Rule struct {
	Kind, Policy, File string // of the policy: its kind, name and file
	Name               string // of the rule in the policy
	Mode               Mode
	Scope              Scope
	Images             []Pattern // The rule is for an image that matches one of them.
	// Requirement is nil if the rule only requires a digest or has a default. A Requirement that a static authority
	// decides is not nil; see NeedsSignature.
	Requirement *Requirement
	// Object has conditions on the pod, which only a webhook judges. Selects has conditions without which the rule is not
	// for a pod, so that only a webhook enforces the rule; see AtNode.
	Object, Selects *Validation
	// Partly says that the rule can be not for an image that matches Images: expressions decide. Default does not count
	// such a match.
	Partly bool

	Mutation      *Mutation // of pods, in the webhook; nil if there is none
	RequireDigest bool      // The pod must name the image by a digest.
	MutateDigest  bool      // The webhook adds the digest to an image of a pod that has only a tag.
	FailClosed    bool      // The failure policy is Fail: without a digest that it should get, a pod is denied.
	Default       Default   // for images in the scope that match no rule of any policy
	PodsOnly      bool      // The rule is not for pod templates of other objects.
	Custom        *Custom   // The rule is for custom resources, and not for pods. Scope has no meaning then.
	Hash          string    // of Requirement, "" if it is nil; NewSet sets it
}

// NeedsSignature reports whether a signature decides whether an image meets the rule; see Requirement.NeedsSignature.
func (r *Rule) NeedsSignature() bool { return r.Requirement != nil && r.Requirement.NeedsSignature() }

// AtNode reports whether nodes enforce the rule.
func (r *Rule) AtNode() bool { return r.Custom == nil && r.Selects == nil }

// Requires describes what the rule requires, "" if it only requires a digest or has a default.
func (r *Rule) Requires() string {
	var all []string
	if r.Requirement != nil {
		all = append(all, r.Requirement.String())
	}
	if r.Object != nil {
		all = append(all, "a pod that no condition denies, which the webhook judges")
	}
	return strings.Join(all, "; ")
}

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
			var names []string
			for _, n := range namespaces {
				names = append(names, n.String())
			}
			if namespaces != nil { // otherwise every namespace
				each = append(each, strings.Join(names, ", "))
			}
		}
		texts[i] = cmp.Or(strings.Join(each, " and "), "all")
	}
	return strings.Join(texts, ", ")
}

// Includes reports whether pods of a namespace are in the scope. "" is an unknown one, which is included unless every
// namespace is excluded.
func (s Scope) Includes(namespace string) bool {
	return (s.Include == nil || selects(s.Include, namespace, true)) && !selects(s.Exclude, namespace, false)
}

func selects(alternatives [][]Namespaces, namespace string, unknown bool) bool {
	excludes := func(n Namespaces) bool {
		if n != nil && namespace == "" {
			return !unknown
		}
		return n != nil && !slices.ContainsFunc(n, func(t Text) bool { return t.Matches(namespace) })
	}
	return slices.ContainsFunc(alternatives, func(all []Namespaces) bool { return !slices.ContainsFunc(all, excludes) })
}

// A Judgement is what rules say about an image. The zero value is about an image that no rule is for.
type Judgement struct {
	Findings []admission.Finding // about the rules that no signature decides
	Signed   []*Rule             // those that the signatures of the image decide
}

// Judge returns what rules say about an image with this name in the pod. If the name is not known, a rule that can deny
// the image denies it with the reason FieldUnknown, also one about signatures.
func (a ImageRules) Judge(name imageref.Ref) (j Judgement) {
	for _, r := range a.Rules {
		signed := r.NeedsSignature()
		denies := r.Requirement != nil && !signed && !r.Requirement.Met(func(*Signer) bool { return false })
		switch {
		case a.Unknown && (denies || signed || r.RequireDigest || r.Default == DenyUnmatched):
			j.Findings = append(j.Findings, r.Unnamed(name))
		case a.Unknown:
		default:
			j.judge(r, name, denies, signed, r.RequireDigest && !a.Pinned)
		}
	}
	if a.Default == NoDefault {
		return j
	}
	answer, does := admission.Admit, "allows such images"
	if a.Default == DenyUnmatched {
		answer, does = admission.Deny, "denies such images; use an image that a policy has a rule for"
	}
	j.Findings = append(j.Findings, a.DefaultRule.Finding(answer, admission.SignatureMissing, fmt.Sprintf(
		"image %q: no policy about signatures has a rule for it, and %s %s", name, a.DefaultRule, does)))
	return j
}

func (j *Judgement) judge(r *Rule, name imageref.Ref, denies, signed, requiresDigest bool) {
	byDigest := name.Name().IsDigest()
	if requiresDigest && !byDigest {
		j.Findings = append(j.Findings, r.Finding(admission.Deny, admission.DigestRequired, fmt.Sprintf(
			"image %q: %s requires that the image is named by a digest; write NAME@sha256:…", name, r)))
	}
	switch {
	case denies:
		why := r.String() + " denies it, whatever its signatures are"
		if s := r.Requirement.Static; s != nil && s.Message != "" {
			why = fmt.Sprintf("%s denies it: %s", r, short(s.Message))
		}
		j.Findings = append(j.Findings,
			r.Finding(admission.Deny, admission.SignatureMissing, fmt.Sprintf("image %q: %s", name, why)))
	case signed:
		j.Signed = append(j.Signed, r)
	case r.MutateDigest && r.Requirement == nil && !r.RequireDigest: // it requires nothing
	case !requiresDigest || byDigest:
		j.Findings = append(j.Findings,
			r.Finding(admission.Admit, "", fmt.Sprintf("image %q: %s requires no signature", name, r)))
	}
}

// Unnamed returns the finding for an image whose name is not known.
func (r *Rule) Unnamed(name imageref.Ref) admission.Finding {
	what := "an image of the container has a name that is not known"
	if !name.Empty() {
		what = fmt.Sprintf("image %q is an image ID or not a valid name", short(name.String()))
	}
	return r.Finding(admission.Deny, admission.FieldUnknown,
		fmt.Sprintf("%s, and %s may be for it; name the image by its repository with a tag or digest", what, r))
}

// NotMet returns the finding for an image that does not meet a rule by a verification with a reason and a text.
func (r *Rule) NotMet(name imageref.Ref, reason, text string) admission.Finding {
	return r.Finding(admission.Deny, reasonOf(reason), fmt.Sprintf(
		"image %q: %s is not met: %s; required: %s", name, r, short(text), short(r.Requirement.String())))
}

// reasonOf returns the reason of a finding. No access to signatures, or too many, is the same as none.
func reasonOf(verified string) admission.Reason {
	if slices.Contains([]string{
		SignatureInvalid, IdentityMismatch, ContentMismatch, AttestationMissing, ConditionNotMet,
	}, verified) {
		return admission.Reason(verified)
	}
	return admission.SignatureMissing
}

// Finding returns a finding of a rule.
func (r *Rule) Finding(answer admission.Answer, reason admission.Reason, message string) admission.Finding {
	return admission.Finding{
		Validator: admission.SignatureValidator, Policy: r.Policy, Rule: r.Name, Answer: answer, Reason: reason,
		Message: message, Audit: r.Mode == Audit,
	}
}

func (r *Rule) String() string {
	if r.Name == "" {
		return "policy " + r.Policy
	}
	return fmt.Sprintf("rule %s of policy %s", r.Name, r.Policy)
}

// MaxText bounds what a sentence quotes, in characters.
const MaxText = 300

func short(s string) string { return safetext.Shorten(s, MaxText) }

// Policies are what the files of one dialect say. They are immutable.
type Policies struct {
	// Rules are in the order of the names of policies, and in a policy in its own order.
	Rules  []Rule
	Custom []Rule // those about custom resources, in the same order
	// Notes are sentences about fields that are valid and have no effect, or another one than in the program whose
	// dialect it is. Each begins with the name of the file and the path of the field.
	Notes   []string
	Count   int     // of policies
	Webhook Webhook // what the policies with rules require of a webhook that judges them
}

// A Webhook has fields of a webhook configuration. They are zero if no policy has them.
type Webhook struct {
	FailurePolicy  string // Fail if a policy says so, and otherwise Ignore
	TimeoutSeconds int64  // the longest of all policies, from 1 to 30
}

// Merge adds what another policy requires.
func (w *Webhook) Merge(o Webhook) {
	if w.FailurePolicy != "Fail" {
		w.FailurePolicy = cmp.Or(o.FailurePolicy, w.FailurePolicy)
	}
	w.TimeoutSeconds = max(w.TimeoutSeconds, o.TimeoutSeconds)
}

// A Set has the rules of all policies. It is immutable, and may be used concurrently. A nil Set has no rules.
type Set struct{ rules []Rule }

// NewSet returns the set of policies. trustedRoot identifies the trusted root, for the hashes of requirements.
func NewSet(trustedRoot string, all ...*Policies) *Set {
	lists := make([][]Rule, len(all))
	for i, p := range all {
		lists[i] = p.Rules
	}
	return newSet(trustedRoot, lists)
}

func newSet(trustedRoot string, lists [][]Rule) *Set {
	s := &Set{rules: slices.Concat(lists...)}
	slices.SortStableFunc(s.rules,
		func(a, b Rule) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Policy, b.Policy)) })
	for i := range s.rules {
		if r := &s.rules[i]; r.Requirement != nil {
			r.Hash = r.Requirement.Hash(trustedRoot)
		}
	}
	return s
}

// AtNode returns the rules that a node enforces. Their order is kept.
func (s *Set) AtNode() *Set {
	if s == nil {
		return nil
	}
	return &Set{slices.DeleteFunc(slices.Clone(s.rules), func(r Rule) bool { return !r.AtNode() })}
}

// Rules returns all rules. The caller must not modify them.
func (s *Set) Rules() []Rule {
	if s == nil {
		return nil
	}
	return s.rules
}

// ImageRules are what the rules of a set say about an image of a pod.
type ImageRules struct {
	// Rules are those that the image must meet, each in its own mode. The caller must not modify them.
	Rules []*Rule
	// Unknown says that the name is not known, or can mean an image ID. Rules has every rule for the namespace then.
	Unknown bool
	// Pinned says that a pod with the image gets its digest from the webhook later: the image is in a template of pods,
	// or in a file. No rule requires it there.
	Pinned bool
	// Default is set if no rule matches the image and a rule for the namespace says what happens then. DefaultRule is
	// one that says it, and an enforced one if there is any. For an enforced default only enforced rules count as
	// matching, and for both only rules that require a signature or have a default themselves, and are not Partly.
	Default     Default
	DefaultRule *Rule
}

// AddsDigest reports whether a rule adds the digest to the image.
func (a ImageRules) AddsDigest() bool {
	return slices.ContainsFunc(a.Rules, func(r *Rule) bool { return r.MutateDigest })
}

// For returns what a set says about an image of a pod in a namespace. The namespace "" is an unknown one, which is in
// the scope of every rule that does not exclude all namespaces.
func (s *Set) For(namespace string, image imageref.Ref) ImageRules {
	return candidates{set: s.Rules(), namespace: namespace}.apply(image)
}

// candidates are the rules that can be for an image, without memory of their own: the chosen ones, else those of a set
// for a namespace.
type candidates struct {
	chosen    []*Rule
	set       []Rule
	namespace string
}

// at returns nil for a rule of the set that is for other namespaces.
func (c candidates) at(i int) *Rule {
	switch {
	case c.chosen != nil:
		return c.chosen[i]
	case c.set[i].Scope.Includes(c.namespace):
		return &c.set[i]
	}
	return nil
}

func (c candidates) apply(image imageref.Ref) ImageRules {
	a := ImageRules{Unknown: !image.Parsed() || image.MayBeImageID()}
	var matched, audited bool // by an enforced rule, by any rule
	names := spellings(image.Name())
	matches := func(p Pattern) bool { return p.matchesAny(names) }
	n := max(len(c.chosen), len(c.set))
	for i := range n {
		r := c.at(i)
		if r == nil || !a.Unknown && !slices.ContainsFunc(r.Images, matches) {
			continue
		}
		a.Rules = append(a.Rules, r)
		if !r.Partly && (r.Requirement != nil || r.Default != NoDefault) {
			matched = matched || r.Mode == Enforce
			audited = true
		}
	}
	if a.Unknown || matched {
		return a
	}
	for i := range n { // a denial before an allowance, an enforced one before an audited one
		r := c.at(i)
		if r == nil || r.Default == NoDefault || r.Default < a.Default || audited && r.Mode != Enforce {
			continue
		}
		if r.Default > a.Default || r.Mode < a.DefaultRule.Mode {
			a.Default, a.DefaultRule = r.Default, r
		}
	}
	return a
}
