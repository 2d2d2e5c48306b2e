package daemon

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/pullgate/pullgate/internal/adminapi"
	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/hint"
	"github.com/pullgate/pullgate/internal/imagepolicy"
	"github.com/pullgate/pullgate/internal/policyfiles"
	"github.com/pullgate/pullgate/pkg/admission/restrict"
	"github.com/pullgate/pullgate/pkg/requirement"
	"github.com/pullgate/pullgate/pkg/restriction"
)

// A policyList is the policies in use, for goroutines that do not own policies.
type policyList struct {
	atomic.Pointer[adminapi.Policies]
}

// list returns the policies in use for the admin API. It may be called concurrently with the other methods.
func (p *policies) list() adminapi.Policies {
	if l := p.listed.Load(); l != nil {
		return *l
	}
	return adminapi.Policies{}
}

// keepList makes list return what is in use now. err is why that is not the present content of the folder.
func (p *policies) keepList(err error) {
	if p.set == nil && err == nil {
		p.listed.Store(nil)
		return
	}
	l := &adminapi.Policies{Folder: p.config.Policies, Enforcing: p.config.Enforce, RefuseUnjudged: p.config.Unjudged == config.UnjudgedRefuse}
	if p.set != nil {
		l.Hash = p.set.Hash
	}
	if err != nil {
		l.ReloadError = hint.OneLine(err).Error()
	}
	unjudged := map[string][]string{}
	for _, f := range restrict.Unjudged(p.set, p.from) {
		unjudged[f.Policy] = append(unjudged[f.Policy], f.Path)
	}
	backends := imagepolicy.Of(p.set)
	for _, b := range backends.Backends() {
		l.List = append(l.List, adminapi.Policy{
			Kind: imagepolicy.Kind, Name: b.Name, AllNamespaces: b.Namespaces == nil, Namespaces: b.Namespaces, Backend: &b,
		})
	}
	l.Warnings = backends.Warnings()
	l.Warnings = append(l.Warnings, policyfiles.SignatureNotes(p.set)...)
	rules := p.Rules().Rules()
	for i := range rules {
		r := &rules[i]
		if last := len(l.List) - 1; i > 0 && rules[i-1].Kind == r.Kind && rules[i-1].Policy == r.Policy {
			l.List[last].Signatures = append(l.List[last].Signatures, r)
			continue
		}
		l.List = append(l.List, adminapi.Policy{Kind: r.Kind, Name: r.Policy, Signatures: []*requirement.Rule{r}})
	}
	for _, s := range restrict.Of(p.set).Policies() {
		l.List = append(l.List, adminapi.Policy{
			Kind: restriction.Kind, Name: s.Name, Mode: string(s.Binding.Mode), Audit: s.Audit,
			AllNamespaces: s.Binding.Everywhere(), Namespaces: s.Binding.Namespaces, NamespaceSelector: s.Binding.NamespaceSelector.String(),
			Unjudged: unjudged[s.Name],
		})
	}
	slices.SortStableFunc(l.List, func(a, b adminapi.Policy) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	p.listed.Store(l)
}
