package adminapi

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
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
		return p, invalid("page_size: %d is not allowed; allowed is 0, which means %d, up to %d", p.size, defaultPage,
			maxPage)
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
	read func(after string, limit int) ([]records.Keyed[T], error),
	to func(repository string, entry T) (made M, selected bool),
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
	p, err := list(ctx, req, s.c.Store.EndorsementsAfter,
		func(repository string, e records.Endorsement) (*adminv1.Endorsement, bool) {
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

// idForm matches an image ID, or a beginning of one that is long enough to identify the image.
var (
	idForm       = regexp.MustCompile(`^(sha256:)?[0-9a-f]{7,64}$`)
	unparsedForm = regexp.MustCompile(`^unparsed/[0-9a-f]{64}$`)
)

// repositoryOf returns the repository of a name in any form, "" for "".
func repositoryOf(field, name string) (string, error) {
	if name == "" || unparsedForm.MatchString(name) {
		return name, nil // a name that does not parse has such a repository
	}
	n, err := imageref.Parse(name)
	if err != nil {
		return "", invalid("%s: %q is not the name of an image; allowed is one with or without a tag or digest, as in "+
			"busybox or registry.example/team/app:1", field, name)
	}
	return n.Repository(), nil
}

// A filter selects images; the zero value selects all.
type filter struct {
	repository string
	imageID    string
	secret     records.SecretRef
	created    time.Time // before it
	unused     time.Time // since it
}

func filterOf(f *adminv1.ImageFilter) (filter, error) {
	repository, err := repositoryOf("filter.repository", f.GetRepository())
	if err != nil {
		return filter{}, err
	}
	selected := filter{
		repository: repository, imageID: f.GetImageId(),
		secret: records.SecretRef{
			UID: f.GetSecret().GetUid(), Namespace: f.GetSecret().GetNamespace(),
			Name: f.GetSecret().GetName(),
		},
	}
	if ns := f.GetNamespace(); ns != "" {
		if selected.secret.Namespace != "" && selected.secret.Namespace != ns {
			return filter{}, invalid("filter.namespace: %q is not that of filter.secret, %q; give one of them", ns,
				selected.secret.Namespace)
		}
		selected.secret.Namespace = ns
	}
	if t := f.GetCreatedBefore(); t != nil {
		selected.created = t.AsTime()
	}
	if t := f.GetUnusedSince(); t != nil {
		selected.unused = t.AsTime()
	}
	return selected, nil
}

// begins reports whether an image ID begins with a text, with "sha256:" or without.
func begins(id, with string) bool {
	return strings.HasPrefix(id, with) || strings.HasPrefix(strings.TrimPrefix(id, "sha256:"), with)
}

// An image is what the runtime and the store have under one image ID.
type image struct {
	tracker.Image // of an absent image only the ID
	present       bool
	facts         records.ImageFacts
}

// narrow reduces an image to the facts about the repository, and reports whether it is selected.
func (f filter) narrow(i *image) bool {
	if f.imageID != "" && !begins(i.ID, f.imageID) {
		return false
	}
	if f.repository != "" {
		other := func(repository string) bool { return repository != f.repository }
		i.Names = slices.DeleteFunc(slices.Clone(i.Names), func(n imageref.Ref) bool { return other(n.Repository()) })
		i.facts.Records = slices.DeleteFunc(i.facts.Records, func(r records.Record) bool { return other(r.Pair.Repository) })
		i.facts.Marks = slices.DeleteFunc(i.facts.Marks, func(m records.Mark) bool { return other(m.Pair.Repository) })
		if len(i.Names)+len(i.facts.Records)+len(i.facts.Marks) == 0 {
			return false
		}
	}
	return f.proved(i.facts) && f.aged(i.facts)
}

func (f filter) proved(facts records.ImageFacts) bool {
	if f.secret == (records.SecretRef{}) {
		return true
	}
	by := records.Revocation{Secret: f.secret}
	return slices.ContainsFunc(facts.Records, func(r records.Record) bool {
		return slices.ContainsFunc(r.Proofs, func(p records.Proof) bool { return by.Selects(p.Credential, p.Secrets) })
	})
}

// aged reports whether the facts are at least as old, and unused for at least as long, as the filter requires.
func (f filter) aged(facts records.ImageFacts) bool {
	if !f.created.IsZero() &&
		!slices.ContainsFunc(facts.Records, func(r records.Record) bool { return r.Created.Before(f.created) }) &&
		!slices.ContainsFunc(facts.Marks, func(m records.Mark) bool { return m.Set.Before(f.created) }) {
		return false
	}
	if f.unused.IsZero() {
		return true
	}
	used := func(r records.Record) bool { return !r.LastUsed.Before(f.unused) || !r.Created.Before(f.unused) }
	return len(facts.Records) > 0 && !slices.ContainsFunc(facts.Records, used)
}

// ListImages lists images, ordered by ID.
func (s *Server) ListImages(ctx context.Context, req *adminv1.ListImagesRequest) (*adminv1.ListImagesResponse, error) {
	f, err := filterOf(req.GetFilter())
	if err != nil {
		return nil, err
	}
	images, asked, err := s.images(ctx)
	if err != nil {
		return nil, err
	}
	p, err := list(ctx, req, keyed(images, func(i image) string { return i.ID }),
		func(_ string, i image) (*adminv1.Image, bool) {
			selected := f.narrow(&i)
			return s.imageTo(i, asked), selected
		})
	return &adminv1.ListImagesResponse{Images: p.entries, NextPageToken: p.next}, err
}

// images returns every image of the runtime or the store. asked reports whether the runtime answered.
func (s *Server) images(ctx context.Context) (found []image, asked bool, err error) {
	present, err := s.c.Runtime.Images(ctx)
	if ctx.Err() != nil {
		return nil, false, ctx.Err()
	}
	asked = err == nil
	at := map[string]int{}
	for _, i := range present {
		at[i.ID] = len(found)
		found = append(found, image{Image: i, present: true})
	}
	known, err := s.c.Store.Images("", math.MaxInt)
	for _, facts := range known {
		i, ok := at[facts.ImageID]
		if !ok {
			i = len(found)
			found = append(found, image{Image: tracker.Image{ID: facts.ImageID}})
		}
		found[i].facts = facts
	}
	return found, asked, err
}

func (s *Server) imageTo(i image, asked bool) *adminv1.Image {
	rules := s.c.Tracker.Rules()
	to := &adminv1.Image{
		ImageId: text(i.ID), Names: all(i.Names, imageref.Ref.String),
		Records: all(i.facts.Records, func(r records.Record) *adminv1.Record { return recordTo(rules, r) }),
		Marks:   all(i.facts.Marks, markTo),
	}
	switch {
	case i.present:
		to.Presence = adminv1.Presence_PRESENCE_PRESENT
	case asked:
		to.Presence = adminv1.Presence_PRESENCE_ABSENT
	}
	for _, repository := range i.Repositories() {
		of := func(p records.Pair) bool { return p.Repository == repository }
		if !slices.ContainsFunc(i.facts.Records, func(r records.Record) bool { return of(r.Pair) }) &&
			!slices.ContainsFunc(i.facts.Marks, func(m records.Mark) bool { return of(m.Pair) }) {
			to.Untracked = append(to.Untracked, repository)
		}
	}
	return to
}

// GetImage returns one image.
func (s *Server) GetImage(ctx context.Context, req *adminv1.GetImageRequest) (*adminv1.GetImageResponse, error) {
	wanted := req.GetImage()
	name, err := imageref.Parse(wanted)
	isID := idForm.MatchString(wanted)
	switch {
	case isID:
	case err != nil:
		return nil, invalid("image: %q is neither an image ID, nor 7 digits of one or more, nor a name; allowed are "+
			"sha256:7692ac1, 7692ac1 and registry.example/team/app:1", wanted)
	case name.IsImageID():
		return nil, invalid("image: %q is too short for the beginning of an image ID; allowed are 7 digits or more, lower "+
			"case", wanted)
	}
	images, asked, broken := s.images(ctx)
	if broken != nil {
		return nil, broken
	}
	var byID, byName []image
	for _, i := range images {
		switch {
		case isID && begins(i.ID, wanted):
			byID = append(byID, i)
		case err == nil && i.Carries(name):
			byName = append(byName, i)
		}
	}
	found := byID
	if len(byID) == 0 {
		found = byName // 7 digits may also be a name
	}
	switch {
	case len(found) == 1:
		return &adminv1.GetImageResponse{Image: s.imageTo(found[0], asked)}, nil
	case len(found) > 1:
		ids := all(found, func(i image) string { return i.ID })
		return nil, refuse(codes.FailedPrecondition, "%q is the beginning of several image IDs; give more of one: %s",
			wanted, strings.Join(ids[:min(10, len(ids))], ", "))
	case !asked && !isID:
		return nil, fmt.Errorf("%w what %q stands for; give an image ID", errUnasked, wanted)
	default:
		return nil, refuse(codes.NotFound, "neither the runtime nor the store knows %q", wanted)
	}
}
