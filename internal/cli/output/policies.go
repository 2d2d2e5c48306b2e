package output

import (
	"strings"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Policies prints the policies in use.
func (View) Policies(p *Page, r *adminv1.ListPoliciesResponse) {
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
		p.PaintProse(Heed, "Error      ", "the folder is invalid, the last valid policies stay in use: %s", r.GetReloadError())
	}
	p.Gap()
	rows := make([]Row, 0, len(r.GetPolicies()))
	unjudged := 0
	for _, policy := range r.GetPolicies() {
		mode := policy.GetMode()
		if policy.GetAudit() {
			mode += ", audit"
		}
		unjudged += len(policy.GetUnjudged())
		rows = append(rows, Row{Cells: []string{policy.GetKind(), policy.GetName(), mode, boundTo(policy)}})
	}
	p.Table([]string{"KIND", "NAME", "MODE", "NAMESPACES"}, rows)
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

// Unjudged returns the sentence above a list of restrictions that a node cannot judge. refuse is whether admission.unjudged is Refuse.
func Unjudged(which string, refuse bool) string {
	effect := "in a Drop policy they are ignored, in an Accept policy they do not match"
	if refuse {
		effect = "they do not match"
	}
	return which + " node cannot judge these restrictions, because no message to it carries the field; " + effect + " (admission.unjudged):"
}

// boundTo returns the namespaces that a policy is bound to.
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
