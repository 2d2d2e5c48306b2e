package credential

import (
	"cmp"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// maxPattern bounds the patterns that are kept. An image repository has at most 255 bytes, and no glob needs many
// more.
const maxPattern = 512

// defaultRegistry is what docker calls its own registry in a configuration, while images of it are
// called docker.io/….
const defaultRegistry = "index.docker.io"

// A pattern is what an entry of a docker configuration is for, parsed.
type pattern struct {
	// key is host and path without scheme; it orders patterns.
	key string
	// host may have wildcards, each within one component; port and path have none.
	host, port, path string
	// broken says that key is not the host and path of a URL. It matches only as the literal name
	// of the default registry.
	broken bool
}

// An entry is a pattern with what is offered to the repositories that match.
type entry[T any] struct {
	pattern pattern
	value   T
}

// parseKey reads a key of a docker configuration. The scheme and docker's API version are ignored.
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

// parsePattern splits host, port and path. The text is read as a URL once more, since what has been
// unescaped may mean something else now.
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

// clone returns the pattern in memory of its own, so that it does not hold on to a payload. Host and
// path nearly always are parts of the key and share its memory.
func (p pattern) clone() pattern {
	p.key, p.port = strings.Clone(p.key), strings.Clone(p.port)
	if strings.HasPrefix(p.key, p.host) {
		p.host = p.key[:len(p.host)]
	} else {
		p.host = strings.Clone(p.host)
	}
	if strings.HasSuffix(p.key, p.path) {
		p.path = p.key[len(p.key)-len(p.path):]
	} else {
		p.path = strings.Clone(p.path)
	}
	return p
}

// size returns about how many bytes the pattern takes, once it is cloned.
func (p pattern) size() int {
	size := 72 + len(p.key) + len(p.port)
	if !strings.HasPrefix(p.key, p.host) {
		size += len(p.host)
	}
	if !strings.HasSuffix(p.key, p.path) {
		size += len(p.path)
	}
	return size
}

// mayMatch reports whether a pattern is for a repository, as far as that is known without its wildcards.
func (p pattern) mayMatch(repository pattern) bool {
	return !p.broken && p.port == repository.port && strings.HasPrefix(repository.path, p.path) &&
		strings.Count(p.host, ".") == strings.Count(repository.host, ".")
}

// wild reports whether the host has wildcards.
func (p pattern) wild() bool { return strings.ContainsAny(p.host, `*?[\`) }

// cost returns about how many bytes matches compares.
func (p pattern) cost(repository pattern) int {
	if !p.mayMatch(repository) || !p.wild() {
		return 1
	}
	return 1 + len(p.host)*len(repository.host)
}

// matches reports whether the pattern is for a repository. Hosts must have the same number of
// components, ports be equal; the path is a prefix, not only at its slashes.
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

// isDefaultRegistry reports whether an image of this name comes from docker's registry.
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

// order sorts entries as look-ups want them: the keys in reverse order, so that of two that begin
// alike the longer, more specific one comes first.
func order[T any](entries []entry[T]) {
	slices.SortStableFunc(entries, func(a, b entry[T]) int { return cmp.Compare(b.pattern.key, a.pattern.key) })
}
