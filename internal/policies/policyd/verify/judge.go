package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// errUnreadable is returned for input that no part of this package could read.
var errUnreadable = errors.New("the signature could not be read")

// guarded calls f. A panic is an error: the libraries that read signatures are large, and the process must survive
// what a tenant pushes.
func guarded[T any](f func() (T, error)) (t T, err error) {
	defer func() {
		if recover() != nil {
			err = errUnreadable
		}
	}()
	return f()
}

// judgeSignature verifies one signature for every leaf. That it does not count for a leaf is noted only if it counts
// for none.
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
	digest := s.digests[i]
	var signers []string
	misses := map[*leaf]error{}
	for _, l := range r.order {
		if ctx.Err() != nil {
			return
		}
		if !r.accepts(l, at) {
			misses[l] = fmt.Errorf("the policy does not accept signatures at %s for this signer", at.repository)
			continue
		}
		signer, err := guarded(func() (string, error) { return l.verify(s, digest) })
		if err != nil {
			misses[l] = err
			continue
		}
		signers = append(signers, signer)
		if l.signer == "" {
			l.signer, l.digest = signer, digest
		}
	}
	if signers == nil {
		r.missed(at, s, func(l *leaf) error { return misses[l] })
		return
	}
	r.note(at, strings.Join(unique(signers), ", "), true, "valid for "+digest)
}

// accepts reports whether signatures count for a leaf where one was found.
func (r *run) accepts(l *leaf, at place) bool {
	return at.repository == r.repository || at.repository == l.signed.Repository
}

// missed notes a signature that counts for no leaf. why is called for each.
func (r *run) missed(at place, s *signature, why func(*leaf) error) {
	var closest miss
	for _, l := range r.order {
		m := missOf(why(l))
		if r.accepts(l, at) && rank(m.reason) > rank(l.miss.reason) {
			l.miss = m
		}
		if rank(m.reason) > rank(closest.reason) {
			closest = m
		}
	}
	if len(r.order) == 0 {
		closest.text = "no policy asks for signatures of this image"
	}
	r.note(at, signerOf(s), false, closest.text)
}

func signerOf(s *signature) string {
	if s == nil || s.certificate == nil {
		return ""
	}
	return identity(s.certificate)
}

// missOf says why a signature does not count.
func missOf(err error) miss {
	m := miss{reason: requirement.SignatureInvalid, text: safetext.ASCII(plain(err.Error()), maxMiss)}
	switch {
	case errors.Is(err, errIdentity):
		m.reason = requirement.IdentityMismatch
	case errors.Is(err, errNotSignature), errors.Is(err, errKind):
		m.reason = requirement.SignatureMissing
	case errors.Is(err, registry.ErrTooLarge):
		m.reason = requirement.LimitExceeded
	}
	return m
}

// plain returns the text of an error without the package that the errors of a registry begin with.
func plain(text string) string { return strings.ReplaceAll(text, "registry: ", "") }

// maxText bounds texts of registries and signatures in messages, and maxMiss texts that are made of several, in
// characters.
const maxText, maxMiss = 200, 600

// clean returns a text of printable ASCII characters, without those that look like others, and with a bounded length.
func clean(s string) string { return safetext.ASCII(s, maxText) }
