package checks

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Layout returns every breach of the rules of the tree that can be seen without types:
//
//   - every package under pkg/ and internal/ has a doc.go, and its package comment stands there and nowhere else;
//   - no folder is named after nothing in particular (util, common, types, helpers, model).
//
// The root of fsys is the root of the project.
func Layout(fsys fs.FS) ([]string, error) {
	packages, err := packagesOf(fsys)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, p := range packages {
		found = append(found, p.breaches()...)
	}
	return found, nil
}

// goPackage is what a folder with Go files holds, tests left out.
type goPackage struct {
	dir      string
	files    []string
	comments []string // files with a package comment
}

func (p *goPackage) breaches() []string {
	var found []string
	for name := range strings.SplitSeq(p.dir, "/") {
		if isEmptyName(name) {
			found = append(found, fmt.Sprintf("%s: %q does not describe what a package is for", p.dir, name))
		}
	}
	if !strings.HasPrefix(p.dir, "pkg/") && !strings.HasPrefix(p.dir, "internal/") {
		return found
	}
	if !slices.Contains(p.files, "doc.go") {
		return append(found, p.dir+": no doc.go")
	}
	switch {
	case len(p.comments) == 0:
		found = append(found, p.dir+": no package comment")
	case len(p.comments) > 1:
		found = append(found, fmt.Sprintf("%s: package comments in %s; one in doc.go is enough", p.dir, strings.Join(p.comments, " and ")))
	case p.comments[0] != "doc.go":
		found = append(found, fmt.Sprintf("%s: package comment in %s, not in doc.go", p.dir, p.comments[0]))
	}
	return found
}

func isEmptyName(name string) bool {
	switch strings.TrimSuffix(name, "s") {
	case "util", "common", "type", "helper", "model", "misc", "shared", "base":
		return true
	default:
		return false
	}
}

func packagesOf(fsys fs.FS) ([]*goPackage, error) {
	byDir := map[string]*goPackage{}
	var dirs []string
	err := walk(fsys, ".go", func(name string, src []byte) error {
		if strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		if ast.IsGenerated(f) {
			return nil
		}
		dir, base := path.Split(name)
		dir = path.Clean(dir)
		p := byDir[dir]
		if p == nil {
			p = &goPackage{dir: dir}
			byDir[dir] = p
			dirs = append(dirs, dir)
		}
		p.files = append(p.files, base)
		if f.Doc != nil {
			p.comments = append(p.comments, base)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var all []*goPackage
	for _, d := range dirs {
		all = append(all, byDir[d])
	}
	return all, nil
}

// walk calls f for every file with the extension, but for those that are not source: testdata,
// and what is built or fetched.
func walk(fsys fs.FS, ext string, f func(name string, content []byte) error) error {
	return fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case "testdata", "vendor", "node_modules", "bin", "dist", ".git", ".cache":
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ext {
			return nil
		}
		content, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		return f(name, content)
	})
}
