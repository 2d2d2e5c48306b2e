package adminapi

import (
	"context"

	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// ListPolicies lists the policies in use.
func (s *Server) ListPolicies(_ context.Context, req *adminv1.ListPoliciesRequest) (*adminv1.ListPoliciesResponse, error) {
	p, err := pageOf[*adminv1.Policy](req)
	if err != nil {
		return nil, err
	}
	var in *adminv1.ListPoliciesResponse
	if s.c.Policies != nil {
		in = s.c.Policies()
	}
	for _, policy := range in.GetPolicies() {
		key := policy.GetKind() + separator + policy.GetName()
		if key > p.after && p.add(key, policy) {
			break
		}
	}
	return &adminv1.ListPoliciesResponse{
		Policies: p.entries, NextPageToken: p.next,
		Folder: in.GetFolder(), Hash: in.GetHash(), ReloadError: in.GetReloadError(), Enforcing: in.GetEnforcing(), RefuseUnjudged: in.GetRefuseUnjudged(),
		Warnings: all(in.GetWarnings(), text),
	}, nil
}
