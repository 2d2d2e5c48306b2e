package checks

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

// document finds where a text names a page of docs/, and what precedes the name.
var document = regexp.MustCompile(`(\S*/)?(docs/[a-z0-9/-]+\.md(?:#[a-z0-9-]+)?)`)

// Programs calls f for every Go file of cmd, internal and pkg that is neither a test nor test data.
func Programs(fsys fs.FS, f func(name string, fset *token.FileSet, file *ast.File) error) error {
	return walk(fsys, ".go", func(name string, src []byte) error {
		if top, _, _ := strings.Cut(name, "/"); top != "cmd" && top != "internal" && top != "pkg" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		return f(name, fset, file)
	})
}

// Named returns every page of docs/ that a string of a program, a unit or a script of the packages names and that a
// reader of an installed program would not find: without a URL or the directory of the package, or not in the tree.
func Named(fsys fs.FS) ([]string, error) {
	var wrong []string
	see := func(name, text string) error {
		for _, m := range document.FindAllStringSubmatch(text, -1) {
			if m[1] != "https://github.com/pullgate/pullgate/blob/main/" && !strings.HasSuffix(m[1], "/usr/share/doc/pullgate/") {
				wrong = append(wrong, fmt.Sprintf("%s: %s: neither a URL nor the path of an installed file", name, m[0]))
				continue
			}
			why, err := follow(fsys, "README.md", m[2])
			if err != nil {
				return err
			}
			if why != "" {
				wrong = append(wrong, fmt.Sprintf("%s: %s: %s", name, m[2], why))
			}
		}
		return nil
	}
	err := Programs(fsys, func(name string, _ *token.FileSet, f *ast.File) (err error) {
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && err == nil {
				var text string
				if text, err = strconv.Unquote(l.Value); err == nil {
					err = see(name, text)
				}
			}
			return err == nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, ext := range []string{".service", ".socket", ".yaml", ""} {
		err := walk(fsys, ext, func(name string, text []byte) error {
			if !strings.HasPrefix(name, "systemd/") {
				return nil
			}
			return see(name, string(text))
		})
		if err != nil {
			return nil, err
		}
	}
	return wrong, nil
}
