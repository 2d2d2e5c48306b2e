package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
)

const (
	// maxHints bounds how many of the digests of an image are tried.
	maxHints = 8
	// maxEntries bounds how many entries of an index are followed, and maxDocuments those of all indexes. The
	// platform decides, so that the first entry is nearly always the right one.
	maxEntries, maxDocuments = 4, 16
	// maxDepth bounds how deep an index is nested.
	maxDepth = 3
)

// A chain has the digests of the documents that lead to an image, from the outermost index to the manifest.
type chain struct {
	image   string // the digest of the configuration
	digests []string
}

// A document is a manifest or an index.
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

// maxParts bounds how many certificates, signatures, timestamps and log entries a bundle has together, and
// maxTimestamps the timestamps alone: each is tried with every timestamp authority, which the limit of time does not
// interrupt.
const (
	maxParts      = 50
	maxTimestamps = 4
)

// digestOf returns the SHA-256 digest of data.
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

func unique(list []string) []string {
	var all []string
	for _, s := range list {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// errOtherImage is returned for a document that leads to another image.
var errOtherImage = errors.New("leads to another image")

// resolve returns the chain from the document with a reference to the image.
func (r *run) resolve(ctx context.Context, reference string) (chain, error) {
	m, err := r.manifest(ctx, r.repository, reference)
	if err != nil {
		return chain{}, err
	}
	if r.resolved[m.Digest] { // by its digest before, now by the tag
		return chain{}, errSeen
	}
	r.resolved[m.Digest] = true
	c := chain{digests: []string{m.Digest}}
	err = r.follow(ctx, m, &c)
	return c, err
}

// errSeen is returned for a document that was judged before.
var errSeen = errors.New("was judged before")

// follow completes a chain whose last document is m.
func (r *run) follow(ctx context.Context, m registry.Manifest, c *chain) error {
	d, err := parseDocument(m.Data)
	if err != nil {
		return fmt.Errorf("%s: %w", m.Digest, err)
	}
	m.Data = nil // it can be large
	if d.Config != nil {
		if r.image.ID != "" && d.Config.Digest.String() != r.image.ID {
			return fmt.Errorf("%s %w, %s", m.Digest, errOtherImage, clean(d.Config.Digest.String()))
		}
		c.image = d.Config.Digest.String()
		return nil
	}
	if len(c.digests) > maxDepth {
		return fmt.Errorf("%s: %w: indexes are nested deeper than %d", m.Digest, registry.ErrTooLarge, maxDepth)
	}
	last := fmt.Errorf("%s has no manifest for the platform of this node, and so %w", m.Digest, errOtherImage)
	for _, entry := range r.entries(d.Manifests) {
		if r.documents++; r.documents > maxDocuments {
			return fmt.Errorf("%s: %w: indexes have more than %d entries for the platform", m.Digest, registry.ErrTooLarge, maxDocuments)
		}
		digest := entry.Digest.String()
		next, err := r.manifest(ctx, r.repository, digest)
		if err == nil {
			before := len(c.digests)
			c.digests = append(c.digests, digest)
			if err = r.follow(ctx, next, c); err == nil {
				return nil
			}
			c.digests = c.digests[:before]
		}
		last = err
		if !errors.Is(err, errOtherImage) && !errors.Is(err, registry.ErrNotFound) {
			return err
		}
	}
	return last
}

// entries returns the entries of an index that can be for the platform, the best first.
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
