package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

const bySigTag, byAttTag = "sig-tag", "att-tag"

// Annotations of the manifests that hold bundles, as cosign writes them.
const (
	predicateAnnotation = "dev.sigstore.bundle.predicateType"
	bundleMediaType     = "application/vnd.dev.sigstore.bundle"
)

type place struct {
	repository, by  string
	digest, subject string // of the document that holds it, and of what it is attached to
	layer           int
}

type candidate struct {
	place
	holds *ocispec.Descriptor // a layer of the manifest; nil if the manifest was not read yet
}

// search reads the signatures of what leads to the image, referrers first: cosign stores signatures so today.
func (r *run) search(ctx context.Context, c chain) {
	sources := []string{"", bySigTag}
	if r.accepted != nil {
		sources = append(sources, byAttTag)
	}
	for _, repository := range r.repositories() {
		for _, by := range sources {
			for _, digest := range c.digests {
				if r.done() || ctx.Err() != nil {
					return
				}
				list, err := r.find(ctx, by, repository, digest)
				if err != nil && !errors.Is(err, registry.ErrNotFound) {
					r.failed(ctx, repository, err)
				}
				r.readSource(ctx, list)
			}
		}
	}
	for len(r.rest) > 0 && r.read < r.v.Limits.Signatures && !r.done() && ctx.Err() == nil {
		next := r.rest[0]
		r.rest = r.rest[1:]
		r.readCandidate(ctx, next)
	}
	if len(r.rest) > 0 && !r.done() {
		r.problems = append(r.problems, problem{
			repository: r.rest[0].repository, reason: requirement.LimitExceeded,
			text: fmt.Sprintf("%s: %d signatures were read, and %d more are attached to the image",
				r.rest[0].repository, r.read, len(r.rest)+r.dropped),
		})
	}
	r.rest = nil
}

func (r *run) repositories() []string {
	all := []string{r.repository}
	for _, l := range r.order {
		if l.signed.Repository != "" {
			all = append(all, l.signed.Repository)
		}
	}
	return unique(all)
}

// find returns what refers to a digest; for a tag, the layers of the image that the older forms attach by it.
func (r *run) find(ctx context.Context, tag, repository, digest string) ([]candidate, error) {
	if tag == "" {
		return r.referrers(ctx, repository, digest)
	}
	data, of, err := r.manifest(ctx, repository, strings.Replace(digest, ":", "-", 1)+"."+strings.TrimSuffix(tag, "-tag"))
	if err != nil {
		return nil, err
	}
	return r.layers(place{repository: repository, by: tag, digest: of, subject: digest}, data)
}

// referrers returns what refers to a digest, whatever its type is: registries and clients report wrong types.
func (r *run) referrers(ctx context.Context, repository, digest string) ([]candidate, error) {
	list, by, err := r.at(repository).Referrers(ctx, digest)
	_ = r.answer(err)
	// Signatures of the present form first, then whatever does not say what it is, then attestations.
	var groups [3][]ocispec.Descriptor
	for _, d := range list {
		rank := 1
		switch predicate := d.Annotations[predicateAnnotation]; {
		case predicate == requirement.SignatureType, slices.Contains(r.accepted, predicate):
			rank = 0
		case predicate != "":
			rank = 2
		}
		groups[rank] = append(groups[rank], d)
	}
	var all []candidate
	for _, group := range groups {
		slices.SortStableFunc(group, func(a, b ocispec.Descriptor) int { return created(b).Compare(created(a)) })
		for _, d := range fromBothEnds(group) {
			if at := d.Digest.String(); isDigest(at) {
				all = append(all, candidate{place: place{repository: repository, by: by, digest: at, subject: digest}})
			}
		}
	}
	return all, err
}

func created(d ocispec.Descriptor) time.Time {
	t, _ := time.Parse(time.RFC3339, d.Annotations[ocispec.AnnotationCreated])
	return t
}

// fromBothEnds returns the first element of a list, the last, the second, and so on: of more signatures than are read,
// adding new ones does not displace all older ones.
func fromBothEnds[T any](list []T) []T {
	all := make([]T, 0, len(list))
	for i, j := 0, len(list)-1; i <= j; i, j = i+1, j-1 {
		if all = append(all, list[i]); i != j {
			all = append(all, list[j])
		}
	}
	return all
}

func (r *run) layers(at place, data []byte) ([]candidate, error) {
	d, err := parseDocument(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at.digest, err)
	}
	var all []candidate
	for i, layer := range d.Layers {
		_, simple := layer.Annotations[signatureAnnotation]
		simple = simple || r.accepted != nil && layer.MediaType == envelopeMediaType
		if (simple || strings.HasPrefix(layer.MediaType, bundleMediaType)) && isDigest(layer.Digest.String()) {
			at.layer = i
			all = append(all, candidate{place: at, holds: &layer})
		}
	}
	if at.by == byAttTag { // cosign adds the newest one at the end
		slices.Reverse(all)
	}
	return fromBothEnds(all), nil
}

// readSource reads one source. One with many gets at most half of what is read before the others had their turn.
func (r *run) readSource(ctx context.Context, list []candidate) {
	most := int(r.v.Limits.Signatures)
	for i, c := range list {
		if r.done() || ctx.Err() != nil {
			return
		}
		if i >= max(1, most/2) || r.read >= r.v.Limits.Signatures {
			// More than this will not be read, and each takes memory.
			waiting := list[i:min(len(list), i+max(0, most-len(r.rest)))]
			r.rest = append(r.rest, waiting...)
			r.dropped += len(list) - i - len(waiting)
			return
		}
		r.readCandidate(ctx, c)
	}
}

func (r *run) readCandidate(ctx context.Context, c candidate) {
	if r.seen[c.place] {
		return
	}
	r.seen[c.place] = true
	if c.holds != nil {
		r.read++
		r.readLayer(ctx, c)
		return
	}
	data, _, err := r.manifest(ctx, c.repository, c.digest)
	if err != nil {
		r.read++
		r.unreadable(ctx, c.place, err)
		return
	}
	list, err := r.layers(c.place, data)
	if err != nil || len(list) == 0 { // something else is attached, such as an index or a file
		r.read++
	}
	for i := range list {
		list[i].layer++ // 0 is the manifest
	}
	r.readSource(ctx, list)
}

func (r *run) readLayer(ctx context.Context, c candidate) {
	if most := r.v.Limits.Bytes.Value(); c.holds.Size > most {
		r.unreadable(ctx, c.place, fmt.Errorf("%w: a signature has %d bytes, and at most %d are read",
			registry.ErrTooLarge, c.holds.Size, most))
		return
	}
	data, err := r.blob(ctx, c.repository, c.holds.Digest.String())
	if err != nil {
		r.unreadable(ctx, c.place, err)
		return
	}
	if r.accepted != nil && len(data) > maxStatement {
		if r.large++; r.large > maxLarge {
			r.unreadable(ctx, c.place, fmt.Errorf("%w: more than %d attestations have more than %d bytes",
				registry.ErrTooLarge, maxLarge, maxStatement))
			return
		}
	}
	r.judgeSignature(ctx, c.place, func() (*signature, error) {
		_, simple := c.holds.Annotations[signatureAnnotation]
		switch {
		case c.holds.MediaType == envelopeMediaType && r.accepted != nil:
			return parseEnvelope(data, c.holds.Annotations, r.accepted)
		case simple:
			return parseSimple(data, c.holds.Annotations)
		}
		return parseBundle(data, r.accepted)
	})
}

// maxLarge is how many large attestations are read: who has signed one is known only after it is decoded, which takes a
// good part of a second.
const maxLarge = 8

func (r *run) unreadable(ctx context.Context, at place, err error) {
	r.failed(ctx, at.repository, err)
	r.note(at, "", false, clean(plain(err.Error())))
}

func (r *run) note(at place, signer string, counts bool, reason string) {
	if r.list {
		r.found = append(r.found, requirement.Signature{
			Repository: at.repository, FoundBy: at.by, Digest: at.digest, Subject: at.subject,
			Signer: signer, Counts: counts, Reason: reason,
		})
	}
}

const (
	maxHints = 8 // bounds how many of the digests of an image are tried
	// The entries of an index that are followed, and those of all indexes. The first one is nearly always the right one.
	maxEntries, maxDocuments = 4, 16
	maxDepth                 = 3 // bounds how deep an index is nested
)

// A chain has the digests of the documents that lead to an image, from the outermost index to the manifest.
type chain struct {
	image   string // the digest of the configuration
	digests []string
	// manifest is the content of the last of digests, if a condition reads it.
	manifest []byte
}

type document struct {
	Config    *ocispec.Descriptor  `json:"config"`
	Layers    []ocispec.Descriptor `json:"layers"`
	Manifests []ocispec.Descriptor `json:"manifests"`
}

// parseDocument decodes a manifest or an index. One that could be read as either is an error.
func parseDocument(data []byte) (d document, err error) {
	if err := registry.Bounded(data); err != nil {
		return document{}, err
	}
	switch err := json.Unmarshal(data, &d); {
	case err != nil:
		return document{}, fmt.Errorf("%w: %w", registry.ErrMalformed, err)
	case d.Config != nil && d.Manifests != nil:
		return document{}, fmt.Errorf("%w: is both a manifest and an index", registry.ErrMalformed)
	case d.Config == nil && d.Manifests == nil:
		return document{}, fmt.Errorf("%w: is neither a manifest nor an index of a supported type", registry.ErrMalformed)
	}
	return d, nil
}

// maxField bounds the size of certificates, signatures, timestamps and log entries, because checking them takes time.
const maxField = 64 << 10

// maxParts bounds the certificates, signatures, timestamps and log entries of a bundle together, maxTimestamps
// timestamps alone: each is tried with every timestamp authority, which the limit of time does not interrupt.
const (
	maxParts      = 50
	maxTimestamps = 4
)

func digestOf(data []byte) string { return digest.FromBytes(data).String() }

const digestPrefix = "sha256:"

// isDigest reports whether s is a SHA-256 digest in the only form that it has. Other algorithms are not supported.
func isDigest(s string) bool {
	return strings.HasPrefix(s, digestPrefix) && digest.Digest(s).Validate() == nil
}

// references returns what can lead to the image, the likeliest first: digests, then the tag.
func (r *run) references() []string {
	name := r.image.Name.Name()
	tag := strings.TrimPrefix(name.String(), name.Repository())[1:]
	var here, elsewhere []string
	if name.IsDigest() {
		here = append(here, tag)
	}
	for _, hint := range r.image.Digests {
		repository, digest, ok := strings.Cut(hint, "@")
		if !ok {
			repository, digest = r.repository, hint
		}
		switch {
		case !isDigest(digest):
		case repository == r.repository:
			here = append(here, digest)
		default:
			elsewhere = append(elsewhere, digest)
		}
	}
	all := unique(append(here, elsewhere...))
	all = all[:min(len(all), maxHints)]
	if !name.IsDigest() {
		all = append(all, tag)
	}
	return all
}

func unique(list []string) (all []string) {
	for _, s := range list {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

var errOtherImage = errors.New("leads to another image")

func (r *run) resolve(ctx context.Context, reference string) (chain, error) {
	data, digest, err := r.manifest(ctx, r.repository, reference)
	if err != nil {
		return chain{}, err
	}
	if r.resolved[digest] { // by its digest before, now by the tag
		return chain{}, errSeen
	}
	r.resolved[digest] = true
	c := chain{digests: []string{digest}}
	err = r.follow(ctx, data, &c)
	return c, err
}

var errSeen = errors.New("was judged before")

// follow completes a chain, whose last digest is that of data.
func (r *run) follow(ctx context.Context, data []byte, c *chain) error {
	at := c.digests[len(c.digests)-1]
	d, err := parseDocument(data)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	if d.Config != nil {
		if r.image.ID != "" && d.Config.Digest.String() != r.image.ID {
			return fmt.Errorf("%s %w, %s", at, errOtherImage, clean(d.Config.Digest.String()))
		}
		c.image = d.Config.Digest.String()
		if r.needs.manifest {
			c.manifest = data
		}
		return nil
	}
	if len(c.digests) > maxDepth {
		return fmt.Errorf("%s: %w: indexes are nested deeper than %d", at, registry.ErrTooLarge, maxDepth)
	}
	last := fmt.Errorf("%s has no manifest for the platform of this node, and so %w", at, errOtherImage)
	for _, entry := range r.entries(d.Manifests) {
		if r.documents++; r.documents > maxDocuments {
			return fmt.Errorf("%s: %w: indexes have more than %d entries for the platform",
				at, registry.ErrTooLarge, maxDocuments)
		}
		digest := entry.Digest.String()
		next, _, err := r.manifest(ctx, r.repository, digest)
		if err == nil {
			before := c.digests
			c.digests = append(c.digests, digest)
			if err = r.follow(ctx, next, c); err == nil {
				return nil
			}
			c.digests = before
		}
		last = err
		if !errors.Is(err, errOtherImage) && !errors.Is(err, registry.ErrNotFound) {
			return err
		}
	}
	return last
}

func (r *run) entries(all []ocispec.Descriptor) []ocispec.Descriptor {
	var fit, unknown []ocispec.Descriptor
	for _, e := range all {
		switch {
		case !isDigest(e.Digest.String()):
		case e.Platform == nil:
			unknown = append(unknown, e)
		case r.v.platform.Match(*e.Platform):
			fit = append(fit, e)
		}
	}
	sort.SliceStable(fit, func(i, j int) bool { return r.v.platform.Less(*fit[i].Platform, *fit[j].Platform) })
	fit = append(fit, unknown...)
	return fit[:min(len(fit), maxEntries)]
}
