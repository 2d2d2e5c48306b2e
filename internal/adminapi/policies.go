package adminapi

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pullgate/pullgate/internal/imagepolicy"
	"github.com/pullgate/pullgate/pkg/requirement"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// Policies are the policies in use, and how they are used. The zero value means that there are none.
type Policies struct {
	// Folder is the folder of the policy files; "" if no policies are in use.
	Folder string
	// Hash identifies the policy files in use.
	Hash string
	// ReloadError is why the present content of Folder is not in use; "" if it is.
	ReloadError string
	// Enforcing and RefuseUnjudged are admission.enforce, and whether admission.unjudged is Refuse.
	Enforcing, RefuseUnjudged bool
	// Warnings are sentences about policy files that are valid and may not say what is meant.
	Warnings []string
	// List has the policies by kind and name.
	List []Policy
}

// A Policy is one policy.
type Policy struct {
	Kind, Name, Mode  string
	Audit             bool
	AllNamespaces     bool
	Namespaces        []string
	NamespaceSelector string
	// Unjudged are the paths of the restrictions that this node cannot judge.
	Unjudged []string
	// Backend is set for an image review backend.
	Backend *imagepolicy.Backend
	// Signatures are the rules of a policy about signatures.
	Signatures []*requirement.Rule
}

// ListPolicies lists the policies in use.
func (s *Server) ListPolicies(_ context.Context, req *adminv1.ListPoliciesRequest) (*adminv1.ListPoliciesResponse, error) {
	at, err := pagerOf(req)
	if err != nil {
		return nil, err
	}
	in := Policies{}
	if s.c.Policies != nil {
		in = s.c.Policies()
	}
	p := page[*adminv1.Policy]{pager: at}
	for i := range in.List {
		key := in.List[i].Kind + separator + in.List[i].Name
		if key > at.after && p.add(key, policyTo(&in.List[i])) {
			break
		}
	}
	return &adminv1.ListPoliciesResponse{
		Policies: p.entries, NextPageToken: p.next,
		Folder: in.Folder, Hash: in.Hash, ReloadError: in.ReloadError, Enforcing: in.Enforcing, RefuseUnjudged: in.RefuseUnjudged,
		Warnings: all(in.Warnings, text),
	}, nil
}

func policyTo(p *Policy) *adminv1.Policy {
	to := &adminv1.Policy{
		Kind: p.Kind, Name: p.Name, Mode: p.Mode, Audit: p.Audit,
		AllNamespaces: p.AllNamespaces, Namespaces: p.Namespaces, NamespaceSelector: p.NamespaceSelector, Unjudged: p.Unjudged,
	}
	if b := p.Backend; b != nil {
		to.ReviewBackend = &adminv1.ReviewBackend{
			DefaultAllow: b.DefaultAllow, DefaultAllowAbsent: b.DefaultAllowAbsent, AllowTtl: durationpb.New(b.AllowTTL), DenyTtl: durationpb.New(b.DenyTTL),
			IncludeImageVolumes: b.IncludeImageVolumes,
		}
	}
	for _, r := range p.Signatures {
		rule := &adminv1.SignatureRule{
			Name: r.Name, Namespaces: r.Scope.String(), Requirement: r.Hash, DigestRequired: r.RequireDigest, Default: r.Default.String(), Audit: r.Mode == requirement.Audit,
		}
		for _, image := range r.Images {
			rule.Images = append(rule.Images, image.String())
		}
		if r.Requirement != nil {
			rule.Requires = r.Requirement.String()
		}
		to.SignatureRules = append(to.SignatureRules, rule)
	}
	return to
}
