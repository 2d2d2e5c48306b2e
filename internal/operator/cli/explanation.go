package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

const mostProofs = 10

// Explanation prints the verdict, why, the evidence, what will happen and what would change it, as the daemon says.
func (p *Page) Explanation(e *adminv1.ExplainResponse) {
	colour := Heed
	if e.GetVerdict() == adminv1.Verdict_VERDICT_ALLOW &&
		!slices.ContainsFunc(e.GetPolicyAnswers(), func(a *adminv1.PolicyAnswer) bool {
			return a.GetAdmission() != adminv1.Admission_ADMISSION_ADMIT
		}) {
		colour = Good
	}
	p.PaintProse(colour, "", "%s", e.GetSummary())
	p.Gap()
	p.Prose("", "Why (%s): %s", e.GetReason(), e.GetRule())
	p.Gap()
	p.Line("Evidence:")
	p.evidence(e)
	policyAnswers(p, e)
	sentences(p, "What will happen:", e.GetConsequences())
	sentences(p, "What would change it:", e.GetRemedies())
}

// PoliciesDeny reports whether policies certainly deny the sandbox or a container.
func PoliciesDeny(e *adminv1.ExplainResponse) bool {
	return slices.ContainsFunc(e.GetPolicyAnswers(),
		func(a *adminv1.PolicyAnswer) bool { return a.GetAdmission() == adminv1.Admission_ADMISSION_DENY })
}

func policyAnswers(p *Page, e *adminv1.ExplainResponse) {
	if len(e.GetPolicyAnswers()) == 0 {
		return
	}
	p.Gap()
	p.Line("Policies:")
	for _, a := range e.GetPolicyAnswers() {
		what := "container " + a.GetContainer()
		switch {
		case a.GetCall() == "RunPodSandbox":
			what = "sandbox"
		case a.GetContainer() == "":
			what = "a container"
		}
		switch {
		case a.GetExemption() != "" && len(a.GetFindings()) > 0:
			p.Prose("  ", "%s: admitted (%s); the policies would deny or report a new one:", what, a.GetExemption())
		case a.GetExemption() != "":
			p.Prose("  ", "%s: admitted, policies are not compared (%s)", what, a.GetExemption())
		case a.GetAdmission() == adminv1.Admission_ADMISSION_ADMIT:
			p.PaintProse(Good, "  ", "%s: admitted", what)
		case a.GetAdmission() == adminv1.Admission_ADMISSION_DENY:
			p.PaintProse(Heed, "  ", "%s: denied", what)
		case slices.ContainsFunc(a.GetFindings(), notAsked):
			p.PaintProse(Heed, "  ", "%s: not known, because image review backends were not asked; use --ask", what)
		default:
			p.PaintProse(Heed, "  ", "%s: not known before the kubelet creates it", what)
		}
		for _, f := range a.GetFindings() {
			printFinding(p, f)
		}
	}
	if n := e.GetUnjudgedRestrictions(); n > 0 {
		p.Prose("  ", "This node cannot judge %s; pullgatectl policy list shows which.",
			Count(int(n), "restriction", "restrictions"))
	}
}

func notAsked(f *adminv1.Finding) bool { return f.GetReason() == "NOT_ASKED" && !f.GetAudit() }

func printFinding(p *Page, f *adminv1.Finding) {
	switch {
	case f.GetReason() != "" && f.GetAudit():
		p.Prose("    - ", "audit: %s", f.GetMessage())
	case f.GetReason() != "" || f.GetMessage() != "":
		p.Prose("    - ", "%s", f.GetMessage())
	case len(f.GetSigners()) > 0:
		p.Prose("    - ", "signed as policy %s requires by %s, digest %s", f.GetPolicy(), strings.Join(f.GetSigners(), "; "),
			f.GetDigest())
	case f.GetPolicy() != "":
		p.Prose("    - ", "accepted by policy %s", f.GetPolicy())
	}
}

func sentences(p *Page, title string, list []string) {
	if len(list) == 0 {
		return
	}
	p.Gap()
	p.Line("%s", title)
	for _, line := range list {
		p.Prose("  - ", "%s", line)
	}
}

func (p *Page) evidence(e *adminv1.ExplainResponse) {
	row := func(name, format string, args ...any) { p.Prose(fmt.Sprintf("  %-13s", name), format, args...) }
	facts := e.GetEvidence()
	switch id := e.GetPair().GetImageId(); {
	case facts.GetPresence() == adminv1.Presence_PRESENCE_UNSPECIFIED:
		row("image", "unknown: the runtime could not be asked")
	case id != "":
		row("image", "%s in %s", p.ID(id), e.GetPair().GetRepository())
	}
	if facts.GetById() {
		row("name", "an image ID, or not a name of the image")
	}
	listed := map[bool]string{true: ", repository on the allowlist"}[facts.GetAllowlisted()]
	row("policy", "%s%s", facts.GetPolicy(), listed)
	if facts.GetExemption() != "" {
		row("exempt", "%s", facts.GetExemption())
	}
	if m := facts.GetMark(); m != nil {
		row("preloaded", "%s, set by %s", p.lasting(m.GetSet()), origin(m.GetOrigin()))
	}
	p.recordRows(row, facts)
	for _, i := range facts.GetIntents() {
		state := "in progress"
		if i.GetEnded() != nil {
			state = "unknown outcome, answer lost " + p.ago(i.GetEnded())
		}
		row("pull", "%s, begun %s: %s", i.GetName(), p.ago(i.GetBegun()), state)
	}
	for _, name := range facts.GetRivals() {
		row("same image", "needs proof as %s", name)
	}
	for _, name := range facts.GetMarkedAs() {
		row("same image", "preloaded as %s", name)
	}
	if g := facts.GetGrant(); g != nil {
		by := ""
		if g.GetCredentialId() != "" {
			by = ", by credential " + p.ID(g.GetCredentialId())
		}
		row("grant", "%s%s", g.GetReason(), by)
	}
	for _, c := range facts.GetCredentials() {
		row("pod has", "credential %s%s: %s", p.ID(c.GetCredentialId()), ofSecrets(c.GetSecret()), standing(c.GetStanding()))
	}
	switch {
	case e.GetPod().GetName() == "" && e.GetPod().GetUid() == "":
	case !facts.GetCredentialsKnown():
		row("pod has", "credentials that are unknown, or not all known")
	case len(facts.GetCredentials()) == 0:
		row("pod has", "no credential for the image")
	}
	if pull := facts.GetPullPolicy(); pull != "" && pull != "unknown" {
		row("pull policy", "%s", pull)
	}
}

func (p *Page) recordRows(row func(name, format string, args ...any), facts *adminv1.Evidence) {
	r := facts.GetRecord()
	switch {
	case facts.GetUnreadable() != "":
		row("record", "unreadable: %s", facts.GetUnreadable())
	case r == nil && facts.GetPresence() != adminv1.Presence_PRESENCE_ABSENT:
		row("record", "none")
	case r == nil:
	case r.GetOpen():
		row("record", "open to every pod %s", p.lasting(r.GetOpened()))
	case len(r.GetOpenTo()) > 0:
		row("record", "open to the pods of %s %s, by %s", strings.Join(r.GetOpenTo(), ", "), p.lasting(r.GetOpened()),
			openedBy(r))
	case len(r.GetProofs()) == 0:
		row("record", "no proofs")
	}
	for i, proof := range r.GetProofs() {
		if i == mostProofs {
			row("proof", "%s", Count(len(r.GetProofs())-i, "other credential", "other credentials"))
			break
		}
		more := ""
		switch t := proof.GetExpires(); {
		case t == nil:
		case t.AsTime().After(p.Now):
			more += ", expires " + p.ago(t)
		default:
			more += ", expired " + p.ago(t)
		}
		if proof.GetDenied() != nil {
			more += ", denied by the registry " + p.ago(proof.GetDenied())
		}
		proved := "proved"
		if carriedOver(proof) {
			proved = "carried over, not yet confirmed by the registry; the Secret's earlier content proved"
		}
		row("proof", "credential %s%s: %s %s, last proved %s, last used %s%s", p.ID(proof.GetCredentialId()),
			ofSecrets(proof.GetSecrets()...),
			proved, p.ago(proof.GetFirstProved()), p.ago(proof.GetLastProved()), p.ago(proof.GetLastUsed()), more)
	}
	if r.GetRevoked() != nil {
		other := map[bool]string{true: "other "}[r.GetOpen() || len(r.GetOpenTo()) > 0 || len(r.GetProofs()) > 0]
		row("revoked", "%sproofs, or a preloaded mark, %s", other, p.ago(r.GetRevoked()))
	}
}

func carriedOver(p *adminv1.Proof) bool { return len(p.GetRotatedFrom()) > 0 }

func ofSecrets(secrets ...*adminv1.SecretRef) string {
	if names := secretNames(secrets); strings.Trim(names, ", ") != "" {
		return " of " + names
	}
	return ""
}

func standing(s adminv1.CredentialStanding) string {
	return cmp.Or(map[adminv1.CredentialStanding]string{
		adminv1.CredentialStanding_CREDENTIAL_STANDING_PROVED:   "proved access",
		adminv1.CredentialStanding_CREDENTIAL_STANDING_IN_GRACE: "proof expired, valid while the registry is unavailable",
		adminv1.CredentialStanding_CREDENTIAL_STANDING_EXPIRED:  "proof expired",
		adminv1.CredentialStanding_CREDENTIAL_STANDING_ROTATED: "will be carried over: the Secret proved access with its " +
			"earlier content",
	}[s], "not proved")
}
