package checks

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// API returns what the packages below pkg of the project in dir export, a declaration after the other without comments
// and bodies: what other programs may rely on.
func API(dir string) (string, error) {
	var out bytes.Buffer
	err := filepath.WalkDir(filepath.Join(dir, "pkg"), func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case d.Name() == "internal" || d.Name() == "testdata":
			return fs.SkipDir
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		return packageAPI(&out, name, filepath.ToSlash(rel))
	})
	return out.String(), err
}

func packageAPI(out *bytes.Buffer, dir, as string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range slices.DeleteFunc(names, func(n string) bool { return strings.HasSuffix(n, "_test.go") }) {
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution) // without comments
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return nil
	}
	p, err := doc.NewFromFiles(fset, files, "github.com/pullgate/pullgate/"+as)
	if err != nil {
		return fmt.Errorf("%s: %w", as, err)
	}
	fmt.Fprintf(out, "%s\n\n", path.Join(as))
	show := func(decls ...ast.Node) {
		for _, d := range decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				f.Body = nil
			}
			var text bytes.Buffer
			if err = printer.Fprint(&text, fset, d); err != nil {
				return
			}
			for line := range strings.Lines(text.String() + "\n") {
				if strings.TrimSpace(line) != "" {
					out.WriteString("    " + line)
				}
			}
		}
	}
	values := func(all []*doc.Value) {
		for _, v := range all {
			show(v.Decl)
		}
	}
	functions := func(all []*doc.Func) {
		for _, f := range all {
			show(f.Decl)
		}
	}
	values(p.Consts)
	values(p.Vars)
	functions(p.Funcs)
	for _, t := range p.Types {
		show(t.Decl)
		values(t.Consts)
		values(t.Vars)
		functions(t.Funcs)
		functions(t.Methods)
	}
	out.WriteString("\n")
	return err
}
