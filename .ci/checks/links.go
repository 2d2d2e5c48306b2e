package checks

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"strings"
	"unicode"
)

// link finds what a Markdown link or image leads to, definitions included. It takes no link title.
var link = regexp.MustCompile(`\]\(\s*<?([^()\s<>]+)>?[^()]*\)|(?m)^\[[^\]]+\]:\s+(\S+)`)

// code finds what Markdown shows as it is, where brackets are not links.
var code = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```|`[^`\n]*`")

// heading finds the headings that a link can lead to.
var heading = regexp.MustCompile(`(?m)^#{1,6}\s+(.+?)\s*#*\s*$`)

// Links returns every relative link in a Markdown file under fsys that leads nowhere: to no file or
// folder, or to no heading of the file. Links to other hosts are not followed.
func Links(fsys fs.FS) ([]string, error) {
	var broken []string
	err := walk(fsys, ".md", func(name string, content []byte) error {
		for _, m := range link.FindAllSubmatch(code.ReplaceAll(content, nil), -1) {
			target := string(append(m[1], m[2]...))
			why, err := follow(fsys, name, target)
			if err != nil {
				return err
			}
			if why != "" {
				broken = append(broken, fmt.Sprintf("%s: %s: %s", name, target, why))
			}
		}
		return nil
	})
	return broken, err
}

// follow returns why a link is broken, "" if its target exists or is not in the tree.
func follow(fsys fs.FS, from, target string) (string, error) {
	u, err := url.Parse(target)
	if err != nil {
		return "not a URL", nil //nolint:nilerr // the result is that the link is not a URL
	}
	if u.Scheme != "" || u.Host != "" {
		return "", nil
	}
	to := from
	if u.Path != "" {
		to = path.Join(path.Dir(from), u.Path)
		if strings.HasPrefix(u.Path, "/") {
			return "begins at the root of the host, not of the project", nil
		}
	}
	info, err := fs.Stat(fsys, to)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return "no such file", nil
	}
	if err != nil {
		return "", err
	}
	if u.Fragment == "" || info.IsDir() || path.Ext(to) != ".md" {
		return "", nil
	}
	content, err := fs.ReadFile(fsys, to)
	if err != nil {
		return "", err
	}
	if !anchors(content)[u.Fragment] {
		return "no such heading in " + to, nil
	}
	return "", nil
}

// anchors returns the names that a Markdown file's headings have in links.
func anchors(content []byte) map[string]bool {
	all := map[string]bool{}
	fences := regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```")
	for _, m := range heading.FindAllSubmatch(fences.ReplaceAll(content, nil), -1) {
		name := anchor(string(bytes.ReplaceAll(m[1], []byte("`"), nil)))
		for n := 0; ; n++ {
			unique := name
			if n > 0 {
				unique = fmt.Sprintf("%s-%d", name, n)
			}
			if !all[unique] {
				all[unique] = true
				break
			}
		}
	}
	return all
}

// anchor makes the name of a heading as code forges do: letters and digits in lower case, spaces to
// hyphens, nothing else.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	return b.String()
}
