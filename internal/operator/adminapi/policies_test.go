package adminapi_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func TestListPolicies(t *testing.T) {
	in := &adminv1.ListPoliciesResponse{Folder: "/p", Hash: "h", ReloadError: "e", Enforcing: true, RefuseUnjudged: true}
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprint("policy-", i))
		in.Policies = append(in.Policies, &adminv1.Policy{
			Kind: "PodRestriction", Name: want[i], Mode: "Drop", Audit: true, Namespaces: []string{"a"}, NamespaceSelector: "b=c", Unjudged: []string{"d"},
		})
	}
	w := newWorld(t, tracker.Options{}, func(c *adminapi.Config) { c.Policies = func() *adminv1.ListPoliciesResponse { return in } })
	var got []string
	for token := ""; ; {
		r, err := w.ListPolicies(t.Context(), &adminv1.ListPoliciesRequest{PageSize: 2, PageToken: token})
		must(t, err)
		if r.GetFolder() != "/p" || r.GetHash() != "h" || r.GetReloadError() != "e" || !r.GetEnforcing() || !r.GetRefuseUnjudged() {
			t.Errorf("a page says %v", r)
		}
		for _, p := range r.GetPolicies() {
			got = append(got, p.GetName())
			policy := &adminv1.Policy{
				Kind: "PodRestriction", Name: p.GetName(), Mode: "Drop", Audit: true, Namespaces: []string{"a"}, NamespaceSelector: "b=c", Unjudged: []string{"d"},
			}
			if !proto.Equal(p, policy) {
				t.Errorf("policy %v; want %v", p, policy)
			}
		}
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("policies %v; want %v", got, want)
	}
	if _, err := w.ListPolicies(t.Context(), &adminv1.ListPoliciesRequest{PageSize: -1}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a negative size: %v", err)
	}
}

func TestListPoliciesWithoutAny(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	if r, err := w.ListPolicies(t.Context(), &adminv1.ListPoliciesRequest{}); err != nil || r.GetFolder() != "" || len(r.GetPolicies()) != 0 {
		t.Errorf("ListPolicies = %v, %v; want nothing", r, err)
	}
}
