package adminapi

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// The size of a page, in entries and in bytes.
const (
	defaultPage  = 100
	maxPage      = 1000
	maxPageBytes = 1 << 20
)

// A listRequest has the fields that every request for a page has.
type listRequest interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// A page is the requested page of a list, and collects its entries.
type page[T proto.Message] struct {
	size  int
	after string // the key of the last entry of the previous page; "" for none
	scope uint64 // of the list and its filter, so that a token is valid for no other list

	entries []T
	bytes   int
	last    string
	next    string // the token of the next page; "" as long as this may be the last one
}

func pageOf[T proto.Message](req listRequest) (p page[T], err error) {
	p.size = min(int(req.GetPageSize()), maxPage)
	if p.size < 0 {
		return p, invalid("page_size: %d is not allowed; allowed is 0, which means %d, up to %d", p.size, defaultPage, maxPage)
	}
	if p.size == 0 {
		p.size = defaultPage
	}
	filter := proto.Clone(req).ProtoReflect()
	fields := filter.Descriptor().Fields()
	filter.Clear(fields.ByName("page_size"))
	filter.Clear(fields.ByName("page_token"))
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(filter.Interface())
	if err != nil {
		return p, invalid("the filter is not readable: %v", err)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(filter.Descriptor().Name())) // a hash never fails
	_, _ = h.Write(text)
	p.scope = h.Sum64()
	if req.GetPageToken() == "" {
		return p, nil
	}
	token, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil || len(token) <= 8 || binary.BigEndian.Uint64(token) != p.scope {
		return p, invalid("page_token: not one of this list with this filter; begin again without")
	}
	p.after = string(token[8:])
	return p, nil
}

// add adds an entry. If the page has no room for it, the page is full and the entry is not added.
func (p *page[T]) add(key string, entry T) (full bool) {
	size := proto.Size(entry)
	if len(p.entries) > 0 && (len(p.entries) >= p.size || p.bytes+size > maxPageBytes) {
		p.next = base64.RawURLEncoding.EncodeToString(append(binary.BigEndian.AppendUint64(nil, p.scope), p.last...))
		return true
	}
	p.entries, p.bytes, p.last = append(p.entries, entry), p.bytes+size, key
	return false
}

// separator joins the parts of a grant's key. It does not occur in an image ID, a repository or a UID.
const separator = "\x00"

// ListIntents lists pull intents.
func (s *Server) ListIntents(ctx context.Context, req *adminv1.ListIntentsRequest) (*adminv1.ListIntentsResponse, error) {
	p, err := list(ctx, req, s.c.Store.IntentsAfter, intentTo, func(of string, in records.Intent) bool { return fits(of, in.Repository) })
	if err != nil {
		return nil, err
	}
	return &adminv1.ListIntentsResponse{Intents: p.entries, NextPageToken: p.next}, nil
}

// ListPreloaded lists preloaded marks.
func (s *Server) ListPreloaded(ctx context.Context, req *adminv1.ListPreloadedRequest) (*adminv1.ListPreloadedResponse, error) {
	p, err := list(ctx, req, s.c.Store.MarksAfter, markTo, func(of string, m records.Mark) bool {
		return fits(of, m.Pair.Repository) && begins(m.Pair.ImageID, req.GetImageId())
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListPreloadedResponse{Marks: p.entries, NextPageToken: p.next}, nil
}

// ListEndorsements lists endorsements.
func (s *Server) ListEndorsements(ctx context.Context, req *adminv1.ListEndorsementsRequest) (*adminv1.ListEndorsementsResponse, error) {
	p, err := list(ctx, req, s.c.Store.EndorsementsAfter, s.endorsements(), func(of string, e records.Endorsement) bool {
		return fits(of, e.Pair.Repository) && begins(e.Pair.ImageID, req.GetImageId()) && strings.HasPrefix(e.Requirement, req.GetRequirement()) &&
			(req.GetSigner() == "" || slices.Contains(e.Signers, req.GetSigner()))
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListEndorsementsResponse{Endorsements: p.entries, NextPageToken: p.next}, nil
}

// A repositoryRequest can be for the entries of one repository.
type repositoryRequest interface {
	listRequest
	GetRepository() string
}

// list returns the requested page of the selected entries of the store, in the order of their keys. selects gets the
// requested repository, "" for all.
func list[T any, M proto.Message](ctx context.Context, req repositoryRequest, read func(key string, limit int) ([]records.Keyed[T], error),
	to func(T) M, selects func(repository string, entry T) bool,
) (p page[M], err error) {
	if p, err = pageOf[M](req); err != nil {
		return p, err
	}
	repository, err := repositoryOf("repository", req.GetRepository())
	if err != nil {
		return p, err
	}
	for key := p.after; ; {
		found, err := read(key, batch)
		if err != nil {
			return p, err
		}
		for _, e := range found {
			if selects(repository, e.Value) && p.add(e.Key, to(e.Value)) {
				return p, nil
			}
			key = e.Key
		}
		if err := ctx.Err(); len(found) < batch || err != nil {
			return p, err
		}
	}
}

func fits(wanted, got string) bool { return wanted == "" || wanted == got }

// ListGrants lists grants.
func (s *Server) ListGrants(_ context.Context, req *adminv1.ListGrantsRequest) (*adminv1.ListGrantsResponse, error) {
	p, err := pageOf[*adminv1.Grant](req)
	if err != nil {
		return nil, err
	}
	of, err := repositoryOf("repository", req.GetRepository())
	if err != nil {
		return nil, err
	}
	var after tracker.Grant
	if p.after != "" {
		parts := strings.SplitN(p.after, separator, 3)
		if len(parts) < 3 {
			return nil, invalid("page_token: not one of this list")
		}
		after = tracker.Grant{Pod: parts[0], Pair: records.Pair{ImageID: parts[1], Repository: parts[2]}}
	}
	known := s.names()
	found := s.c.Tracker.GrantsAfter(after, p.size+1, func(g tracker.Grant) bool {
		pod := known[g.Pod]
		return fits(of, g.Pair.Repository) && fits(req.GetPod().GetUid(), g.Pod) &&
			fits(req.GetPod().GetNamespace(), pod.Namespace) && fits(req.GetPod().GetName(), pod.Name)
	})
	for _, g := range found {
		if p.add(strings.Join([]string{g.Pod, g.Pair.ImageID, g.Pair.Repository}, separator), known.grant(g)) {
			break
		}
	}
	return &adminv1.ListGrantsResponse{Grants: p.entries, NextPageToken: p.next}, nil
}
