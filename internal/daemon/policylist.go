package daemon

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// list returns the policies in use for the admin API, nil if there are none. It may be called concurrently.
func (p *policies) list() *adminv1.ListPoliciesResponse { return p.listed.Load() }

// keepList makes list return what is in use now. err is why that is not the present content of the folder.
func (p *policies) keepList(err error) {
	if p.set == nil && err == nil {
		p.listed.Store(nil)
		return
	}
	l := &adminv1.ListPoliciesResponse{
		Folder: p.config.Policies, Enforcing: p.config.Enforce,
		RefuseUnjudged: p.config.Unjudged == config.UnjudgedRefuse,
	}
	if p.set != nil {
		l.Hash = p.set.Hash
	}
	if err != nil {
		l.ReloadError = safetext.OneLine(err).Error()
	}
	unjudged := map[string][]string{}
	for _, f := range policyfiles.Unjudged(p.set, p.from) {
		unjudged[f.Policy] = append(unjudged[f.Policy], f.Path)
	}
	backends := policyfiles.BackendsOf(p.set)
	for _, b := range backends {
		l.Policies = append(l.Policies, &adminv1.Policy{
			Kind: policyfiles.BackendKind, Name: b.Name, AllNamespaces: b.Namespaces == nil, Namespaces: b.Namespaces,
			ReviewBackend: &adminv1.ReviewBackend{
				DefaultAllow: b.DefaultAllow, DefaultAllowAbsent: b.DefaultAllowAbsent,
				AllowTtl: durationpb.New(b.AllowTTL), DenyTtl: durationpb.New(b.DenyTTL),
				IncludeImageVolumes: b.IncludeImageVolumes,
			},
		})
	}
	l.Warnings = backends.Warnings()
	l.Warnings = append(l.Warnings, policyfiles.SignatureNotes(p.set)...)
	rules := p.Rules().Rules()
	for i := range rules {
		r := &rules[i]
		if i == 0 || rules[i-1].Kind != r.Kind || rules[i-1].Policy != r.Policy {
			l.Policies = append(l.Policies, &adminv1.Policy{Kind: r.Kind, Name: r.Policy})
		}
		last := l.Policies[len(l.Policies)-1]
		last.SignatureRules = append(last.SignatureRules, signatureRule(r))
	}
	for _, s := range policyfiles.Restrictions(p.set).Policies() {
		l.Policies = append(l.Policies, &adminv1.Policy{
			Kind: restriction.Kind, Name: s.Name, Mode: string(s.Mode), Audit: s.Audit,
			AllNamespaces: s.Everywhere, Namespaces: s.Namespaces, NamespaceSelector: s.Selector,
			Unjudged: unjudged[s.Name],
		})
	}
	slices.SortStableFunc(l.Policies, func(a, b *adminv1.Policy) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetName(), b.GetName()))
	})
	p.listed.Store(l)
}

func signatureRule(r *requirement.Rule) *adminv1.SignatureRule {
	to := &adminv1.SignatureRule{
		Name: r.Name, Namespaces: r.Scope.String(), Requirement: r.Hash, DigestRequired: r.RequireDigest,
		Default: r.Default.String(), Audit: r.Mode == requirement.Audit,
	}
	for _, image := range r.Images {
		to.Images = append(to.Images, image.String())
	}
	if r.Requirement != nil {
		to.Requires = r.Requirement.String()
	}
	return to
}
