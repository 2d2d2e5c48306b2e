package verify

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// rank orders reasons; of several the highest one is reported. What a push, or a registry that does not serve what it
// should, can cause is above a registry that does not answer: that may be forgiven for a while, a denial is not.
func rank(reason string) int {
	return slices.Index([]string{
		"", requirement.SignatureMissing, requirement.AttestationMissing, requirement.SignatureInvalid,
		requirement.IdentityMismatch, requirement.ConditionNotMet, requirement.RegistryDenied,
		requirement.RegistryUnavailable, requirement.ContentMismatch, requirement.LimitExceeded,
	}, reason)
}

func (r *run) result(w *requirement.Rule) requirement.Result {
	out := requirement.Result{Requirement: w.Hash, Met: r.met(w)}
	var missing []*leaf
	for _, s := range w.Requirement.Signers() {
		l := r.leaves[s]
		out.Conditions = append(out.Conditions, l.seen...)
		if l.signer == "" {
			if !l.evidence {
				missing = append(missing, l)
			}
			continue
		}
		if s.Image == nil && l.digest != "" { // it was verified
			out.Signers = append(out.Signers, l.signer)
		}
		if out.Digest == "" {
			out.Digest = l.digest
		}
		if s.Statement != nil && l.digest != "" {
			out.Attestations = append(out.Attestations,
				requirement.Attestation{PredicateType: s.Statement.PredicateType, Digest: l.attested})
		}
		if s.Statement != nil || s.Image != nil {
			if u := l.evaluated.Until; out.Until.IsZero() || !u.IsZero() && u.Before(out.Until) {
				out.Until = u
			}
			out.ReadsClock = out.ReadsClock || l.evaluated.Open
		}
	}
	out.Signers = unique(out.Signers)
	if out.Met {
		if out.Values = r.values; r.unfilled != nil {
			m := missOf(r.unfilled)
			out.Reason, out.Message = m.reason, m.text
		}
		return out
	}
	name := clean(r.image.Name.String())
	if !w.Requirement.NeedsSignature() {
		out.Reason = requirement.SignatureMissing
		out.Message = fmt.Sprintf("the policy does not allow %s%s", name, static(w.Requirement))
		return out
	}
	out.Reason = requirement.SignatureMissing
	for _, l := range missing {
		if l.signed.Statement != nil && rank(out.Reason) < rank(requirement.AttestationMissing) {
			out.Reason = requirement.AttestationMissing
		}
		if rank(l.miss.reason) > rank(out.Reason) {
			out.Reason = l.miss.reason
		}
	}
	p := r.problem(missing)
	if len(r.links) == 0 || rank(p.reason) > rank(out.Reason) {
		out.Reason = p.reason
		out.Message = safetext.Shorten(fmt.Sprintf("signatures of %s could not be verified: %s", name, p.text), maxMessage)
		return out
	}
	imageFailed := func(l *leaf) bool { return l.signed.Image != nil && l.miss.reason == out.Reason }
	if out.Reason == requirement.ConditionNotMet || slices.ContainsFunc(missing, imageFailed) {
		out.Message = safetext.Shorten(name+": "+strings.Join(texts(missing), "; "), maxMessage)
		return out
	}
	out.Message = safetext.Shorten(sentence(name, w.Requirement, out.Signers, missing, p.text), maxMessage)
	return out
}

// problem returns the problem that concerns leaves most; the zero problem if there is none and the image was found.
func (r *run) problem(missing []*leaf) (worst problem) {
	for _, p := range r.problems {
		there := func(l *leaf) bool { return l.signed.Repository == p.repository }
		concerns := p.repository == r.repository || slices.ContainsFunc(missing, there)
		if concerns && !(p.resolving && len(r.links) > 0) && rank(p.reason) > rank(worst.reason) {
			worst = p
		}
	}
	if worst.reason == "" && len(r.links) == 0 { // registries answer so to a credential that may not see it, too
		const text = "the registry does not have the image, or does not show it to this credential"
		return problem{reason: requirement.RegistryDenied, text: text}
	}
	return worst
}

func sentence(name string, want *requirement.Requirement, signers []string, missing []*leaf, problem string) string {
	var b strings.Builder
	switch {
	case len(want.Signers()) == 1 && want.ReadsStatements():
		fmt.Fprintf(&b, "%s has no %s", name, shortDigests(strings.TrimPrefix(want.String(), "an ")))
	case len(want.Signers()) == 1:
		fmt.Fprintf(&b, "%s is not signed with %s", name, shortDigests(want.String()))
	default:
		fmt.Fprintf(&b, "%s needs signatures of %s; %d found", name, shortDigests(want.String()), len(signers))
		if len(signers) > 0 {
			fmt.Fprintf(&b, " (%s)", shortDigests(strings.Join(signers, ", ")))
		}
		var names []string
		for _, l := range missing {
			names = append(names, shortDigests(l.signed.String()))
		}
		fmt.Fprintf(&b, ", %d missing (%s)", len(missing), strings.Join(names, ", "))
	}
	switch texts := texts(missing); {
	case texts != nil:
		what := "a signature"
		if want.ReadsStatements() {
			what = "one"
		}
		fmt.Fprintf(&b, "; %s that was found does not count: %s", what, strings.Join(texts, "; "))
	case problem != "":
		fmt.Fprintf(&b, "; %s", problem)
	case len(signers) > 0:
		b.WriteString("; no other signature was found")
	case want.ReadsStatements():
		b.WriteString("; none was found")
	default:
		b.WriteString("; no signature was found")
	}
	return b.String()
}

func texts(missing []*leaf) (all []string) {
	for _, l := range missing {
		if l.miss.text != "" {
			all = append(all, l.miss.text)
		}
	}
	return unique(all)
}

var longDigest = regexp.MustCompile(`(sha256:[0-9a-f]{12})[0-9a-f]+`)

func shortDigests(s string) string { return longDigest.ReplaceAllString(s, "$1") }

func static(r *requirement.Requirement) string {
	if r.Static != nil && r.Static.Message != "" {
		return ": " + clean(r.Static.Message)
	}
	for i := range r.Of {
		if text := static(&r.Of[i]); text != "" {
			return text
		}
	}
	return ""
}

// maxMessage bounds messages in characters, so that a kubelet does not cut them in its events.
const maxMessage = 900
