package requirement

import (
	"fmt"
	"slices"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// A Judgement is what rules say about an image. The zero value is about an image that no rule is for.
type Judgement struct {
	// Findings are about the rules that no signature decides. Those of rules in audit mode have Audit.
	Findings []admission.Finding
	// Signed are the rules that the signatures of the image decide.
	Signed []*Rule
}

// Judge returns what rules say about an image with this name in the pod. If the name is not known, a rule that can deny
// the image denies it with the reason FieldUnknown, also one about signatures.
func (a ImageRules) Judge(name imageref.Ref) (j Judgement) {
	for _, r := range a.Rules {
		denies, signed := decidedBy(r)
		switch {
		case a.Unknown && (denies || signed || r.RequireDigest || r.Default == DenyUnmatched):
			j.Findings = append(j.Findings, unnamed(r, name))
		case a.Unknown:
		default:
			j.judge(r, name, denies, signed)
		}
	}
	switch a.Default {
	case DenyUnmatched:
		j.Findings = append(j.Findings, a.DefaultRule.Finding(admission.Deny, admission.SignatureMissing, fmt.Sprintf(
			"image %q: no policy about signatures has a rule for it, and %s denies such images; use an image that a policy has a rule for", name, a.DefaultRule)))
	case AllowUnmatched:
		j.Findings = append(j.Findings, a.DefaultRule.Finding(admission.Admit, admission.SignatureMissing, fmt.Sprintf(
			"image %q: no policy about signatures has a rule for it, and %s allows such images", name, a.DefaultRule)))
	case NoDefault:
	}
	return j
}

// judge judges an image by a rule for its name.
func (j *Judgement) judge(r *Rule, name imageref.Ref, denies, signed bool) {
	byDigest := name.Name().IsDigest()
	if r.RequireDigest && !byDigest {
		j.Findings = append(j.Findings, r.Finding(admission.Deny, admission.DigestRequired, fmt.Sprintf(
			"image %q: %s requires that the image is named by a digest; write NAME@sha256:…", name, r)))
	}
	switch {
	case denies:
		j.Findings = append(j.Findings, r.Finding(admission.Deny, admission.SignatureMissing, fmt.Sprintf("image %q: %s", name, denial(r))))
	case signed:
		j.Signed = append(j.Signed, r)
	case !r.RequireDigest || byDigest:
		j.Findings = append(j.Findings, r.Finding(admission.Admit, "", fmt.Sprintf("image %q: %s requires no signature", name, r)))
	}
}

// decidedBy reports whether a rule denies every image, and whether signatures decide it.
func decidedBy(r *Rule) (denies, signed bool) {
	signed = r.NeedsSignature()
	return r.Requirement != nil && !signed && !r.Requirement.Met(func(*Signer) bool { return false }), signed
}

func unnamed(r *Rule, name imageref.Ref) admission.Finding {
	what := "an image of the container has a name that is not known"
	if !name.Empty() {
		what = fmt.Sprintf("image %q is an image ID or not a valid name", short(name.String()))
	}
	return r.Finding(admission.Deny, admission.FieldUnknown,
		fmt.Sprintf("%s, and %s may be for it; name the image by its repository with a tag or digest", what, r))
}

// denial returns why a rule denies every image.
func denial(r *Rule) string {
	if s := r.Requirement.Static; s != nil && s.Message != "" {
		return fmt.Sprintf("%s denies it: %s", r, short(s.Message))
	}
	return r.String() + " denies it, whatever its signatures are"
}

// NotMet returns the finding for an image whose signatures do not meet a rule. reason and text are those of the
// verification.
func (r *Rule) NotMet(name imageref.Ref, reason, text string) admission.Finding {
	return r.Finding(admission.Deny, reasonOf(reason), fmt.Sprintf(
		"image %q: %s is not met: %s; required: %s", name, r, short(text), short(r.Requirement.String())))
}

// reasonOf returns the reason for the answer to a call. A registry that gives no signatures, or too many to read, is
// the same as none.
func reasonOf(verified string) admission.Reason {
	reason := admission.Reason(verified)
	if slices.Contains([]admission.Reason{admission.SignatureInvalid, admission.IdentityMismatch, admission.ContentMismatch}, reason) {
		return reason
	}
	return admission.SignatureMissing
}

// Finding returns a finding of a rule.
func (r *Rule) Finding(answer admission.Answer, reason admission.Reason, message string) admission.Finding {
	return admission.Finding{
		Validator: admission.SignatureValidator, Policy: r.Policy, Rule: r.Name, Answer: answer, Reason: reason, Message: message, Audit: r.Mode == Audit,
	}
}

// String returns a rule and its policy for a sentence.
func (r *Rule) String() string {
	if r.Name == "" {
		return "policy " + r.Policy
	}
	return fmt.Sprintf("rule %s of policy %s", r.Name, r.Policy)
}

// MaxText bounds what a sentence quotes, in characters.
const MaxText = 300

func short(s string) string { return safetext.Shorten(s, MaxText) }
