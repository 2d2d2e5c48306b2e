package registry

import (
	"context"
	_ "crypto/sha512" // digests of this kind
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
)

const (
	maxManifest = 4 << 20 // the size of the largest manifest or list, as registries have it too
	// maxReferrers is how many entries a list of referrers may have, and maxPages how many answers it may take.
	maxReferrers, maxPages = 1000, 20

	ociIndex    = ocispec.MediaTypeImageIndex
	ociManifest = ocispec.MediaTypeImageManifest
	accepted    = ociIndex + ", " + ociManifest +
		", application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"
)

// How a list of referrers was found, in the words of the field found_by of the policy API.
const (
	ByAPI    = "referrers"
	ByTag    = "fallback-tag"
	ByFolder = "bundles"
)

// A Repository reads one repository with one credential, for one goroutine.
// The hosts of the registry are asked in their order, until one has the object. If none has it, the error is that of
// the last one, the registry itself; content that is invalid is reported in any case. An object that the folder of
// bundles has is taken from there, and for a digest that it knows no registry is asked for signatures.
type Repository struct {
	client             *Client
	name, domain, path string
	credential         admission.Login
	invalid            error
	bundles            *bundles

	sessions []*session // with the hosts of the registry; nil before the first request
	answered bool       // a server has answered
}

func (r *Repository) open() error {
	if r.invalid != nil || r.sessions != nil {
		return r.invalid
	}
	hosts, err := r.client.hosts(r.domain)
	if err != nil {
		r.client.options.Count(Outcome(err))
	}
	for _, h := range hosts {
		s := &session{host: h, repository: r, scheme: h.scheme}
		if _, port, _ := cutPort(h.address); h.explicitTLS && port != "80" {
			s.scheme = "https"
		}
		r.sessions = append(r.sessions, s)
	}
	return err
}

func (r *Repository) each(ctx context.Context, need capabilities, ask func(*session) error) error {
	if err := r.open(); err != nil {
		return err
	}
	err := fmt.Errorf("%w: no host of %s in %s has the capability", ErrUnavailable, r.domain, hostsFile)
	var invalid error
	for _, s := range r.sessions {
		if s.host.can&need == 0 {
			continue
		}
		if err = ask(s); err == nil {
			return nil
		}
		if invalid == nil && (errors.Is(err, ErrMismatch) || errors.Is(err, ErrMalformed) || errors.Is(err, ErrTooLarge)) {
			invalid = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	if invalid != nil {
		return invalid
	}
	return err
}

// signatureTag matches the tags that are made of a digest: of lists of referrers, and of signatures and attestations.
// Like a digest, and unlike other tags, they may be read from any host: what they lead to is judged by its signature.
var signatureTag = regexp.MustCompile(`^sha256-([0-9a-f]{64})(\.[a-z]+)?$`)

// Manifest returns the manifest or index with a tag or digest. Content of another digest is ErrMismatch.
func (r *Repository) Manifest(ctx context.Context, tagOrDigest string) ([]byte, error) {
	q := request{what: "manifest", path: "/manifests/" + tagOrDigest, accept: accepted, limit: maxManifest}
	need := pull
	if strings.Contains(tagOrDigest, ":") {
		d, err := parseDigest(tagOrDigest)
		if err != nil {
			return nil, err
		}
		if data, ok, err := r.bundles.blob(d, maxManifest); ok || err != nil {
			return data, err
		}
		q.digest = d
	} else {
		if err := r.checkTag(tagOrDigest); err != nil {
			return nil, err
		}
		if of := signatureTag.FindStringSubmatch(tagOrDigest); of == nil {
			need = resolve
		} else if r.bundles.knows(digest.NewDigestFromEncoded(digest.SHA256, of[1])) {
			return nil, ErrNotFound
		}
	}
	return r.read(ctx, need, q)
}

func (r *Repository) read(ctx context.Context, need capabilities, q request) (data []byte, err error) {
	err = r.each(ctx, need, func(s *session) error {
		a, err := s.get(ctx, q)
		data = a.data
		return err
	})
	return data, err
}

func (r *Repository) checkTag(tag string) error {
	if r.invalid != nil {
		return r.invalid
	}
	named, err := reference.WithName(r.name)
	if err == nil {
		_, err = reference.WithTag(named, tag)
	}
	if err != nil {
		return malformed("%q is not a tag", safetext.Line(tag, maxText))
	}
	return nil
}

func parseDigest(s string) (digest.Digest, error) {
	d, err := digest.Parse(s)
	if err != nil {
		return "", malformed("%q is not a digest", safetext.Line(s, maxText))
	}
	return d, nil
}

// Blob returns the content with a digest. More than limit bytes are ErrTooLarge, another digest is ErrMismatch.
func (r *Repository) Blob(ctx context.Context, content string, limit int64) ([]byte, error) {
	d, err := parseDigest(content)
	if err != nil {
		return nil, err
	}
	if data, ok, err := r.bundles.blob(d, limit); ok || err != nil {
		return data, err
	}
	return r.read(ctx, pull, request{what: "blob", path: "/blobs/" + content, limit: limit, digest: d, follow: true})
}

// Referrers returns the unfiltered list of the referrers API, or of the fallback tag without the API; of several hosts
// the first list that is not empty. foundBy is [ByAPI], [ByTag] or [ByFolder]. More than 1000 entries are ErrTooLarge.
// The entries are as the registry says, with valid digests.
func (r *Repository) Referrers(ctx context.Context, of string) (list []ocispec.Descriptor, foundBy string, err error) {
	d, err := parseDigest(of)
	if err != nil {
		return nil, "", err
	}
	if r.bundles.knows(d) {
		list, err := r.bundles.referrers(d)
		return list, ByFolder, err
	}
	empty := ""
	err = r.each(ctx, pull|referrers, func(s *session) error {
		var err error
		if list, foundBy, err = s.referrers(ctx, d); err == nil && len(list) == 0 {
			empty = foundBy
			return ErrNotFound // as long as there are other hosts
		}
		if err != nil {
			empty = ""
		}
		return err
	})
	if errors.Is(err, ErrNotFound) && empty != "" {
		return nil, empty, nil
	}
	return list, foundBy, err
}

func (s *session) referrers(ctx context.Context, d digest.Digest) ([]ocispec.Descriptor, string, error) {
	if !s.noReferrers {
		list, err := s.referrersByAPI(ctx, d)
		if !errors.Is(err, errNoAPI) {
			return list, ByAPI, err
		}
		s.noReferrers = errors.Is(err, errNoRoute)
	}
	path := "/manifests/" + d.Algorithm().String() + "-" + d.Encoded()
	a, err := s.get(ctx, request{what: "referrers", path: path, accept: ociIndex, limit: maxManifest})
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, ByTag, nil
	case err != nil:
		return nil, ByTag, err
	}
	list, err := parseReferrers(a.data)
	return list, ByTag, err
}

// errNoAPI means that a host has no API for referrers. With the API, an unknown digest has an empty list.
var errNoAPI = errors.New("registry: no referrers API")

func (s *session) referrersByAPI(ctx context.Context, d digest.Digest) ([]ocispec.Descriptor, error) {
	var list []ocispec.Descriptor
	left := int64(maxManifest)
	q := request{what: "referrers", path: "/referrers/" + d.String(), accept: ociIndex}
	for page := 0; ; page++ {
		q.limit = left
		a, err := s.get(ctx, q)
		status, other := errors.AsType[*statusError](err)
		switch {
		case page == 0 && (errors.Is(err, ErrNotFound) || other && status.status >= 400):
			return nil, errors.Join(errNoAPI, err)
		case err != nil:
			return nil, err
		case page == 0 && !isJSON(a.header):
			return nil, errNoAPI // a page for browsers
		}
		entries, err := parseReferrers(a.data)
		if err != nil {
			return nil, err
		}
		list = append(list, entries...)
		left -= int64(len(a.data))
		next, err := nextPage(a)
		switch {
		case err != nil:
			return nil, err
		case len(list) > maxReferrers || next != nil && (page+1 == maxPages || left <= 0):
			return nil, fmt.Errorf("%w: more than %d referrers", ErrTooLarge, maxReferrers)
		case next == nil:
			return list, nil
		case !s.own(next):
			return nil, malformed("the next page of referrers is at another host")
		}
		q.url = next
	}
}

func nextPage(a answer) (*url.URL, error) {
	for _, link := range a.header.Values("Link") {
		target, parameters, ok := strings.Cut(link, ">")
		if !ok || !strings.Contains(strings.ReplaceAll(strings.ToLower(parameters), `"`, ""), "rel=next") {
			continue
		}
		next, err := a.url.Parse(strings.TrimPrefix(strings.TrimSpace(target), "<"))
		if err != nil {
			return nil, malformed("the address of the next page of referrers")
		}
		return next, nil
	}
	return nil, nil
}

func parseReferrers(data []byte) ([]ocispec.Descriptor, error) {
	if err := Bounded(data); err != nil {
		return nil, err
	}
	var index struct{ Manifests []ocispec.Descriptor }
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, malformed("a list of referrers that is not an index")
	}
	if len(index.Manifests) > maxReferrers {
		return nil, fmt.Errorf("%w: more than %d referrers", ErrTooLarge, maxReferrers)
	}
	for _, m := range index.Manifests {
		if _, err := parseDigest(m.Digest.String()); err != nil {
			return nil, err
		}
	}
	return index.Manifests, nil
}
