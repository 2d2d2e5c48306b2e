package verify

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
)

// parseTrustedRoot decodes a trusted_root.json. It returns an error if every certificate authority, transparency log
// and timestamp authority in it has expired: the file was not renewed, and all images that were signed later would be
// denied. If only some have expired, it returns the trusted root with them, because they still verify older
// signatures.
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

// ExpiredParts returns a text for each part of a trusted root that has ended, as those of earlier keys have: it still
// verifies what was signed before. It is an error if a Verifier would not accept the trusted root.
func ExpiredParts(trustedRoot []byte, now time.Time) (expired []string, err error) {
	v, err := New(Options{TrustedRoot: trustedRoot, Now: func() time.Time { return now }})
	if err != nil || v.trusted == nil {
		return nil, err
	}
	all := partsOf(v.trusted)
	for _, l := range v.trusted.CTLogs() {
		all = append(all, part{"certificate log " + l.BaseURL, l.ValidityPeriodEnd})
	}
	for _, p := range all {
		if p.ended(now) {
			expired = append(expired, fmt.Sprintf("%s ended at %s", p.name, p.end.UTC().Format(time.RFC3339)))
		}
	}
	return expired, nil
}

// A part is an authority or a log of a trusted root.
type part struct {
	name string
	end  time.Time // zero if it has none
}

func (p part) ended(now time.Time) bool { return !p.end.IsZero() && !p.end.After(now) }

// partsOf returns the parts of which one must be valid. Logs of certificates are not among them: none can replace an
// authority.
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

// earliest returns the earlier of two ends; the zero time is no end.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
