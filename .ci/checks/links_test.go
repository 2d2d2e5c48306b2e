package checks_test

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

var (
	// link finds what a Markdown link or image leads to, definitions included. It takes no link title.
	link = regexp.MustCompile(`\]\(\s*<?([^()\s<>]+)>?[^()]*\)|(?m)^\[[^\]]+\]:\s+(\S+)`)
	// fence and code find what Markdown shows as it is, where brackets are not links.
	fence = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```")
	code  = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```|`[^`\n]*`")
	// heading finds the headings that a link can lead to.
	heading     = regexp.MustCompile(`(?m)^#{1,6}\s+(.+?)\s*#*\s*$`)
	notInAnchor = regexp.MustCompile(`[^\pL\p{Nd} _-]`)
)

// links reports every relative link in a Markdown file that leads to no file, folder or heading.
func links(t *testing.T, fsys fs.FS) {
	t.Helper()
	walk(t, fsys, ".md", func(name, content string) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(content, ""), -1) {
			if why := follow(fsys, name, m[1]+m[2]); why != "" {
				t.Errorf("%s: %s: %s", name, m[1]+m[2], why)
			}
		}
	})
}

func TestRelativeLinksAreValid(t *testing.T) {
	links(t, os.DirFS(root))
	page := fstest.MapFS{"a.md": &fstest.MapFile{Data: []byte("# A `code` heading, two words\n")}}
	for target, broken := range map[string]bool{
		"a.md#a-code-heading-two-words": false, "https://example.com/x.md": false, "#gone": true, "b.md": true, "/a.md": true,
	} {
		if why := follow(page, "a.md", target); (why != "") != broken {
			t.Errorf("the link %s is reported as broken: %q; want %v", target, why, broken)
		}
	}
}

// follow returns why a link is broken, "" if its target exists or is not in the tree.
func follow(fsys fs.FS, from, target string) string {
	u, err := url.Parse(target)
	switch {
	case err != nil:
		return "not a URL"
	case u.Scheme != "" || u.Host != "":
		return ""
	case strings.HasPrefix(u.Path, "/"):
		return "begins at the root of the host, not of the project"
	}
	to := from
	if u.Path != "" {
		to = path.Join(path.Dir(from), u.Path)
	}
	info, err := fs.Stat(fsys, to)
	if err != nil {
		return "no such file"
	}
	if u.Fragment == "" || info.IsDir() || path.Ext(to) != ".md" {
		return ""
	}
	if content, err := fs.ReadFile(fsys, to); err != nil || !anchors(string(content))[u.Fragment] {
		return "no such heading in " + to
	}
	return ""
}

// anchors returns the names of headings in links: letters and digits in lower case, spaces as hyphens, nothing else.
func anchors(content string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(content, ""), -1) {
		name := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		unique := name
		for n := 1; all[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", name, n)
		}
		all[unique] = true
	}
	return all
}
