package credential

import (
	"net"
	"net/url"
	"path/filepath"
	"strings"
)

const (
	maxPattern      = 512               // bytes; an image repository has at most 255
	defaultRegistry = "index.docker.io" // docker's name of its own registry in a configuration
)

type pattern struct {
	// key is host and path without scheme; it orders patterns.
	key string
	// host may have wildcards, each within one component; port and path have none.
	host, port, path string
	// broken means that key is not the host and path of a URL. It matches only as the literal default registry.
	broken bool
}

// An entry is a pattern with the ID that is offered to matching repositories, "" for an anonymous credential.
type entry struct {
	pattern pattern
	value   ID
}

func parseKey(s string) (pattern, bool) {
	if !strings.HasPrefix(s, "https://") && !strings.HasPrefix(s, "http://") {
		s = "https://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return pattern{}, false
	}
	path := u.Path
	if strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/v2/") {
		path = path[len("/v1"):]
	}
	if path == "/" {
		path = ""
	}
	p := parsePattern(u.Host + path)
	return p, len(p.key) <= maxPattern
}

// parsePattern splits host, port and path. It parses the text as a URL again, because after unescaping it may have
// another meaning.
func parsePattern(key string) pattern {
	u, err := url.Parse("https://" + key)
	if err != nil {
		return pattern{key: key, broken: true}
	}
	p := pattern{key: key, host: u.Host, path: u.Path}
	if host, port, err := net.SplitHostPort(u.Host); err == nil {
		p.host, p.port = host, port
	}
	return p
}

// clone returns the pattern in its own memory, so that it does not keep a payload in memory.
func (p pattern) clone() pattern {
	p.key, p.host = strings.Clone(p.key), strings.Clone(p.host)
	p.port, p.path = strings.Clone(p.port), strings.Clone(p.path)
	return p
}

func (p pattern) size() int { return 72 + len(p.key) + len(p.host) + len(p.port) + len(p.path) }

func (p pattern) mayMatch(repository pattern) bool {
	return !p.broken && p.port == repository.port && strings.HasPrefix(repository.path, p.path) &&
		strings.Count(p.host, ".") == strings.Count(repository.host, ".")
}

func (p pattern) wild() bool { return strings.ContainsAny(p.host, `*?[\`) }

func (p pattern) cost(repository pattern) int {
	if !p.mayMatch(repository) || !p.wild() {
		return 1
	}
	return 1 + len(p.host)*len(repository.host)
}

// matches reports whether the pattern is for a repository. Hosts must have the same number of components, and ports
// must be equal; the path is a prefix, not only at a slash.
func (p pattern) matches(repository pattern) bool {
	if !p.mayMatch(repository) {
		return false
	}
	if !p.wild() {
		return p.host == repository.host
	}
	glob, host := p.host, repository.host
	for more := true; more; {
		var g, h string
		g, glob, more = strings.Cut(glob, ".")
		h, host, _ = strings.Cut(host, ".")
		if ok, err := filepath.Match(g, h); err != nil || !ok {
			return false
		}
	}
	return true
}

func isDefaultRegistry(repository string) bool {
	first, _, more := strings.Cut(repository, "/")
	switch {
	case first == "":
		return false
	case !more, first == "docker.io", first == defaultRegistry:
		return true
	}
	return !strings.ContainsAny(first, ".:")
}
