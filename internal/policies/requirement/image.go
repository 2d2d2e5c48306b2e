package requirement

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// A Syntax says what the wildcards of image patterns stand for.
type Syntax uint8

// The syntaxes. In both, a wildcard stands for any number of characters, also for none.
const (
	KyvernoSyntax  Syntax = iota // of Kyverno: * includes slashes, and ? is one character other than slash and colon
	SigstoreSyntax               // of sigstore's policy-controller: * does not include slashes, and ** does
)

// A Pattern matches names of images, and all other ways to write them: nginx is docker.io/library/nginx:latest and
// index.docker.io/nginx; the case and the port 443 of a registry do not matter. A pattern without a registry is of
// docker.io. One without a tag matches all tags. A name with a digest matches whatever the tag of the pattern is.
type Pattern struct {
	text     string
	tagged   bool     // see ByTag
	prefixes []string // of all names that match, so that few names are compared with match
	match    *regexp.Regexp
}

const maxPattern = 512

// ParsePattern parses a pattern. It is an error if no image name can match it.
func ParsePattern(s string, syntax Syntax) (Pattern, error) {
	wildcards, allowed, characters := map[string]string{"*": ".*", "?": "[^/:@]"}, "* and ?", "*?"
	if syntax == SigstoreSyntax {
		wildcards, allowed, characters = map[string]string{"*": "[^/]*", "**": ".*"}, "* and **", "*"
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:[]"
	switch {
	case s == "":
		return Pattern{}, errors.New("must not be empty; * matches images of any name")
	case len(s) > maxPattern:
		return Pattern{}, fmt.Errorf("must have at most %d characters", maxPattern)
	case strings.Contains(s, "{{"):
		return Pattern{}, errors.New("variables are not supported; write the pattern itself")
	case strings.Contains(s, "@"):
		return Pattern{}, errors.New("must not have a digest, because the same image can be named by a tag; leave it out")
	case wildPort(s):
		return Pattern{}, errors.New("must not have wildcards in a port; write the port, or leave it out")
	case strings.Trim(s, letters+characters) != "":
		return Pattern{}, errors.New("must have only letters, digits, the characters . _ - / : and the wildcards " + allowed)
	}
	var alternatives, prefixes []string
	tagged := false
	for _, full := range spellOut(s, syntax) {
		alternatives = append(alternatives, expression(full, wildcards)+`(?:[:@][^/]*)?`)
		prefix := full
		if repository, ok := withoutTag(full); ok {
			tagged = true
			alternatives = append(alternatives, expression(repository, wildcards)+`@[^/]*`)
			prefix = repository
		}
		prefixes = append(prefixes, prefix[:len(prefix)-len(strings.TrimLeft(prefix, letters))])
	}
	p := Pattern{
		text: s, tagged: tagged, prefixes: prefixes,
		match: regexp.MustCompile(`\A(?:` + strings.Join(alternatives, "|") + `)\z`),
	}
	if !p.matchesAnything() {
		return Pattern{}, errors.New("matches no image name; a name is as in repo.test/team/app:1, and lower case after " +
			"the registry")
	}
	return p, nil
}

// wildPort reports whether the port of a registry has wildcards: names are compared without the port 443.
func wildPort(s string) bool {
	registry, _, below := strings.Cut(s, "/")
	return below && strings.ContainsAny(registry[strings.LastIndex(registry, ":")+1:], "*?") &&
		strings.Contains(registry, ":")
}

// spellOut returns patterns of complete names, two if the first segment can be a registry or a part of a name.
func spellOut(s string, syntax Syntax) []string {
	first, rest, below := strings.Cut(s, "/")
	wild := strings.ContainsAny(first, "*?")
	var all []string
	switch {
	case below && !wild && (strings.ContainsAny(first, ".:") || first == "localhost" || first != strings.ToLower(first)):
		return []string{imageref.CanonicalRegistry(first) + "/" + rest}
	case below && wild:
		all = append(all, imageref.CanonicalRegistry(first)+"/"+rest)
		if strings.ContainsAny(first, ".:") {
			return all
		}
	case !below && wild:
		before, _, _ := strings.Cut(strings.ReplaceAll(s, "?", "*"), "*")
		crosses := syntax == KyvernoSyntax && (before == "" || strings.ContainsAny(before, ".:")) ||
			syntax == SigstoreSyntax && strings.Contains(s, "**")
		if crosses {
			all = append(all, strings.ToLower(before)+s[len(before):])
			// names are compared without this port
			if host, port, ok := strings.Cut(before, ":"); ok && strings.HasPrefix("443", port) {
				all = append(all, strings.ToLower(host)+"/"+s[len(before):])
			}
		}
	}
	if below {
		return append(all, "docker.io/"+s)
	}
	return append(all, "docker.io/library/"+s)
}

// withoutTag returns a pattern of the repositories with a tag that the pattern matches, unless it is the same pattern.
func withoutTag(s string) (repository string, ok bool) {
	start := strings.LastIndex(s, "/") + 1
	if name, _, tagged := strings.Cut(s[start:], ":"); tagged {
		return s[:start] + name, true
	}
	// the star may include the colon
	if name, after, wild := strings.Cut(s[start:], "*"); wild && strings.Trim(after, "*") != "" {
		return s[:start] + name + "*", true
	}
	return "", false
}

func (p Pattern) matchesAnything() bool {
	for _, filler := range []string{"a", "", "a/a", "a.io/a", "a.io/a/a:a", "a:a"} {
		sample := strings.ReplaceAll(strings.ReplaceAll(p.text, "**", "*"), "?", "a")
		if n, err := imageref.Parse(strings.ReplaceAll(sample, "*", filler)); err == nil && p.Matches(n) {
			return true
		}
	}
	return false
}

// ByTag reports whether it can depend on the tag whether an image name matches.
func (p Pattern) ByTag() bool { return p.tagged }

// Matches reports whether an image name matches.
func (p Pattern) Matches(n imageref.Name) bool { return p.matchesAny(spellings(n)) }

func (p Pattern) matchesAny(spellings []string) bool {
	return slices.ContainsFunc(spellings, func(s string) bool {
		return slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(s, prefix) }) &&
			p.match.MatchString(s)
	})
}

// spellings returns the complete names that mean the same image as a name; none of the zero Name.
func spellings(n imageref.Name) []string {
	host, path, ok := strings.Cut(n.String(), "/")
	if !ok {
		return nil
	}
	host = imageref.CanonicalRegistry(host)
	dockerHub := imageref.DockerHub()
	if !slices.Contains(dockerHub, host) {
		return []string{host + "/" + path}
	}
	var all []string
	for _, h := range dockerHub {
		all = append(all, h+"/"+path)
		if official, ok := strings.CutPrefix(path, "library/"); ok {
			all = append(all, h+"/"+official)
		}
	}
	return all
}

func (p Pattern) String() string { return p.text }
