package cli

import (
	"strings"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// VerifiedImage prints which rules about signatures an image meets, and its signatures. The sentences are from
// pullgate-policyd.
func (v View) VerifiedImage(p *Page, image string, r *adminv1.VerifyImageResponse) {
	if id := r.GetImage().GetImageId(); id != "" {
		p.Line("Image  %s, %s on this node", image, v.ID(id))
	} else {
		p.Line("Image  %s, not on this node; the one of the registry was verified", image)
	}
	p.Gap()
	if len(r.GetRules()) == 0 {
		p.Prose("", "No rule is for this image%s.", defaultText(r.GetDefaultRule()))
	}
	for _, rule := range r.GetRules() {
		verifiedRule(p, rule)
	}
	if len(r.GetSignatures()) == 0 {
		return
	}
	p.Gap()
	tableOf(p, []string{"COUNTS", "SIGNER", "SIGNS", "FOUND BY", "SIGNATURE", "WHY"}, r.GetSignatures(), func(s *adminv1.ImageSignature) []string {
		counts := "no"
		if s.GetCounts() {
			counts = "yes"
		}
		signer := s.GetSigner()
		if signer == "" {
			signer = "unknown"
		}
		return []string{counts, signer, v.ID(s.GetSubject()), s.GetFoundBy(), v.ID(s.GetDigest()), s.GetReason()}
	})
}

func defaultText(d *adminv1.VerifiedRule) string {
	switch {
	case d == nil:
		return ""
	case d.GetMet():
		return "; policy " + d.GetPolicy() + " allows such images (default: allow)"
	case d.GetAudit():
		return "; policy " + d.GetPolicy() + " reports such images (default: deny)"
	default:
		return "; policy " + d.GetPolicy() + " denies such images (default: deny)"
	}
}

func verifiedRule(p *Page, rule *adminv1.VerifiedRule) {
	name := rule.GetPolicy()
	if rule.GetRule() != "" {
		name += ", rule " + rule.GetRule()
	}
	if rule.GetAudit() {
		name += " (audit)"
	}
	if rule.GetMet() {
		p.Paint(Good, "Met      policy %s", name)
	} else {
		p.Paint(Heed, "Not met  policy %s", name)
	}
	if rule.GetRequires() != "" {
		p.Prose("         ", "requires %s", rule.GetRequires())
	}
	if rule.GetReason() != "" {
		p.Prose("         ", "%s: %s", rule.GetReason(), rule.GetMessage())
	}
	if len(rule.GetSigners()) > 0 {
		p.Prose("         ", "signed by %s", strings.Join(rule.GetSigners(), "; "))
	}
	if rule.GetDigest() != "" {
		p.Prose("         ", "signed digest %s", rule.GetDigest())
	}
}
