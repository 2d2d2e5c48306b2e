package policy

import (
	"errors"
	"fmt"
	"slices"
)

// A Mode selects the images for which access has to be proved. Names and meanings are the kubelet's.
type Mode string

// The modes.
const (
	ModeNeverVerify                  Mode = "NeverVerify"
	ModeNeverVerifyPreloadedImages   Mode = "NeverVerifyPreloadedImages"
	ModeNeverVerifyAllowlistedImages Mode = "NeverVerifyAllowlistedImages"
	ModeAlwaysVerify                 Mode = "AlwaysVerify"
)

// Modes returns all modes.
func Modes() []Mode {
	return []Mode{ModeNeverVerify, ModeNeverVerifyPreloadedImages, ModeNeverVerifyAllowlistedImages, ModeAlwaysVerify}
}

// A Policy is a validated mode and allowlist. It is immutable and may be used concurrently. The zero value is
// NeverVerifyPreloadedImages.
type Policy struct {
	mode     Mode
	patterns []pattern
}

// Mode returns the mode.
func (p Policy) Mode() Mode {
	if p.mode == "" {
		return ModeNeverVerifyPreloadedImages
	}
	return p.mode
}

// Allowlisted reports whether a normalised repository is on the allowlist.
func (p Policy) Allowlisted(repository string) bool {
	return slices.ContainsFunc(p.patterns, func(x pattern) bool { return x.matches(repository) })
}

// New validates a mode, "" for the default, and an allowlist in the kubelet's syntax. The error lists everything that
// is invalid; the policy is then the zero value.
func New(mode string, allowlist []string) (Policy, error) {
	p := Policy{mode: Mode(mode)}
	var errs []error
	if known := mode == "" || slices.Contains(Modes(), p.mode); !known {
		errs = append(errs, fmt.Errorf("imagePullCredentialsVerificationPolicy: %q is none of %v", mode, Modes()))
	} else if len(allowlist) > 0 && p.mode != ModeNeverVerifyAllowlistedImages {
		errs = append(errs, errors.New("preloadedImagesVerificationAllowlist: needs NeverVerifyAllowlistedImages"))
	}
	for i, s := range allowlist {
		x, err := parsePattern(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("preloadedImagesVerificationAllowlist[%d]: %w", i, err))
		}
		p.patterns = append(p.patterns, x)
	}
	if len(errs) > 0 {
		return Policy{}, errors.Join(errs...)
	}
	return p, nil
}
