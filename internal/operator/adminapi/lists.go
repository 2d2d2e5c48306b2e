package adminapi

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/fnv"
	"math"
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

// separator joins the parts of a key. It does not occur in an image ID, a repository or a UID.
const separator = "\x00"

// list returns the requested page of entries, which read returns in the order of their keys, from the one after a key.
// to makes the entry of the answer, and reports whether it is selected; repository is that of the request, "" for any.
func list[T any, M proto.Message](ctx context.Context, req listRequest,
	read func(after string, limit int) ([]records.Keyed[T], error), to func(repository string, entry T) (made M, selected bool),
) (p page[M], err error) {
	if p, err = pageOf[M](req); err != nil {
		return p, err
	}
	repository := ""
	if r, ok := req.(interface{ GetRepository() string }); ok {
		if repository, err = repositoryOf("repository", r.GetRepository()); err != nil {
			return p, err
		}
	}
	found, err := read(p.after, math.MaxInt)
	if err != nil {
		return p, err
	}
	for _, e := range found {
		made, selected := to(repository, e.Value)
		if err := ctx.Err(); err != nil {
			return p, err
		}
		if selected && p.add(e.Key, made) {
			break
		}
	}
	return p, nil
}

// keyed returns how list reads entries that are in memory.
func keyed[T any](entries []T, key func(T) string) func(string, int) ([]records.Keyed[T], error) {
	return func(after string, _ int) (found []records.Keyed[T], err error) {
		for _, e := range entries {
			if k := key(e); k > after {
				found = append(found, records.Keyed[T]{Key: k, Value: e})
			}
		}
		slices.SortFunc(found, func(a, b records.Keyed[T]) int { return cmp.Compare(a.Key, b.Key) })
		return found, nil
	}
}

// fits reports whether a value is the wanted one, or any one is.
func fits(wanted, got string) bool { return wanted == "" || wanted == got }

// ListIntents lists pull intents.
func (s *Server) ListIntents(
	ctx context.Context, req *adminv1.ListIntentsRequest,
) (*adminv1.ListIntentsResponse, error) {
	p, err := list(ctx, req, s.c.Store.IntentsAfter, func(repository string, in records.Intent) (*adminv1.Intent, bool) {
		return intentTo(in), fits(repository, in.Repository)
	})
	return &adminv1.ListIntentsResponse{Intents: p.entries, NextPageToken: p.next}, err
}

// ListPreloaded lists preloaded marks.
func (s *Server) ListPreloaded(
	ctx context.Context, req *adminv1.ListPreloadedRequest,
) (*adminv1.ListPreloadedResponse, error) {
	p, err := list(ctx, req, s.c.Store.MarksAfter, func(repository string, m records.Mark) (*adminv1.Mark, bool) {
		return markTo(m), fits(repository, m.Pair.Repository) && begins(m.Pair.ImageID, req.GetImageId())
	})
	return &adminv1.ListPreloadedResponse{Marks: p.entries, NextPageToken: p.next}, err
}

// ListEndorsements lists endorsements.
func (s *Server) ListEndorsements(
	ctx context.Context, req *adminv1.ListEndorsementsRequest,
) (*adminv1.ListEndorsementsResponse, error) {
	to := s.endorsements()
	p, err := list(ctx, req, s.c.Store.EndorsementsAfter, func(repository string, e records.Endorsement) (*adminv1.Endorsement, bool) {
		return to(e), fits(repository, e.Pair.Repository) && begins(e.Pair.ImageID, req.GetImageId()) &&
			strings.HasPrefix(e.Requirement, req.GetRequirement()) &&
			(req.GetSigner() == "" || slices.Contains(e.Signers, req.GetSigner()))
	})
	return &adminv1.ListEndorsementsResponse{Endorsements: p.entries, NextPageToken: p.next}, err
}

// ListGrants lists grants.
func (s *Server) ListGrants(ctx context.Context, req *adminv1.ListGrantsRequest) (*adminv1.ListGrantsResponse, error) {
	known, of := s.names(), req.GetPod()
	grants := s.c.Tracker.GrantsAfter(tracker.Grant{}, math.MaxInt, func(g tracker.Grant) bool {
		pod := known[g.Pod]
		return fits(of.GetUid(), g.Pod) && fits(of.GetNamespace(), pod.Namespace) && fits(of.GetName(), pod.Name)
	})
	p, err := list(ctx, req, keyed(grants, func(g tracker.Grant) string {
		return strings.Join([]string{g.Pod, g.Pair.ImageID, g.Pair.Repository}, separator)
	}), func(repository string, g tracker.Grant) (*adminv1.Grant, bool) {
		return known.grant(g), fits(repository, g.Pair.Repository)
	})
	return &adminv1.ListGrantsResponse{Grants: p.entries, NextPageToken: p.next}, err
}

// ListPolicies lists the policies in use.
func (s *Server) ListPolicies(
	ctx context.Context, req *adminv1.ListPoliciesRequest,
) (*adminv1.ListPoliciesResponse, error) {
	var in *adminv1.ListPoliciesResponse
	if s.c.Policies != nil {
		in = s.c.Policies()
	}
	p, err := list(ctx, req, keyed(in.GetPolicies(), func(policy *adminv1.Policy) string {
		return policy.GetKind() + separator + policy.GetName()
	}), func(_ string, policy *adminv1.Policy) (*adminv1.Policy, bool) { return policy, true })
	return &adminv1.ListPoliciesResponse{
		Policies: p.entries, NextPageToken: p.next, Folder: in.GetFolder(), Hash: in.GetHash(),
		ReloadError: in.GetReloadError(), Enforcing: in.GetEnforcing(), RefuseUnjudged: in.GetRefuseUnjudged(),
		Warnings: all(in.GetWarnings(), text),
	}, err
}
