package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore-go/pkg/root"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// A Repository has untrusted documents, but those that are asked for by digest have that digest.
type Repository interface {
	// Manifest returns a manifest or an index by tag or digest, and Blob a blob of at most limit bytes.
	Manifest(ctx context.Context, reference string) ([]byte, error)
	Blob(ctx context.Context, digest string, limit int64) ([]byte, error)
	// Referrers returns the manifests that refer to a digest, and how they were found.
	Referrers(ctx context.Context, digest string) ([]ocispec.Descriptor, string, error)
}

// Options configure a Verifier.
type Options struct {
	// Open returns a repository by its normalised name, such as registry.example/team/app.
	Open        func(repository string, cred admission.Login) Repository
	TrustedRoot []byte // the content of a trusted_root.json; nil if there is none
	Limits      config.SignatureLimits
}

// A Verifier verifies signatures of images. It is safe for concurrent use, and keeps nothing but compiled conditions
// between calls.
type Verifier struct {
	Options

	trusted    *root.TrustedRoot // nil if there is none
	platform   platforms.MatchComparer
	conditions sync.Map // compiled, by *requirement.Validation
}

// New returns a Verifier. It is an error if the trusted root is not valid or has expired.
func New(o Options) (v *Verifier, err error) {
	v = &Verifier{Options: o, platform: platforms.Only(platforms.DefaultSpec())}
	if o.TrustedRoot != nil {
		v.trusted, err = parseTrustedRoot(o.TrustedRoot, time.Now())
	}
	return v, err
}

// An Image is what is verified.
type Image struct {
	Name imageref.Ref // the name in the pod. Its repository is where signatures count
	// ID is the digest of the configuration of the image on the node; "" means the image that the registry has now.
	ID string
	// Digests of manifests and indexes are hints about what leads to the image, also with a repository before an @.
	Digests []string
	// Background says that no pull waits, so that there is no credential of one. All statements are read, and those that
	// count for longest decide.
	Background bool
	// Patch is a patch by the only requirement. If that is met, its result has the values for the patch.
	Patch *condition.Patch
}

// ErrName is returned by Verify for an image without a valid name.
var ErrName = errors.New("verify: invalid image name")

// Verify reports which requirements the image meets. cred is sent to the registry of the image alone. With list,
// signatures are read also after all requirements are met. An error says nothing about the image.
func (v *Verifier) Verify(ctx context.Context, image Image, want []*requirement.Rule, cred admission.Login, list bool) (
	requirement.Report, error,
) {
	if !image.Name.Parsed() || image.Name.MayBeImageID() {
		return requirement.Report{}, ErrName
	}
	if id := digestPrefix + image.ID; isDigest(id) { // some runtimes leave out the algorithm
		image.ID = id
	}
	r := &run{
		v: v, image: image, repository: image.Name.Repository(), credential: cred, list: list, want: want,
		leaves: map[*requirement.Signer]*leaf{}, opened: map[string]Repository{}, resolved: map[string]bool{},
		seen: map[place]bool{}, evaluated: map[evaluation]evaluated{},
	}
	for _, w := range want {
		without, evidence := false, false // of a program, which may be not for the image
		for _, s := range w.Requirement.Signers() {
			l := v.newLeaf(s)
			l.evidence = evidence && s.Image == nil
			evidence = evidence || s.Image != nil && s.Image.Program != nil
			if without = without || s.Image != nil && l.err == nil && !l.conditions.Applies(ctx, image.Name); without {
				l.signer = s.String()
				r.leaves[s] = l
				continue
			}
			if l.err != nil {
				l.miss = missOf(l.err)
			}
			r.leaves[s] = l
			if s.Image == nil { // of signatures
				r.order = append(r.order, l)
			} else {
				r.validations = append(r.validations, validation{l, w.Requirement})
			}
		}
	}
	r.accepted = acceptedTypes(r.order)
	r.needs = needsOf(r.validations, image.Patch)
	if !r.done() {
		limited, cancel := context.WithTimeout(ctx, v.Limits.Time.Value())
		defer cancel()
		r.judge(limited)
		if err := context.Cause(ctx); err != nil {
			return requirement.Report{}, err
		}
		if limited.Err() != nil && !r.done() {
			r.failed(limited, r.repository, limited.Err())
		}
	}
	report := requirement.Report{Signatures: r.found}
	for _, w := range want {
		report.Results = append(report.Results, r.result(w))
	}
	return report, nil
}

// parseTrustedRoot returns an error if all parts have expired: the file was not renewed, and all images that were
// signed later would be denied. If only some have, they still verify older signatures.
func parseTrustedRoot(data []byte, now time.Time) (*root.TrustedRoot, error) {
	trusted, err := guarded(func() (*root.TrustedRoot, error) { return root.NewTrustedRootFromJSON(data) })
	if err != nil {
		return nil, err
	}
	all := partsOf(trusted)
	if len(all) == 0 {
		return nil, errors.New("has no certificate authority, no transparency log and no timestamp authority")
	}
	if slices.ContainsFunc(all, func(p part) bool { return !p.ended(now) }) {
		return trusted, nil
	}
	last := slices.MaxFunc(all, func(a, b part) int { return a.end.Compare(b.end) })
	return nil, fmt.Errorf("has expired at %s; replace the file by a current one", last.end.UTC().Format(time.RFC3339))
}

// ExpiredParts returns a text for each part that has ended. It is an error if a Verifier would not accept the root.
func ExpiredParts(trustedRoot []byte, now time.Time) (expired []string, err error) {
	trusted, err := parseTrustedRoot(trustedRoot, now)
	if err != nil {
		return nil, err
	}
	all := partsOf(trusted)
	for _, l := range trusted.CTLogs() {
		all = append(all, part{"certificate log " + l.BaseURL, l.ValidityPeriodEnd})
	}
	for _, p := range all {
		if p.ended(now) {
			expired = append(expired, fmt.Sprintf("%s ended at %s", p.name, p.end.UTC().Format(time.RFC3339)))
		}
	}
	return expired, nil
}

type part struct {
	name string
	end  time.Time // zero if it has none
}

func (p part) ended(now time.Time) bool { return !p.end.IsZero() && !p.end.After(now) }

// partsOf returns the parts of which one must be valid. A log of certificates cannot replace an authority.
func partsOf(trusted *root.TrustedRoot) (all []part) {
	for _, a := range trusted.FulcioCertificateAuthorities() {
		if ca, ok := a.(*root.FulcioCertificateAuthority); ok {
			all = append(all, part{"certificate authority " + ca.URI, earliest(ca.ValidityPeriodEnd, ca.Root.NotAfter)})
		}
	}
	for _, a := range trusted.TimestampingAuthorities() {
		if ta, ok := a.(*root.SigstoreTimestampingAuthority); ok && ta.Root != nil {
			all = append(all, part{"timestamp authority " + ta.URI, earliest(ta.ValidityPeriodEnd, ta.Root.NotAfter)})
		}
	}
	for _, l := range trusted.RekorLogs() {
		all = append(all, part{"transparency log " + l.BaseURL, l.ValidityPeriodEnd})
	}
	return all
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
