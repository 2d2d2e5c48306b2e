package verify

import (
	"fmt"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
)

// Reasons returns the reasons of results.
func Reasons() []string {
	return []string{ReasonMissing, ReasonInvalid, ReasonIdentity, ReasonContent, ReasonDenied, ReasonUnavailable, ReasonLimit}
}

// ExpiredParts returns a text for each part of a trusted root that has ended, as those of earlier keys have: it still verifies what was signed
// before. It is an error if a Verifier would not accept the trusted root.
func ExpiredParts(trustedRoot []byte, now time.Time) ([]string, error) {
	v, err := New(Options{TrustedRoot: trustedRoot, Now: func() time.Time { return now }})
	if err != nil || v.trusted == nil {
		return nil, err
	}
	var all []string
	note := func(part string, ends ...time.Time) {
		for _, end := range ends {
			if !end.IsZero() && end.Before(now) {
				all = append(all, fmt.Sprintf("%s ended at %s", part, end.UTC().Format(time.RFC3339)))
				return
			}
		}
	}
	for _, a := range v.trusted.FulcioCertificateAuthorities() {
		if ca, ok := a.(*root.FulcioCertificateAuthority); ok {
			note("certificate authority "+ca.URI, ca.ValidityPeriodEnd, ca.Root.NotAfter)
		}
	}
	for _, a := range v.trusted.TimestampingAuthorities() {
		if ta, ok := a.(*root.SigstoreTimestampingAuthority); ok && ta.Root != nil {
			note("timestamp authority "+ta.URI, ta.ValidityPeriodEnd, ta.Root.NotAfter)
		}
	}
	for _, l := range v.trusted.RekorLogs() {
		note("transparency log "+l.BaseURL, l.ValidityPeriodEnd)
	}
	for _, l := range v.trusted.CTLogs() {
		note("certificate log "+l.BaseURL, l.ValidityPeriodEnd)
	}
	return all, nil
}
