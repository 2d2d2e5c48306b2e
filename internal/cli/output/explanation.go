package output

import (
	"strings"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// mostProofs is how many credentials of others an explanation names. A record has up to 100.
const mostProofs = 10

// Explanation answers whether the pod may use the image of this name, as a colleague would: the verdict, why, what the
// pod meets, and what would change it.
func (v View) Explanation(p *Page, image string, e *adminv1.ExplainResponse) {
	who := "Pod " + podName(e.GetPod())
	if e.GetPod().GetName() == "" && e.GetPod().GetUid() == "" {
		who = "A new pod of namespace " + e.GetPod().GetNamespace()
	}
	switch e.GetVerdict() {
	case adminv1.Verdict_VERDICT_ALLOW:
		p.PaintProse(Good, "", "%s may use %s.", who, image)
	case adminv1.Verdict_VERDICT_REVERIFY:
		p.PaintProse(Heed, "", "%s would need proof to use %s.", who, image)
	case adminv1.Verdict_VERDICT_UNSPECIFIED:
		p.PaintProse(Heed, "", "%s is not on this node, so there is nothing to judge.", image)
	}
	if e.GetVerdict() == adminv1.Verdict_VERDICT_REVERIFY && !e.GetEvidence().GetEnforcing() {
		p.PaintProse(Heed, "", "Nothing is enforced at the moment, so it gets the image all the same.")
	}
	p.Gap()
	p.Prose("", "Why (%s): %s", e.GetReason(), sentence(e.GetRule()))
	for _, fact := range v.facts(e) {
		p.Prose("  - ", "%s", fact)
	}
	if len(e.GetConsequences()) > 0 {
		p.Gap()
		p.Line("What it meets:")
	}
	for _, line := range e.GetConsequences() {
		p.Prose("  - ", "%s", line)
	}
	if len(e.GetRemedies()) > 0 {
		p.Gap()
		p.Line("What would change it:")
	}
	for _, line := range e.GetRemedies() {
		p.Line("  - %s", line) // in one line, so that a command in it can be copied
	}
}

// facts is the evidence, a sentence each, what decides first.
func (v View) facts(e *adminv1.ExplainResponse) []string {
	evidence := e.GetEvidence()
	var all []string
	if id := e.GetPair().GetImageId(); id != "" {
		all = append(all, "The image is "+v.ID(id)+", of repository "+e.GetPair().GetRepository()+".")
	}
	if evidence.GetPresence() == adminv1.Presence_PRESENCE_UNSPECIFIED {
		all = append(all, "The runtime could not be asked whether it has the image.")
	}
	if evidence.GetById() {
		all = append(all, "The name is an image ID, or none of the image's own names: access cannot be proved for that.")
	}
	switch evidence.GetExemption() {
	case "":
	case "exempt_static_pod":
		all = append(all, "The pod is static, and static pods are exempt.")
	case "exempt_namespace":
		all = append(all, "The pod's namespace is exempt.")
	default:
		all = append(all, "The pod is exempt: "+evidence.GetExemption()+".")
	}
	if policy := evidence.GetPolicy(); policy != "" {
		listed := "."
		if evidence.GetAllowlisted() {
			listed = ", and the repository is on its allowlist."
		}
		all = append(all, "The policy is "+policy+listed)
	}
	if evidence.GetUnreadable() != "" {
		all = append(all, "The record cannot be read: "+evidence.GetUnreadable()+".")
	}
	if m := evidence.GetMark(); m != nil {
		all = append(all, "It is marked preloaded "+v.lasting(m.GetSet())+", set by "+origin(m.GetOrigin())+".")
	}
	all = append(all, v.recordFacts(evidence)...)
	for _, i := range evidence.GetIntents() {
		fact := "A pull of " + i.GetName() + " began " + v.ago(i.GetBegun())
		if i.GetEnded() != nil {
			fact += "; its answer was lost " + v.ago(i.GetEnded()) + ", and nobody knows whether it brought the image."
		} else {
			fact += " and is under way."
		}
		all = append(all, fact)
	}
	if len(evidence.GetRivals()) > 0 {
		all = append(all, "Others proved access to the same image as "+strings.Join(evidence.GetRivals(), ", ")+", which shows nothing about "+e.GetPair().GetRepository()+".")
	}
	if len(evidence.GetMarkedAs()) > 0 {
		all = append(all, "The same image is preloaded as "+strings.Join(evidence.GetMarkedAs(), ", ")+", which opens nothing under "+e.GetPair().GetRepository()+".")
	}
	if g := evidence.GetGrant(); g != nil {
		fact := "The pod holds a grant (" + g.GetReason()
		if g.GetCredentialId() != "" {
			fact += ", by credential " + v.ID(g.GetCredentialId())
		}
		all = append(all, fact+") until it ends.")
	}
	return append(all, v.credentialFacts(e)...)
}

// recordFacts is who proved access.
func (v View) recordFacts(evidence *adminv1.Evidence) []string {
	r := evidence.GetRecord()
	switch {
	case r == nil && evidence.GetUnreadable() != "":
		return nil
	case r == nil && evidence.GetPresence() == adminv1.Presence_PRESENCE_ABSENT:
		return nil
	case r == nil:
		return []string{"Nobody has proved access to it through pullgated."}
	case r.GetOpen():
		return []string{"It is open to every pod " + v.lasting(r.GetOpened()) + ": it was pulled without a credential, or with the node's own."}
	}
	var all []string
	for i, proof := range r.GetProofs() {
		if i == mostProofs {
			all = append(all, "And "+Count(len(r.GetProofs())-i, "other credential", "other credentials")+".")
			break
		}
		all = append(all, v.proofFact(proof))
	}
	if len(all) == 0 {
		all = append(all, "It has a record, and nobody in it has proved access.")
	}
	if r.GetRevoked() != nil {
		all = append(all, "Something of that was revoked "+v.ago(r.GetRevoked())+".")
	}
	return all
}

func (v View) proofFact(proof *adminv1.Proof) string {
	fact := "Credential " + v.ID(proof.GetCredentialId())
	switch from := proof.GetSecrets(); {
	case len(from) == 1 && isNamespace(from[0]):
		fact += ", of the " + secretName(from[0]) + ","
	case secretNames(from) != "":
		fact += ", of Secret " + secretNames(from) + ","
	}
	fact += " proved access " + v.ago(proof.GetFirstProved()) + ", last " + v.ago(proof.GetLastProved()) + "; last used " + v.ago(proof.GetLastUsed())
	if proof.GetDenied() != nil {
		fact += "; refused by the registry " + v.ago(proof.GetDenied())
	}
	switch t := proof.GetExpires(); {
	case t == nil:
	case t.AsTime().After(v.Now):
		fact += "; expires " + v.ago(t)
	default:
		fact += "; expired " + v.ago(t)
	}
	return fact + "."
}

// credentialFacts is what the pod has.
func (v View) credentialFacts(e *adminv1.ExplainResponse) []string {
	var all []string
	evidence := e.GetEvidence()
	for _, c := range evidence.GetCredentials() {
		fact := "The pod has credential " + v.ID(c.GetCredentialId())
		if name := secretName(c.GetSecret()); name != "" {
			fact += ", of Secret " + name
		}
		all = append(all, fact+": "+standing(c.GetStanding())+".")
	}
	onePod := e.GetPod().GetName() != "" || e.GetPod().GetUid() != ""
	switch {
	case !onePod:
	case !evidence.GetCredentialsKnown():
		all = append(all, "Which credentials the pod has is not known, or not all of them.")
	case len(evidence.GetCredentials()) == 0:
		all = append(all, "The pod has no credential for it.")
	}
	switch pull := evidence.GetPullPolicy(); pull {
	case "", "unknown":
	case "mixed":
		all = append(all, "Its containers pull the image under several imagePullPolicies.")
	default:
		all = append(all, "Its imagePullPolicy is "+pull+".")
	}
	return all
}

func standing(s adminv1.CredentialStanding) string {
	switch s {
	case adminv1.CredentialStanding_CREDENTIAL_STANDING_PROVED:
		return "it proved access"
	case adminv1.CredentialStanding_CREDENTIAL_STANDING_IN_GRACE:
		return "its proof has expired, and stands only while the registry cannot be asked"
	case adminv1.CredentialStanding_CREDENTIAL_STANDING_EXPIRED:
		return "its proof has expired"
	case adminv1.CredentialStanding_CREDENTIAL_STANDING_ROTATED:
		return "the Secret proved access with another content, in whose place this one is put when the pod asks"
	case adminv1.CredentialStanding_CREDENTIAL_STANDING_UNSPECIFIED:
	}
	return "it has proved nothing"
}

// sentence is s with a full stop.
func sentence(s string) string {
	if s == "" || strings.HasSuffix(s, ".") {
		return s
	}
	return s + "."
}
