package imageaccess

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// A pattern matches repositories of one registry. In path, * stands for any characters, also for slashes and for none.
type pattern struct{ registry, path string }

const (
	maxPattern = 512
	allowed    = "must be a repository with its registry, as in registry.example/team/app or registry.example/team/*"
)

func parsePattern(s string) (pattern, error) {
	registry, path, below := strings.Cut(s, "/")
	switch {
	case len(s) > maxPattern:
		return pattern{}, fmt.Errorf("must have at most %d characters", maxPattern)
	case !below || path == "" || !strings.ContainsAny(registry, ".:*") && registry != "localhost":
		return pattern{}, errors.New(allowed)
	case strings.Contains(registry, "*"):
		return pattern{}, errors.New("must not have a wildcard in the registry; write a pattern for each registry")
	}
	sample := registry + "/" + strings.ReplaceAll(path, "*", "a")
	if name, err := imageref.Parse(sample); err != nil || !imageref.NameOnly(sample) || name.IsImageID() {
		return pattern{}, errors.New(allowed + ", without tag and digest, in lower case")
	}
	p := pattern{canonical(registry), path}
	if p.registry == dockerHub() && !strings.ContainsAny(path, "/*") {
		p.path = "library/" + path
	}
	return p, nil
}

func dockerHub() string { return imageref.DockerHub()[0] }

// canonical returns one form of the names of a registry that mean the same host.
func canonical(registry string) string {
	registry = imageref.CanonicalRegistry(registry)
	if slices.Contains(imageref.DockerHub(), registry) {
		return dockerHub()
	}
	return registry
}

// A target is a repository that patterns are compared with.
type target struct{ registry, path string }

func targetOf(repository string) target {
	registry, path, _ := strings.Cut(repository, "/")
	return target{canonical(registry), path}
}

func (p pattern) matches(t target) bool {
	if p.registry != t.registry {
		return false
	}
	if matches(p.path, t.path) {
		return true
	}
	// docker.io/busy* is written for docker.io/library/busybox
	official, ok := strings.CutPrefix(t.path, "library/")
	return ok && p.registry == dockerHub() && matches(p.path, official)
}

// matches compares a text with a pattern in time that grows with their product, without memory.
func matches(pattern, s string) bool {
	prefix, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return s == pattern
	}
	s, ok := strings.CutPrefix(s, prefix)
	for ok {
		var part string
		part, rest, wild = strings.Cut(rest, "*")
		if !wild {
			return strings.HasSuffix(s, part)
		}
		_, s, ok = strings.Cut(s, part)
	}
	return false
}

// whole reports whether the pattern matches everything in its registry, or nearly so.
func (p pattern) whole() bool { return strings.Trim(p.path, "*/") == "" }

// overlaps reports whether a repository can match both.
func (p pattern) overlaps(q pattern) bool {
	return p.registry == q.registry && intersect(p.path, q.path, map[[2]int]bool{})
}

// intersect reports whether a text matches two patterns; seen holds the lengths of the rests that have been compared.
func intersect(a, b string, seen map[[2]int]bool) bool {
	at := [2]int{len(a), len(b)}
	if seen[at] {
		return false
	}
	seen[at] = true
	switch {
	case a == "" && b == "":
		return true
	case strings.HasPrefix(a, "*"):
		return intersect(a[1:], b, seen) || b != "" && intersect(a, b[1:], seen)
	case strings.HasPrefix(b, "*"):
		return intersect(a, b[1:], seen) || a != "" && intersect(a[1:], b, seen)
	}
	return a != "" && b != "" && a[0] == b[0] && intersect(a[1:], b[1:], seen)
}

// publicRegistries are open to everybody, so that a right to all of one is a mistake.
func publicRegistries() []string {
	return []string{dockerHub(), "ghcr.io", "quay.io", "registry.k8s.io", "gcr.io", "public.ecr.aws"}
}

// sample returns a repository that matches.
func (p pattern) sample() string { return p.registry + "/" + strings.ReplaceAll(p.path, "*", "x") }
