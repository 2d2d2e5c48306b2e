package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
)

// A Mode says for which images access has to be proved. Names and meanings are the kubelet's.
type Mode string

// The modes.
const (
	ModeNeverVerify                  Mode = "NeverVerify"
	ModeNeverVerifyPreloadedImages   Mode = "NeverVerifyPreloadedImages"
	ModeNeverVerifyAllowlistedImages Mode = "NeverVerifyAllowlistedImages"
	ModeAlwaysVerify                 Mode = "AlwaysVerify"
)

// Modes returns all of them.
func Modes() []Mode {
	return []Mode{ModeNeverVerify, ModeNeverVerifyPreloadedImages, ModeNeverVerifyAllowlistedImages, ModeAlwaysVerify}
}

// A Policy is a mode and an allowlist that were checked. It is immutable and may be used
// concurrently. The zero value is NeverVerifyPreloadedImages.
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

// A pattern matches a normalised repository, or all that begin with a prefix up to a slash.
type pattern struct {
	repository string
	prefix     bool
}

// Allowlisted reports whether a normalised repository is on the allowlist.
func (p Policy) Allowlisted(repository string) bool {
	for _, x := range p.patterns {
		if repository != "" && (repository == x.repository || x.prefix && strings.HasPrefix(repository, x.repository)) {
			return true
		}
	}
	return false
}

// New checks a mode, "" being the default, and an allowlist in the kubelet's syntax.
func New(mode string, allowlist []string) (Policy, error) {
	p := Policy{mode: Mode(mode)}
	var errs []error
	if mode != "" && !slices.Contains(Modes(), p.mode) {
		errs = append(errs, fmt.Errorf("imagePullCredentialsVerificationPolicy: %q is none of %v", mode, Modes()))
	}
	if len(allowlist) > 0 && p.mode != ModeNeverVerifyAllowlistedImages {
		errs = append(errs, errors.New("preloadedImagesVerificationAllowlist: needs NeverVerifyAllowlistedImages"))
	}
	for i, s := range allowlist {
		x, err := parsePattern(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("preloadedImagesVerificationAllowlist[%d]: %w", i, err))
		}
		p.patterns = append(p.patterns, x)
	}
	return p, errors.Join(errs...)
}

func parsePattern(s string) (pattern, error) {
	base, wild := strings.CutSuffix(s, "/*")
	probe := base
	if wild {
		if !strings.Contains(base, "/") && strings.ContainsAny(base, ".:") {
			probe = base + "/x/x"
		} else {
			probe = base + "/x"
		}
	}
	named, err := reference.ParseNormalizedNamed(probe)
	if err != nil || !reference.IsNameOnly(named) {
		return pattern{}, fmt.Errorf("%q is no pattern: %v", s, err)
	}
	if !wild {
		return pattern{repository: named.Name()}, nil
	}
	name := strings.TrimSuffix(named.Name(), "x")
	return pattern{repository: strings.TrimSuffix(name, "x/"), prefix: true}, nil
}
