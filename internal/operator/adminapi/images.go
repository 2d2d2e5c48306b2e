package adminapi

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

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
		return "", invalid("%s: %q is not the name of an image; allowed is one with or without a tag or digest, as in busybox or registry.example/team/app:1", field, name)
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
		secret: records.SecretRef{UID: f.GetSecret().GetUid(), Namespace: f.GetSecret().GetNamespace(), Name: f.GetSecret().GetName()},
	}
	if ns := f.GetNamespace(); ns != "" {
		if selected.secret.Namespace != "" && selected.secret.Namespace != ns {
			return filter{}, invalid("filter.namespace: %q is not that of filter.secret, %q; give one of them", ns, selected.secret.Namespace)
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
	p, err := list(ctx, req, keyed(images, func(i image) string { return i.ID }), func(_ string, i image) (*adminv1.Image, bool) {
		selected := f.narrow(&i)
		return s.imageTo(i, asked), selected
	})
	return &adminv1.ListImagesResponse{Images: p.entries, NextPageToken: p.next}, err
}

// images returns every image of the runtime or the store. asked reports whether the runtime answered: otherwise it is
// not known which are present.
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
		return nil, invalid("image: %q is neither an image ID, nor 7 digits of one or more, nor a name; allowed are sha256:7692ac1, 7692ac1 and registry.example/team/app:1", wanted)
	case name.IsImageID():
		return nil, invalid("image: %q is too short for the beginning of an image ID; allowed are 7 digits or more, lower case", wanted)
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
