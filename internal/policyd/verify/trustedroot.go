package verify

import (
	"errors"
	"fmt"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
)

// parseTrustedRoot decodes a trusted_root.json. One of which no part is valid any more is an error: nobody renews it, and every image that was
// signed since would be denied. Parts that have ended still verify what was signed before.
func parseTrustedRoot(data []byte, now time.Time) (*root.TrustedRoot, error) {
	trusted, err := guarded(func() (*root.TrustedRoot, error) { return root.NewTrustedRootFromJSON(data) })
	if err != nil {
		return nil, err
	}
	var ends []time.Time
	for _, a := range trusted.FulcioCertificateAuthorities() {
		if ca, ok := a.(*root.FulcioCertificateAuthority); ok {
			ends = append(ends, earliest(ca.ValidityPeriodEnd, ca.Root.NotAfter))
		}
	}
	for _, a := range trusted.TimestampingAuthorities() {
		if ta, ok := a.(*root.SigstoreTimestampingAuthority); ok && ta.Root != nil {
			ends = append(ends, earliest(ta.ValidityPeriodEnd, ta.Root.NotAfter))
		}
	}
	for _, l := range trusted.RekorLogs() {
		ends = append(ends, l.ValidityPeriodEnd)
	}
	if len(ends) == 0 {
		return nil, errors.New("has no certificate authority, no transparency log and no timestamp authority")
	}
	var last time.Time
	for _, end := range ends {
		if end.IsZero() || end.After(now) {
			return trusted, nil
		}
		if end.After(last) {
			last = end
		}
	}
	return nil, fmt.Errorf("has expired at %s; replace the file by a current one", last.UTC().Format(time.RFC3339))
}

// earliest returns the earlier of two ends; the zero time is no end.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
