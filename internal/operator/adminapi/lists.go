package adminapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

type listRequest interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
}

// position returns the key after which a page begins, "" for the first page, and a hash of the list and its filter.
// Tokens begin with it, so that they are valid for no other list.
func position(req listRequest) (after string, scope []byte, err error) {
	filter := proto.Clone(req).ProtoReflect()
	fields := filter.Descriptor().Fields()
	filter.Clear(fields.ByName("page_size"))
	filter.Clear(fields.ByName("page_token"))
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(filter.Interface())
	if err != nil {
		return "", nil, invalid("the filter is not readable: %v", err)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(filter.Descriptor().Name())) // a hash never fails
	_, _ = h.Write(text)
	scope = h.Sum(nil)
	if req.GetPageToken() == "" {
		return "", scope, nil
	}
	token, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil || len(token) <= len(scope) || !bytes.HasPrefix(token, scope) {
		return "", nil, invalid("page_token: not one of this list with this filter; begin again without")
	}
	return string(token[len(scope):]), scope, nil
}

// separator joins the parts of a key. It does not occur in an image ID, a repository or a UID.
const separator = "\x00"

// list returns the requested page of the entries that read returns, in the order of their keys, and the token of the
// next page. to makes the entry of the answer, and reports whether it is selected; repository is that of the request,
// "" for any.
func list[T any, M proto.Message](ctx context.Context, req listRequest, read func() ([]T, error), key func(T) string,
	to func(repository string, entry T) (made M, selected bool),
) (page []M, next string, err error) {
	size := min(int(req.GetPageSize()), maxPage)
	if size < 0 {
		return nil, "", invalid("page_size: %d is not allowed; allowed is 0, which means %d, up to %d", size, defaultPage,
			maxPage)
	}
	size = cmp.Or(size, defaultPage)
	after, scope, err := position(req)
	if err != nil {
		return nil, "", err
	}
	repository := ""
	if r, ok := req.(interface{ GetRepository() string }); ok {
		if repository, err = repositoryOf("repository", r.GetRepository()); err != nil {
			return nil, "", err
		}
	}
	found, err := read()
	if err != nil {
		return nil, "", err
	}
	entries := make(map[string]T, len(found))
	for _, e := range found {
		if k := key(e); k > after {
			entries[k] = e
		}
	}
	total, last := 0, ""
	for _, k := range slices.Sorted(maps.Keys(entries)) {
		made, selected := to(repository, entries[k])
		if err := ctx.Err(); err != nil {
			return nil, "", err
		}
		if !selected {
			continue
		}
		total += proto.Size(made)
		if len(page) > 0 && (len(page) >= size || total > maxPageBytes) {
			return page, base64.RawURLEncoding.EncodeToString(append(scope, last...)), nil
		}
		page, last = append(page, made), k
	}
	return page, "", nil
}

func inMemory[T any](entries []T) func() ([]T, error) {
	return func() ([]T, error) { return entries, nil }
}

func fits(wanted, got string) bool { return wanted == "" || wanted == got }

// ListIntents lists pull intents.
func (s *Server) ListIntents(
	ctx context.Context, req *adminv1.ListIntentsRequest,
) (*adminv1.ListIntentsResponse, error) {
	page, next, err := list(ctx, req, s.c.Store.Intents, func(in records.Intent) string {
		return fmt.Sprintf("%s%s%020d", in.Repository, separator, in.ID)
	}, func(repository string, in records.Intent) (*adminv1.Intent, bool) {
		return intentTo(in), fits(repository, in.Repository)
	})
	return &adminv1.ListIntentsResponse{Intents: page, NextPageToken: next}, err
}

// ListPreloaded lists preloaded marks.
func (s *Server) ListPreloaded(
	ctx context.Context, req *adminv1.ListPreloadedRequest,
) (*adminv1.ListPreloadedResponse, error) {
	page, next, err := list(ctx, req, s.c.Store.Marks, func(m records.Mark) string {
		return m.Pair.ImageID + separator + m.Pair.Repository
	}, func(repository string, m records.Mark) (*adminv1.Mark, bool) {
		return markTo(m), fits(repository, m.Pair.Repository) && begins(m.Pair.ImageID, req.GetImageId())
	})
	return &adminv1.ListPreloadedResponse{Marks: page, NextPageToken: next}, err
}

// ListEndorsements lists endorsements.
func (s *Server) ListEndorsements(
	ctx context.Context, req *adminv1.ListEndorsementsRequest,
) (*adminv1.ListEndorsementsResponse, error) {
	to := s.endorsements()
	page, next, err := list(ctx, req, func() ([]records.Endorsement, error) {
		return s.c.Store.SelectedEndorsements(records.EndorsementSelection{All: true})
	}, endorsementKey, func(repository string, e records.Endorsement) (*adminv1.Endorsement, bool) {
		made := to(e)
		return made, fits(repository, e.Pair.Repository) && (!req.GetDrift() || made.GetDrift() != nil) &&
			begins(e.Pair.ImageID, req.GetImageId()) &&
			strings.HasPrefix(e.Requirement, req.GetRequirement()) &&
			(req.GetSigner() == "" || slices.Contains(e.Signers, req.GetSigner()))
	})
	return &adminv1.ListEndorsementsResponse{Endorsements: page, NextPageToken: next}, err
}

// ListGrants lists grants.
func (s *Server) ListGrants(ctx context.Context, req *adminv1.ListGrantsRequest) (*adminv1.ListGrantsResponse, error) {
	known, of := s.names(), req.GetPod()
	grants := s.c.Tracker.SelectedGrants(func(g tracker.Grant) bool {
		pod := known[g.Pod]
		return fits(of.GetUid(), g.Pod) && fits(of.GetNamespace(), pod.Namespace) && fits(of.GetName(), pod.Name)
	})
	page, next, err := list(ctx, req, inMemory(grants), func(g tracker.Grant) string {
		return strings.Join([]string{g.Pod, g.Pair.ImageID, g.Pair.Repository}, separator)
	}, func(repository string, g tracker.Grant) (*adminv1.Grant, bool) {
		return known.grant(g), fits(repository, g.Pair.Repository)
	})
	return &adminv1.ListGrantsResponse{Grants: page, NextPageToken: next}, err
}

// ListPolicies lists the policies in use.
func (s *Server) ListPolicies(
	ctx context.Context, req *adminv1.ListPoliciesRequest,
) (*adminv1.ListPoliciesResponse, error) {
	in := s.c.Policies()
	page, next, err := list(ctx, req, inMemory(in.GetPolicies()), func(policy *adminv1.Policy) string {
		return policy.GetKind() + separator + policy.GetName()
	}, func(_ string, policy *adminv1.Policy) (*adminv1.Policy, bool) { return policy, true })
	return &adminv1.ListPoliciesResponse{
		Policies: page, NextPageToken: next, Folder: in.GetFolder(), Hash: in.GetHash(), ReloadError: in.GetReloadError(),
		Enforcing: in.GetEnforcing(), RefuseUnjudged: in.GetRefuseUnjudged(), Warnings: all(in.GetWarnings(), text),
	}, err
}

// idForm matches an image ID, or a beginning of one that is long enough to identify the image.
var (
	idForm       = regexp.MustCompile(`^(sha256:)?[0-9a-f]{7,64}$`)
	unparsedForm = regexp.MustCompile(`^unparsed/[0-9a-f]{64}$`)
)

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

type filter struct {
	*adminv1.ImageFilter
	repository string
	secret     records.SecretRef
}

func secretOf(in string, s *adminv1.SecretRef, namespace string) (records.SecretRef, error) {
	of := records.SecretRef{UID: s.GetUid(), Namespace: cmp.Or(namespace, s.GetNamespace()), Name: s.GetName()}
	if s.GetNamespace() != "" && s.GetNamespace() != of.Namespace {
		return of, invalid("%snamespace: %q is not that of %ssecret, %q; give one of them", in, namespace, in,
			s.GetNamespace())
	}
	return of, nil
}

func begins(id, with string) bool {
	return strings.HasPrefix(id, with) || strings.HasPrefix(strings.TrimPrefix(id, "sha256:"), with)
}

type image struct {
	tracker.Image // of an absent image only the ID
	present       bool
	facts         records.ImageFacts
}

func (f filter) narrow(i *image) bool {
	if !begins(i.ID, f.GetImageId()) {
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
	by := records.Revocation{Secret: f.secret}
	if f.secret != (records.SecretRef{}) && !slices.ContainsFunc(i.facts.Records, func(r records.Record) bool {
		return slices.ContainsFunc(r.Proofs, func(p records.Proof) bool { return by.Selects(p.Credential, p.Secrets) })
	}) {
		return false
	}
	if t := f.GetCreatedBefore(); t != nil &&
		!slices.ContainsFunc(i.facts.Records, func(r records.Record) bool { return r.Created.Before(t.AsTime()) }) &&
		!slices.ContainsFunc(i.facts.Marks, func(m records.Mark) bool { return m.Set.Before(t.AsTime()) }) {
		return false
	}
	t := f.GetUnusedSince()
	return t == nil || len(i.facts.Records) > 0 && !slices.ContainsFunc(i.facts.Records, func(r records.Record) bool {
		return !r.LastUsed.Before(t.AsTime()) || !r.Created.Before(t.AsTime())
	})
}

// ListImages lists images, ordered by ID.
func (s *Server) ListImages(ctx context.Context, req *adminv1.ListImagesRequest) (*adminv1.ListImagesResponse, error) {
	f := filter{ImageFilter: req.GetFilter()}
	var err error
	if f.repository, err = repositoryOf("filter.repository", f.GetRepository()); err != nil {
		return nil, err
	}
	if f.secret, err = secretOf("filter.", f.GetSecret(), f.GetNamespace()); err != nil {
		return nil, err
	}
	images, asked, err := s.images(ctx)
	if err != nil {
		return nil, err
	}
	page, next, err := list(ctx, req, inMemory(images), func(i image) string { return i.ID },
		func(_ string, i image) (*adminv1.Image, bool) {
			selected := f.narrow(&i)
			return s.imageTo(i, asked), selected
		})
	return &adminv1.ListImagesResponse{Images: page, NextPageToken: next}, err
}

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
	known, err := s.c.Store.Images()
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
		answer := s.imageTo(found[0], asked)
		answer.Rights = s.rightsOf(ctx, found[0], s.c.Access())
		return &adminv1.GetImageResponse{Image: answer}, nil
	case len(found) > 1:
		ids := all(found, func(i image) string { return i.ID })
		return nil, status.Errorf(codes.FailedPrecondition, "%q is the beginning of several image IDs; give more of one: %s",
			wanted, strings.Join(ids[:min(10, len(ids))], ", "))
	case !asked && !isID:
		return nil, fmt.Errorf("%w what %q stands for; give an image ID", errUnasked, wanted)
	}
	return nil, status.Errorf(codes.NotFound, "neither the runtime nor the store knows %q", wanted)
}
