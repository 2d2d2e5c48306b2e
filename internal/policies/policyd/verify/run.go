package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/pkg/imageref"
)

type run struct {
	v          *Verifier
	image      Image
	repository string // of the image
	credential admission.Login
	list       bool
	want       []*requirement.Rule
	leaves     map[*requirement.Signer]*leaf
	order      []*leaf  // of leaves
	accepted   []string // predicate types of attestations that are read
	evaluated  map[evaluation]evaluated
	// validations are the leaves with conditions on the image, and needs what they read.
	validations  []validation
	needs        needs
	platform     string // the digest of the manifest that leads to the image
	manifestData []byte // its content, if needs says so
	kept         int    // bytes of predicates for validations
	large        int    // how many large attestations were read
	values       map[string]any
	unfilled     error // why there are no values for the patch

	opened    map[string]Repository
	resolved  map[string]bool // digests of documents that were resolved
	documents int             // how many entries of indexes were read
	links     []string        // digests that lead to the image
	seen      map[place]bool
	read      int64       // how many signatures were read
	rest      []candidate // signatures that wait, because their source has many
	dropped   int         // how many more wait, of which none would be read
	answered  bool        // whether a registry has answered
	problems  []problem
	found     []requirement.Signature
}

// A problem is why something could not be read. repository is where; those of the image concern every requirement.
type problem struct {
	repository, reason, text string
	// resolving says that it is about a document which can lead to the image. It does not matter if another one does.
	resolving bool
}

func (r *run) judge(ctx context.Context) {
	r.collect(ctx)
	r.validate(ctx)
}

func (r *run) collect(ctx context.Context) {
	for _, reference := range r.references() {
		c, err := r.resolve(ctx, reference)
		switch {
		case errors.Is(err, errSeen), errors.Is(err, registry.ErrNotFound): // see run.problem
			continue
		case err != nil:
			r.failed(ctx, r.repository, err)
			r.problems[len(r.problems)-1].resolving = !errors.Is(err, registry.ErrMismatch)
			if ctx.Err() != nil || errors.Is(err, registry.ErrUnavailable) || errors.Is(err, registry.ErrDenied) {
				return // no further request can succeed
			}
			continue
		}
		r.links = append(r.links, c.digests...)
		if r.image.ID == "" {
			r.image.ID = c.image
		}
		if r.platform == "" {
			r.platform, r.manifestData = c.digests[len(c.digests)-1], c.manifest
		}
		if r.search(ctx, c); r.done() || ctx.Err() != nil {
			return
		}
	}
}

func (r *run) done() bool {
	open := func(w *requirement.Rule) bool { return w.NeedsSignature() && !r.signed(w.Requirement) }
	unread := r.needs.all || (len(r.validations) > 0 || r.image.Patch != nil) && r.platform == ""
	return !r.list && !r.image.Background && !unread && !slices.ContainsFunc(r.want, open)
}

// signed reports whether a requirement is met if nothing but signatures and statements decides.
func (r *run) signed(of *requirement.Requirement) bool {
	return of.Met(func(s *requirement.Signer) bool {
		return s.Image != nil || r.leaves[s] != nil && r.leaves[s].signer != ""
	})
}

func (r *run) met(w *requirement.Rule) bool { return r.metBy(w.Requirement) }

func (r *run) metBy(of *requirement.Requirement) bool {
	return of.Met(func(s *requirement.Signer) bool { l := r.leaves[s]; return l != nil && l.signer != "" })
}

func (r *run) manifest(ctx context.Context, repository, reference string) (data []byte, digest string, err error) {
	data, err = r.at(repository).Manifest(ctx, reference)
	if err = r.answer(err); err != nil {
		return nil, "", err
	}
	if digest = digestOf(data); strings.Contains(reference, ":") && digest != reference {
		return nil, "", fmt.Errorf("%w: %s has digest %s", registry.ErrMismatch, reference, digest)
	}
	return data, digest, nil
}

func (r *run) blob(ctx context.Context, repository, digest string) ([]byte, error) {
	data, err := r.at(repository).Blob(ctx, digest, r.v.Limits.Bytes.Value())
	if err = r.answer(err); err != nil {
		return nil, err
	}
	if got := digestOf(data); got != digest {
		return nil, fmt.Errorf("%w: %s has digest %s", registry.ErrMismatch, digest, got)
	}
	return data, nil
}

// answer notes whether an error is the answer of a registry, and returns it.
func (r *run) answer(err error) error {
	r.answered = r.answered || !errors.Is(err, registry.ErrUnavailable)
	return err
}

// at returns a repository. The credential is for the registry of the image, and another registry must not see it.
//
//nolint:ireturn // the interface of this package, as Options.Open returns it
func (r *run) at(repository string) Repository {
	if open, ok := r.opened[repository]; ok {
		return open
	}
	credential := r.credential
	if registryOf(repository) != registryOf(r.repository) {
		credential = admission.Login{}
	}
	open := r.v.Open(repository, credential)
	r.opened[repository] = open
	return open
}

func registryOf(repository string) string {
	host, _, _ := strings.Cut(repository, "/")
	return imageref.CanonicalRegistry(host)
}

func (r *run) failed(ctx context.Context, repository string, err error) {
	text := repository + ": " + safetext.ASCII(plain(err.Error()), maxMiss)
	p := problem{repository: repository, reason: reasonOf(err), text: text}
	switch {
	case ctx.Err() != nil && r.answered:
		p.reason = requirement.LimitExceeded
		p.text = fmt.Sprintf("%s: the verification took more than %s", repository, r.v.Limits.Time.Value())
	case ctx.Err() != nil:
		p.reason = requirement.RegistryUnavailable
	}
	r.problems = append(r.problems, p)
}

// reasonOf returns the reason of an error. What a signature says comes before a limit that it exceeds.
func reasonOf(err error) string {
	if r, ok := errors.AsType[*reasoned](err); ok {
		return r.reason
	}
	for _, known := range []struct {
		err    error
		reason string
	}{
		{errIdentity, requirement.IdentityMismatch},
		{errNotSignature, requirement.SignatureMissing},
		{errKind, requirement.SignatureMissing},
		{errOther, requirement.AttestationMissing},
		{errCondition, requirement.ConditionNotMet},
		{registry.ErrUnavailable, requirement.RegistryUnavailable},
		{registry.ErrDenied, requirement.RegistryDenied},
		{registry.ErrTooLarge, requirement.LimitExceeded},
		{registry.ErrMismatch, requirement.ContentMismatch},
		{errOtherImage, requirement.ContentMismatch},
		{registry.ErrNotFound, requirement.SignatureMissing},
	} {
		if errors.Is(err, known.err) {
			return known.reason
		}
	}
	return requirement.SignatureInvalid
}

var errUnreadable = errors.New("the signature could not be read")

// guarded makes a panic an error: the libraries for signatures are large, and the process must survive what is pushed.
func guarded[T any](f func() (T, error)) (t T, err error) {
	defer func() {
		if recover() != nil {
			err = errUnreadable
		}
	}()
	return f()
}

// judgeSignature verifies a signature for every leaf. A miss is noted only if the signature counts for none.
func (r *run) judgeSignature(ctx context.Context, at place, parse func() (*signature, error)) {
	s, err := guarded(parse)
	if err != nil {
		r.missed(at, nil, func(*leaf) error { return err })
		return
	}
	i := slices.IndexFunc(s.digests, func(d string) bool { return slices.Contains(r.links, d) })
	if i < 0 {
		err := fmt.Errorf("the signature is for %s, and not for this image", clean(strings.Join(s.digests, ", ")))
		r.missed(at, s, func(*leaf) error { return err })
		return
	}
	defer func() { s.end() }()
	digest := s.digests[i]
	var signers, seen []string
	misses := map[*leaf]error{}
	for _, l := range r.order {
		if ctx.Err() != nil {
			return
		}
		if !r.accepts(l, at) {
			misses[l] = fmt.Errorf("the policy does not accept signatures at %s for this signer", at.repository)
			continue
		}
		signer, err := guarded(func() (string, error) { return l.verify(s) })
		var got evaluated
		if err == nil && l.signed.Statement != nil {
			if got, err = guarded(func() (evaluated, error) { return r.evaluate(ctx, l, s), nil }); err == nil {
				err, seen = got.err, unique(append(seen, got.seen...))
			}
		}
		if err != nil {
			misses[l] = err
			continue
		}
		r.keep(l, s)
		signers = append(signers, signer)
		// Of several statements that count and are read, the one is kept that does so for longest.
		if l.signer == "" || l.signed.Statement != nil && !l.evaluated.Longer(got.Result) {
			l.signer, l.digest, l.evaluated = signer, digest, got.Result
			if l.signed.Statement != nil {
				l.attested = s.payloadDigest
			}
		}
	}
	if signers == nil {
		r.missed(at, s, func(l *leaf) error { return misses[l] })
		r.noteStatement(s, seen)
		return
	}
	r.closest(at, func(l *leaf) error { // of the same signer
		if err := misses[l]; errors.Is(err, errCondition) || errors.Is(err, registry.ErrTooLarge) {
			return err
		}
		return nil
	})
	r.note(at, strings.Join(unique(signers), ", "), true, "valid for "+digest)
	r.noteStatement(s, seen)
}

// noteStatement adds to the signature that was noted last what it states.
func (r *run) noteStatement(s *signature, seen []string) {
	if !r.list || s.statement == nil || s.statement.PredicateType == requirement.SignatureType {
		return
	}
	last := &r.found[len(r.found)-1]
	last.PredicateType, last.Conditions = clean(s.statement.PredicateType), seen
}

func (r *run) accepts(l *leaf, at place) bool {
	return at.repository == r.repository || at.repository == l.signed.Repository
}

// closest notes why a signature does not count for leaves, and returns the reason that comes closest to one that does.
// why returns nil for a leaf that it counts for.
func (r *run) closest(at place, why func(*leaf) error) (closest miss) {
	for _, l := range r.order {
		err := why(l)
		if err == nil {
			continue
		}
		m := missOf(err)
		if r.accepts(l, at) && rank(m.reason) > rank(l.miss.reason) {
			l.miss = m
		}
		if rank(m.reason) > rank(closest.reason) {
			closest = m
		}
	}
	return closest
}

func (r *run) missed(at place, s *signature, why func(*leaf) error) {
	closest := r.closest(at, why)
	if len(r.order) == 0 {
		closest.text = "no policy asks for signatures of this image"
	}
	signer := ""
	if s != nil && s.certificate != nil {
		signer = identity(s.certificate)
	}
	r.note(at, signer, false, closest.text)
}

func missOf(err error) miss {
	return miss{reason: reasonOf(err), text: safetext.ASCII(plain(err.Error()), maxMiss)}
}

// plain returns the text of an error without the package that the errors of a registry begin with, and without the
// error that sigstore-go formats although there is none.
func plain(text string) string {
	return strings.NewReplacer("registry: ", "", "; error: %!w(<nil>)", "").Replace(text)
}

// maxText bounds texts of registries and signatures in messages, maxMiss texts made of several, in characters.
const maxText, maxMiss = 200, 600

// clean returns a text of printable ASCII characters, without those that look like others, and with a bounded length.
func clean(s string) string { return safetext.ASCII(s, maxText) }
