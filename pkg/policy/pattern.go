package policy

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
)

const allowedPattern = "allowed is a repository, as in repo.test/team/app, or everything below a registry or a path, " +
	"as in repo.test/team/*"

// maxPattern is the length of the names that package imageref parses.
const maxPattern = 4096

// A pattern matches normalised repositories: one repository, or, if the pattern ends with a slash, all repositories
// with this prefix. No repository ends with a slash.
type pattern string

// parsePattern parses the kubelet's syntax. It normalises the text like an image name, so that busybox means
// docker.io/library/busybox, and team/* means docker.io/team/*.
func parsePattern(s string) (pattern, error) {
	bad := func(why string) (pattern, error) {
		return "", fmt.Errorf("%q is not allowed: %s; %s", s, why, allowedPattern)
	}
	if len(s) > maxPattern {
		s = s[:80] + "…"
		return bad(fmt.Sprintf("it is longer than %d bytes", maxPattern))
	}
	base, wildcard := strings.CutSuffix(s, "/*")
	switch {
	case s == "":
		return bad("it is empty")
	case strings.TrimSpace(s) != s:
		return bad("it has surrounding space")
	case strings.Contains(base, "*"):
		return bad("a star only as the whole last segment")
	case base == "":
		return bad("a host is needed before the star")
	}
	// Two segments, not one, replace the star: the first below docker.io may be a user's, and a single one would be taken
	// for library/x.
	const below = "x/x"
	name := base
	if wildcard {
		name = base + "/" + below
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return bad(fmt.Sprintf("%s is not an image name", base))
	}
	if _, ok := named.(reference.Digested); ok {
		return bad("no digest may be given")
	}
	if _, ok := named.(reference.Tagged); ok {
		return bad("no tag may be given")
	}
	if wildcard {
		return pattern(strings.TrimSuffix(named.Name(), below)), nil
	}
	return pattern(named.Name()), nil
}

func (x pattern) matches(repository string) bool {
	if strings.HasSuffix(string(x), "/") {
		return strings.HasPrefix(repository, string(x))
	}
	return repository == string(x)
}
