package checks

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"strings"
	"unicode/utf8"
)

// width is the last column of a line of prose or of a comment. A tab counts as one.
const width = 120

// unbroken finds what no line can end in: where a link leads, and long code.
var unbroken = regexp.MustCompile("\\]\\([^()\\s]*\\)|`[^`]{100,}`")

// WideProse returns every line of prose in a Markdown file under fsys that is longer than 120 columns. Code, tables and
// headings may be longer, and the target of a link is not counted.
func WideProse(fsys fs.FS) ([]string, error) {
	var wide []string
	err := walk(fsys, ".md", func(name string, content []byte) error {
		fenced := false
		lines := bufio.NewScanner(bytes.NewReader(content))
		for n := 1; lines.Scan(); n++ {
			line := lines.Text()
			trimmed := strings.TrimSpace(line)
			if strings.HasPrefix(trimmed, "```") {
				fenced = !fenced
			}
			if fenced || strings.HasPrefix(line, "    ") || strings.HasPrefix(trimmed, "|") || strings.HasPrefix(line, "#") {
				continue
			}
			if utf8.RuneCountInString(unbroken.ReplaceAllString(line, "]")) > width {
				wide = append(wide, fmt.Sprintf("%s:%d: longer than %d columns", name, n, width))
			}
		}
		return lines.Err()
	})
	return wide, err
}

// WideComments returns every line of a comment in a Go file below one of the folders under fsys that is longer than 120
// columns. Generated files, directives, preformatted text and lines without a space to break at
// may be longer.
func WideComments(fsys fs.FS, folders ...string) ([]string, error) {
	var wide []string
	err := walk(fsys, ".go", func(name string, src []byte) error {
		if !below(name, folders) {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		lines := strings.Split(string(src), "\n")
		for _, group := range file.Comments {
			for _, c := range group.List {
				if strings.HasPrefix(c.Text, "//nolint") || strings.HasPrefix(c.Text, "//go:") {
					continue
				}
				from, to := fset.Position(c.Pos()), fset.Position(c.End())
				for n := from.Line; n <= to.Line; n++ {
					text := strings.TrimLeft(lines[n-1], "\t/ ")
					if strings.HasPrefix(strings.TrimLeft(lines[n-1], "\t"), "//\t") {
						continue // a table or a drawing
					}
					if utf8.RuneCountInString(lines[n-1]) > width && strings.Contains(text, " ") {
						wide = append(wide, fmt.Sprintf("%s:%d: comment is longer than %d columns", name, n, width))
					}
				}
			}
		}
		return nil
	})
	return wide, err
}

func below(name string, folders []string) bool {
	for _, f := range folders {
		if strings.HasPrefix(name, f+"/") {
			return true
		}
	}
	return false
}
