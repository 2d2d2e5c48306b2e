package checks_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// docs/api.txt is what other programs may rely on, so that a review sees when it changes. UPDATE=1 rewrites it.
func TestAPIIsAsListed(t *testing.T) {
	var out bytes.Buffer
	byDir, fset := map[string][]*ast.File{}, token.NewFileSet()
	walk(t, os.DirFS(root), ".go", func(name, src string) {
		if !strings.HasPrefix(name, "pkg/") || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/internal/") {
			return
		}
		f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution) // without comments
		must(t, err)
		byDir[path.Dir(name)] = append(byDir[path.Dir(name)], f)
	})
	for _, dir := range slices.Sorted(maps.Keys(byDir)) {
		p, err := doc.NewFromFiles(fset, byDir[dir], "github.com/pullgate/pullgate/"+dir)
		must(t, err)
		fmt.Fprintf(&out, "%s\n\n", dir)
		show(t, &out, fset, p)
		out.WriteString("\n")
	}
	list := filepath.Join(root, "docs", "api.txt")
	if os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile(list, out.Bytes(), 0o644))
	}
	was, is := strings.Split(read(t, list), "\n"), strings.Split(out.String(), "\n")
	if slices.Equal(was, is) {
		return
	}
	t.Error("the exported API of pkg/ is not what docs/api.txt lists; if it should be: " +
		"cd .ci/checks && UPDATE=1 go test -count=1 -run TestAPI .")
	for _, line := range was {
		if !slices.Contains(is, line) {
			t.Logf("- %s", line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Logf("+ %s", line)
		}
	}
}

// show prints the exported declarations of a package without comments and bodies.
func show(t *testing.T, out *bytes.Buffer, fset *token.FileSet, p *doc.Package) {
	t.Helper()
	var all []ast.Decl
	add := func(values ...[]*doc.Value) {
		for _, v := range slices.Concat(values...) {
			all = append(all, v.Decl)
		}
	}
	functions := func(f ...[]*doc.Func) {
		for _, f := range slices.Concat(f...) {
			f.Decl.Body = nil
			all = append(all, f.Decl)
		}
	}
	add(p.Consts, p.Vars)
	functions(p.Funcs)
	for _, typ := range p.Types {
		all = append(all, typ.Decl)
		add(typ.Consts, typ.Vars)
		functions(typ.Funcs, typ.Methods)
	}
	for _, d := range all {
		var text bytes.Buffer
		must(t, printer.Fprint(&text, fset, d))
		for line := range strings.Lines(text.String() + "\n") {
			if strings.TrimSpace(line) != "" {
				out.WriteString("    " + line)
			}
		}
	}
}
