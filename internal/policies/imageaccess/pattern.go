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

// sameRegistry returns one form of the hosts of an ECR registry: by IPv4, with IPv6, and with FIPS endpoints. Other
// canonical registries stay as they are. A Fence is for all hosts. A Lend is not, because it gives a credential to a
// host, nor is a Share, because proofs are those of a name.
func sameRegistry(registry string) string {
	account, host, _ := strings.Cut(registry, ".")
	for _, domain := range []string{".amazonaws.com", ".amazonaws.com.cn", ".on.aws", ".on.amazonwebservices.com.cn"} {
		rest, ok := strings.CutSuffix(host, domain)
		for _, service := range []string{"dkr.ecr.", "dkr.ecr-fips.", "dkr-ecr.", "dkr-ecr-fips."} {
			if region, is := strings.CutPrefix(rest, service); ok && is && !strings.Contains(region, ".") {
				return account + ".dkr.ecr." + region + ".amazonaws.com"
			}
		}
	}
	return registry
}

// A target is a repository that patterns are compared with.
type target struct{ registry, path string }

func targetOf(repository string) target {
	registry, path, _ := strings.Cut(repository, "/")
	t := target{canonical(registry), path}
	if t.registry == dockerHub() && !strings.Contains(path, "/") {
		t.path = "library/" + path // it is not added to the other names of Docker Hub
	}
	return t
}

func (p pattern) matches(t target) bool {
	if p.registry != t.registry {
		return false
	}
	if matches(p.path, t.path) {
		return true
	}
	// docker.io/busy* is written for docker.io/library/busybox
	return p.registry == dockerHub() && official(t.path) != t.path && matches(p.path, official(t.path))
}

// official returns a path of Docker Hub without library/, as it may be written.
func official(path string) string { return strings.TrimPrefix(path, "library/") }

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

// maxSteps bounds the work of a comparer, to about a second.
const maxSteps = 100_000_000

// A comparer compares the images and pods of files with grant: Lend. If left is negative it has given up.
type comparer struct {
	left      int
	row, next []bool
}

// overlap reports whether an image and a pod can be in both files.
func (c *comparer) overlap(f, g *File) bool {
	if !c.meet(f, g) && !c.meet(g, f) {
		return false
	}
	for _, p := range f.patterns {
		c.left -= len(g.patterns)
		if slices.ContainsFunc(g.patterns, func(q pattern) bool {
			return p.registry == q.registry && c.left >= 0 && (c.intersect(p.path, q.path) ||
				p.registry == dockerHub() && c.left >= 0 && c.intersect(official(p.path), official(q.path)))
		}) {
			return true
		}
	}
	return false
}

// meet reports whether a pod of from can be in that of another file.
func (c *comparer) meet(f, g *File) bool {
	c.left -= 1 + len(f.namespaces) + len(f.accounts)
	for namespace := range f.namespaces {
		if g.mayInclude(namespace) {
			return true
		}
	}
	for a := range f.accounts {
		if g.includes(a.Namespace, a.Name) {
			return true
		}
	}
	return false
}

// intersect reports whether a text matches both patterns.
func (c *comparer) intersect(a, b string) bool {
	if x, y := literal(a), literal(b); !strings.HasPrefix(x, y) && !strings.HasPrefix(y, x) {
		return false
	}
	c.left -= (len(a) + 1) * (len(b) + 1)
	// row has for the rest of a at i, and next for the one at i+1, whether it intersects the rest of b at j.
	c.row, c.next = slices.Grow(c.row[:0], len(b)+1)[:len(b)+1], slices.Grow(c.next[:0], len(b)+1)[:len(b)+1]
	for i := len(a); i >= 0; i-- {
		for j := len(b); j >= 0; j-- {
			switch {
			case i == len(a) && j == len(b):
				c.row[j] = true
			case i < len(a) && a[i] == '*':
				c.row[j] = c.next[j] || j < len(b) && c.row[j+1]
			case j < len(b) && b[j] == '*':
				c.row[j] = c.row[j+1] || i < len(a) && c.next[j]
			default:
				c.row[j] = i < len(a) && j < len(b) && a[i] == b[j] && c.next[j+1]
			}
		}
		c.row, c.next = c.next, c.row
	}
	return c.next[0]
}

// literal returns a pattern up to its first wildcard.
func literal(pattern string) string {
	before, _, _ := strings.Cut(pattern, "*")
	return before
}

// publicRegistries are open to everybody, so that a right to all of one is a mistake.
func publicRegistries() []string {
	return []string{dockerHub(), "ghcr.io", "quay.io", "registry.k8s.io", "gcr.io", "public.ecr.aws"}
}

// sample returns a repository that matches.
func (p pattern) sample() string { return p.registry + "/" + strings.ReplaceAll(p.path, "*", "x") }
