package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Status prints what pullgated enforces, its connections and files. What needs action is in colour.
func (p *Page) Status(s *adminv1.GetStatusResponse) {
	line := func(c Colour, name, format string, args ...any) {
		p.Paint(c, "%-14s %s", name, fmt.Sprintf(format, args...))
	}
	switch {
	case s.GetEnforcing():
		line(Good, "Enforcing", "yes")
	case s.GetPolicy() == "NeverVerify":
		line(Heed, "Enforcing", "no, because of the policy: a missing proof is recorded and counted, and denies nothing")
	case s.GetPolicy() == "": // from an older pullgated
		line(Heed, "Enforcing", "no: a missing proof is recorded and counted, and denies nothing")
	default:
		line(Heed, "Enforcing", "no, shadow mode: a missing proof is recorded and counted, and denies nothing")
	}
	if s.GetPolicy() != "" {
		line(Plain, "Policy", "%s", s.GetPolicy())
	}
	store, runtime := s.GetStore(), s.GetRuntime()
	line(Plain, "Store", "%s, format %d, %s", store.GetPath(), store.GetFormat(), Size(store.GetBytes()))
	counts := []string{
		Count(store.GetRecords(), "record", "records"), Count(store.GetIntents(), "intent", "intents"),
		Count(store.GetMarks(), "preloaded mark", "preloaded marks"),
	}
	if n := store.GetEndorsements(); n > 0 { // only on nodes that verify signatures
		counts = append(counts, Count(n, "endorsement", "endorsements"))
	}
	line(Plain, "", "%s", strings.Join(counts, ", "))
	if d := store.GetDistrust(); d != nil {
		line(Bad, "", "in distrust since %s: %s", p.date(d.GetSince()), d.GetReason())
		line(Bad, "", "pullgatectl distrust end --dry-run shows which images ending it opens")
	}
	version := ""
	if runtime.GetName() != "" {
		version = ", " + strings.TrimSpace(runtime.GetName()+" "+runtime.GetVersion())
	}
	if runtime.GetUp() {
		line(Good, "Runtime", "%s, up%s", runtime.GetEndpoint(), version)
	} else {
		line(Bad, "Runtime", "%s, NOT reached%s", runtime.GetEndpoint(), version)
	}
	switch source := s.GetPodSource(); {
	case source == nil:
		line(Plain, "Pod source", "none")
	case source.GetSynced():
		line(Good, "Pod source", "node %s, synced, %s", source.GetNode(), Count(source.GetPods(), "pod", "pods"))
	default:
		line(Heed, "Pod source", "node %s, NOT synced with the API server, %s known", cmp.Or(source.GetNode(), "unknown"),
			Count(source.GetPods(), "pod", "pods"))
	}
	line(Plain, "Grants", "%d", s.GetGrants())
	switch log := s.GetDecisionLog(); {
	case log == nil:
		line(Plain, "Decision log", "none")
	case log.GetDropped() == 0:
		line(Plain, "Decision log", "%s", log.GetPath())
	default:
		line(Heed, "Decision log", "%s, %s dropped", log.GetPath(), Count(log.GetDropped(), "decision", "decisions"))
	}
	for _, l := range s.GetNotListening() {
		line(Bad, "Listener", "%s is not bound, trying again: %s", l.GetField(), l.GetError())
	}
	file := s.GetConfigurationPath()
	switch {
	case file == "": // from an older pullgated
	case s.GetConfigurationFound():
		file += ", "
	default:
		file += " not found: using defaults, "
	}
	switch r := s.GetReload(); {
	case r == nil:
	case r.GetError() == "":
		line(Plain, "Configuration", "%sread %s", file, p.ago(r.GetAt()))
	default:
		line(Bad, "Configuration", "%sread %s and invalid, the previous one is in force: %s", file, p.ago(r.GetAt()),
			r.GetError())
	}
	line(Plain, "Version", "%s (commit %s)", s.GetVersion(), s.GetCommit())
	line(Plain, "Started", "%s", p.ago(s.GetStarted()))
}

// Configuration prints the configuration in force.
func (p *Page) Configuration(s *adminv1.GetStatusResponse) {
	p.Gap()
	p.Line("Configuration in force:")
	p.Gap()
	p.Text("  ", s.GetConfiguration())
}

// Policies prints the policies in use.
func (p *Page) Policies(r *adminv1.ListPoliciesResponse) {
	if r.GetFolder() == "" {
		p.Line(`No policies are in use: admission.policies is "".`)
		return
	}
	p.Line("Folder     %s", r.GetFolder())
	if r.GetEnforcing() {
		p.Line("Enforcing  yes")
	} else {
		p.Paint(Heed, "Enforcing  no, denials are only reported (admission.enforce)")
	}
	if r.GetReloadError() != "" {
		p.PaintProse(Heed, "Error      ", "the folder is invalid, the last valid policies stay in use: %s",
			r.GetReloadError())
	}
	var rows [][]string
	unjudged := 0
	var backends, hooks, signatures, accesses []*adminv1.Policy
	for _, policy := range r.GetPolicies() {
		switch {
		case policy.GetReviewBackend() != nil:
			backends = append(backends, policy)
			continue
		case policy.GetHook() != nil:
			hooks = append(hooks, policy)
			continue
		case len(policy.GetSignatureRules()) > 0:
			signatures = append(signatures, policy)
			continue
		case len(policy.GetImages()) > 0:
			accesses = append(accesses, policy)
			continue
		}
		mode := policy.GetMode()
		if policy.GetAudit() {
			mode += ", audit"
		}
		unjudged += len(policy.GetUnjudged())
		rows = append(rows, []string{policy.GetKind(), policy.GetName(), mode, boundTo(policy)})
	}
	if len(rows) > 0 || len(backends)+len(hooks)+len(signatures)+len(accesses) == 0 {
		p.Gap()
		p.Table([]string{"KIND", "NAME", "MODE", "NAMESPACES"}, rows)
	}
	reviewBackends(p, backends)
	hookTable(p, hooks)
	signatureRules(p, signatures)
	imageAccess(p, accesses)
	for _, w := range r.GetWarnings() {
		p.Gap()
		p.PaintProse(Heed, "Warning    ", "%s", w)
	}
	if unjudged == 0 {
		return
	}
	p.Gap()
	p.Prose("", "%s", Unjudged("This", r.GetRefuseUnjudged()))
	for _, policy := range r.GetPolicies() {
		for _, path := range policy.GetUnjudged() {
			p.Line("  policy %s: %s", policy.GetName(), path)
		}
	}
}

func reviewBackends(p *Page, backends []*adminv1.Policy) {
	if len(backends) == 0 {
		return
	}
	p.Gap()
	head := []string{"KIND", "NAME", "DEFAULTALLOW", "ALLOWTTL", "DENYTTL", "IMAGE VOLUMES", "NAMESPACES"}
	kept := func(d *durationpb.Duration) string {
		if d.AsDuration() == 0 {
			return "no cache"
		}
		return d.AsDuration().String()
	}
	tableOf(p, head, backends, func(policy *adminv1.Policy) []string {
		b := policy.GetReviewBackend()
		byDefault := strconv.FormatBool(b.GetDefaultAllow())
		if b.GetDefaultAllowAbsent() {
			byDefault += " (absent)"
		}
		volumes := map[bool]string{true: "reviewed", false: "not reviewed"}[b.GetIncludeImageVolumes()]
		return []string{
			policy.GetKind(), policy.GetName(), byDefault, kept(b.GetAllowTtl()), kept(b.GetDenyTtl()), volumes,
			boundTo(policy),
		}
	})
}

func hookTable(p *Page, hooks []*adminv1.Policy) {
	if len(hooks) == 0 {
		return
	}
	p.Gap()
	head := []string{"HOOK", "AT", "STAGES", "ADDRESS", "FAILUREPOLICY", "TIMEOUT", "NAMESPACES"}
	tableOf(p, head, hooks, func(policy *adminv1.Policy) []string {
		h := policy.GetHook()
		fails := h.GetFailurePolicy()
		if policy.GetAudit() {
			fails += ", audit"
		}
		stages := strings.Join(h.GetStages(), ", ")
		if stages == "" { // an initialiser
			stages = "new pods"
		}
		return []string{
			policy.GetName(), h.GetAt(), stages, h.GetAddress(), fails,
			h.GetTimeout().AsDuration().String(), boundTo(policy),
		}
	})
}

func imageAccess(p *Page, files []*adminv1.Policy) {
	if len(files) == 0 {
		return
	}
	p.Gap()
	tableOf(p, []string{"IMAGE ACCESS", "GRANT", "FROM", "IMAGES"}, files, func(f *adminv1.Policy) []string {
		grant := f.GetMode()
		if f.GetAudit() {
			grant += ", audit"
		}
		return []string{
			f.GetName(), grant, strings.Join(f.GetNamespaces(), ", "), strings.Join(f.GetImages(), ", "),
		}
	})
}

func signatureRules(p *Page, policies []*adminv1.Policy) {
	if len(policies) == 0 {
		return
	}
	p.Gap()
	var rows [][]string
	for _, policy := range policies {
		for _, r := range policy.GetSignatureRules() {
			requires := r.GetRequires()
			if r.GetDigestRequired() {
				requires += "; a digest in the name"
			}
			if r.GetDefault() != "" {
				requires += "; other images: " + r.GetDefault()
			}
			mode := map[bool]string{true: "audit", false: "enforce"}[r.GetAudit()]
			rows = append(rows, []string{
				policy.GetKind(), policy.GetName(), r.GetName(), mode, r.GetNamespaces(), strings.Join(r.GetImages(), ", "),
				cmp.Or(strings.TrimPrefix(requires, "; "), "nothing at the node"),
			})
		}
	}
	p.Table([]string{"KIND", "NAME", "RULE", "MODE", "NAMESPACES", "IMAGES", "REQUIRES"}, rows)
}

// Unjudged returns the sentence above a list of restrictions that a node cannot judge, by admission.unjudged.
func Unjudged(which string, refuse bool) string {
	effect := "in a Drop policy they are ignored, in an Accept policy they do not match"
	if refuse {
		effect = "they do not match"
	}
	return which + " node cannot judge these restrictions, because no message to it carries the field; " + effect +
		" (admission.unjudged):"
}

func boundTo(p *adminv1.Policy) string {
	var all []string
	if p.GetAllNamespaces() {
		return "all"
	}
	if len(p.GetNamespaces()) > 0 {
		all = append(all, strings.Join(p.GetNamespaces(), ", "))
	}
	if p.GetNamespaceSelector() != "" {
		all = append(all, "those with "+p.GetNamespaceSelector())
	}
	return strings.Join(all, "; ")
}

// VerifiedImage prints which rules about signatures an image meets, and its signatures, as pullgate-policyd says.
func (p *Page) VerifiedImage(image string, r *adminv1.VerifyImageResponse) {
	if id := r.GetImage().GetImageId(); id != "" {
		p.Line("Image  %s, %s on this node", image, p.ID(id))
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
	tableOf(p, []string{"COUNTS", "SIGNER", "SIGNS", "FOUND BY", "SIGNATURE", "WHY"}, r.GetSignatures(),
		func(s *adminv1.ImageSignature) []string {
			counts := "no"
			if s.GetCounts() {
				counts = "yes"
			}
			signer := cmp.Or(s.GetSigner(), "unknown")
			return []string{counts, signer, p.ID(s.GetSubject()), s.GetFoundBy(), p.ID(s.GetDigest()), s.GetReason()}
		})
	for _, s := range r.GetSignatures() {
		if s.GetPredicateType() == "" {
			continue
		}
		p.Gap()
		p.Line("Statement %s, %s", p.ID(s.GetDigest()), s.GetPredicateType())
		for _, c := range s.GetConditions() {
			p.Prose("  ", "%s", c)
		}
	}
}

func defaultText(d *adminv1.VerifiedRule) string {
	switch {
	case d == nil:
		return ""
	case d.GetMet():
		return "; policy " + d.GetPolicy() + " allows such images (default: allow)"
	case d.GetAudit():
		return "; policy " + d.GetPolicy() + " reports such images (default: deny)"
	}
	return "; policy " + d.GetPolicy() + " denies such images (default: deny)"
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
	for _, c := range rule.GetConditions() {
		p.Prose("         ", "%s", c)
	}
	if len(rule.GetSigners()) > 0 {
		p.Prose("         ", "signed by %s", strings.Join(rule.GetSigners(), "; "))
		p.Prose("         ", "signed digest %s", rule.GetDigest())
	}
}
