package checks_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

// document finds where a text names a page of docs/, and what precedes the name.
var document = regexp.MustCompile(`(\S*/)?(docs/[a-z0-9/-]+\.md(?:#[a-z0-9-]+)?)`)

// programs calls f for every Go file of cmd, internal and pkg that is neither a test nor test data.
func programs(t *testing.T, f func(name string, fset *token.FileSet, file *ast.File)) {
	t.Helper()
	walk(t, os.DirFS(root), ".go", func(name, src string) {
		top, _, _ := strings.Cut(name, "/")
		if top != "cmd" && top != "internal" && top != "pkg" || strings.HasSuffix(name, "_test.go") {
			return
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
		must(t, err)
		f(name, fset, file)
	})
}

// A page of docs/ that a program, a unit or a package script names is found by a URL, or in the installed files.
func TestNamedDocumentsExist(t *testing.T) {
	const home = "https://github.com/pullgate/pullgate/blob/main/"
	see := func(name, text string) {
		for _, m := range document.FindAllStringSubmatch(text, -1) {
			if m[1] != home && !strings.HasSuffix(m[1], "/usr/share/doc/pullgate/") {
				t.Errorf("%s: %s: neither a URL nor the path of an installed file", name, m[0])
			} else if why := follow(os.DirFS(root), "README.md", m[2]); why != "" {
				t.Errorf("%s: %s: %s", name, m[2], why)
			}
		}
	}
	programs(t, func(name string, _ *token.FileSet, f *ast.File) {
		ast.Inspect(f, func(n ast.Node) bool {
			if l, ok := n.(ast.Expr); ok {
				if text, ok := literal(l); ok {
					see(name, text)
				}
			}
			return true
		})
	})
	for _, ext := range []string{".service", ".socket", ".yaml", ""} {
		walk(t, os.DirFS(root), ext, func(name, text string) {
			if strings.HasPrefix(name, "systemd/") {
				see(name, text)
			}
		})
	}
}
