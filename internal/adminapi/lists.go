package adminapi

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/pkg/records"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// separator joins the parts of a grant's key. It does not occur in an image ID, a repository or a UID.
const separator = "\x00"

// ListIntents lists pull intents.
func (s *Server) ListIntents(ctx context.Context, req *adminv1.ListIntentsRequest) (*adminv1.ListIntentsResponse, error) {
	at, of, err := pageOf(req)
	if err != nil {
		return nil, err
	}
	p := page[*adminv1.Intent]{pager: at}
	err = eachAfter(ctx, s.c.Store.IntentsAfter, cmp.Or(at.after, of), func(key string, in records.Intent) (more bool) {
		return (of == "" || in.Repository == of) && !p.add(key, intentTo(in))
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListIntentsResponse{Intents: p.entries, NextPageToken: p.next}, nil
}

// ListPreloaded lists preloaded marks.
func (s *Server) ListPreloaded(ctx context.Context, req *adminv1.ListPreloadedRequest) (*adminv1.ListPreloadedResponse, error) {
	at, of, err := pageOf(req)
	if err != nil {
		return nil, err
	}
	p := page[*adminv1.Mark]{pager: at}
	err = eachAfter(ctx, s.c.Store.MarksAfter, at.after, func(key string, m records.Mark) (more bool) {
		if of != "" && m.Pair.Repository != of || !begins(m.Pair.ImageID, req.GetImageId()) {
			return true
		}
		return !p.add(key, markTo(m))
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListPreloadedResponse{Marks: p.entries, NextPageToken: p.next}, nil
}

// ListEndorsements lists endorsements.
func (s *Server) ListEndorsements(ctx context.Context, req *adminv1.ListEndorsementsRequest) (*adminv1.ListEndorsementsResponse, error) {
	at, of, err := pageOf(req)
	if err != nil {
		return nil, err
	}
	p := page[*adminv1.Endorsement]{pager: at}
	to := s.endorsements()
	err = eachAfter(ctx, s.c.Store.EndorsementsAfter, at.after, func(key string, e records.Endorsement) (more bool) {
		if of != "" && e.Pair.Repository != of || !begins(e.Pair.ImageID, req.GetImageId()) || !strings.HasPrefix(e.Requirement, req.GetRequirement()) ||
			req.GetSigner() != "" && !slices.Contains(e.Signers, req.GetSigner()) {
			return true
		}
		return !p.add(key, to(e))
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListEndorsementsResponse{Endorsements: p.entries, NextPageToken: p.next}, nil
}

// eachAfter calls f for each entry of the store after a key, in key order, until f returns false.
func eachAfter[T any](
	ctx context.Context, read func(key string, limit int) ([]records.Keyed[T], error), key string, f func(key string, entry T) (more bool),
) error {
	for {
		found, err := read(key, batch)
		if err != nil {
			return err
		}
		for _, e := range found {
			if !f(e.Key, e.Value) {
				return nil
			}
			key = e.Key
		}
		if err := ctx.Err(); len(found) < batch || err != nil {
			return err
		}
	}
}

// ListGrants lists grants.
func (s *Server) ListGrants(_ context.Context, req *adminv1.ListGrantsRequest) (*adminv1.ListGrantsResponse, error) {
	at, of, err := pageOf(req)
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
