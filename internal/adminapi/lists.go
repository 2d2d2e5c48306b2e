package adminapi

import (
	"cmp"
	"context"
	"strings"

	"github.com/pullgate/pullgate/pkg/records"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// separator joins what the key of a grant is made of; no image ID, repository or UID holds one.
const separator = "\x00"

// ListIntents lists pull intents.
func (s *Server) ListIntents(ctx context.Context, req *adminv1.ListIntentsRequest) (*adminv1.ListIntentsResponse, error) {
	at, err := pagerOf(req)
	if err != nil {
		return nil, err
	}
	of, err := repositoryOf("repository", req.GetRepository())
	if err != nil {
		return nil, err
	}
	p := page[*adminv1.Intent]{pager: at}
	after := cmp.Or(at.after, of)
	for {
		found, err := s.c.Store.IntentsAfter(after, batch)
		if err != nil {
			return nil, err
		}
		for _, in := range found {
			after = in.Key
			if of != "" && in.Value.Repository != of || p.add(in.Key, intentTo(in.Value)) {
				return &adminv1.ListIntentsResponse{Intents: p.entries, NextPageToken: p.next}, nil
			}
		}
		if err := ctx.Err(); len(found) < batch || err != nil {
			return &adminv1.ListIntentsResponse{Intents: p.entries}, err
		}
	}
}

// ListPreloaded lists marks.
func (s *Server) ListPreloaded(ctx context.Context, req *adminv1.ListPreloadedRequest) (*adminv1.ListPreloadedResponse, error) {
	at, err := pagerOf(req)
	if err != nil {
		return nil, err
	}
	of, err := repositoryOf("repository", req.GetRepository())
	if err != nil {
		return nil, err
	}
	p := page[*adminv1.Mark]{pager: at}
	after := at.after
	for {
		found, err := s.c.Store.MarksAfter(after, batch)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			after = m.Key
			pair := m.Value.Pair
			if of != "" && pair.Repository != of || !begins(pair.ImageID, req.GetImageId()) {
				continue
			}
			if p.add(m.Key, markTo(m.Value)) {
				return &adminv1.ListPreloadedResponse{Marks: p.entries, NextPageToken: p.next}, nil
			}
		}
		if err := ctx.Err(); len(found) < batch || err != nil {
			return &adminv1.ListPreloadedResponse{Marks: p.entries}, err
		}
	}
}

// ListGrants lists grants.
func (s *Server) ListGrants(_ context.Context, req *adminv1.ListGrantsRequest) (*adminv1.ListGrantsResponse, error) {
	at, err := pagerOf(req)
	if err != nil {
		return nil, err
	}
	of, err := repositoryOf("repository", req.GetRepository())
	if err != nil {
		return nil, err
	}
	var after tracker.Grant
	if at.after != "" {
		parts := strings.SplitN(at.after, separator, 3)
		if len(parts) < 3 {
			return nil, invalid("page_token: not one of this list")
		}
		after = tracker.Grant{Pod: parts[0], Pair: records.Pair{ImageID: parts[1], Repository: parts[2]}}
	}
	known := s.names()
	fits := func(wanted, got string) bool { return wanted == "" || wanted == got }
	found := s.c.Tracker.GrantsAfter(after, at.size+1, func(g tracker.Grant) bool {
		p := known[g.Pod]
		return fits(of, g.Pair.Repository) && fits(req.GetPod().GetUid(), g.Pod) &&
			fits(req.GetPod().GetNamespace(), p.Namespace) && fits(req.GetPod().GetName(), p.Name)
	})
	p := page[*adminv1.Grant]{pager: at}
	for _, g := range found {
		if p.add(strings.Join([]string{g.Pod, g.Pair.ImageID, g.Pair.Repository}, separator), known.grant(g)) {
			break
		}
	}
	return &adminv1.ListGrantsResponse{Grants: p.entries, NextPageToken: p.next}, nil
}
