package crashpoint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
)

// TestEveryPointIsPassedSomewhere scans the sources: a point that no code passes is tested by nothing.
func TestEveryPointIsPassedSomewhere(t *testing.T) {
	passed := selectors(t, filepath.Join("..", "..", ".."))
	values := points(t)
	all := crashpoint.All()
	if len(values) != len(all) {
		t.Errorf("All() has %d points, the constants are %d", len(all), len(values))
	}
	for _, point := range all {
		t.Run(point, func(t *testing.T) {
			name, ok := values[point]
			switch {
			case !ok:
				t.Errorf("no constant is %q", point)
			case passed[name]:
			case strings.HasPrefix(point, "records."):
				t.Errorf("no code passes crashpoint.%s", name)
			default:
				t.Errorf("no code passes crashpoint.%s", name)
			}
		})
	}
	if sorted := slices.Sorted(slices.Values(all)); len(slices.Compact(sorted)) != len(all) {
		t.Error("a point is in All() twice")
	}
}

// points returns the names of the constants by their values.
func points(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "crashpoint.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name == "Env" {
			return true
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
			value, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Error(err)
			}
			names[value] = spec.Names[0].Name
		}
		return true
	})
	return names
}

// selectors returns every X of a crashpoint.X outside of tests.
func selectors(t *testing.T, root string) map[string]bool {
	t.Helper()
	used := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return skipDir(err)
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(source), "crashpoint.") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "crashpoint" {
					used[s.Sel.Name] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return used
}

func skipDir(err error) error {
	if err != nil {
		return err
	}
	return fs.SkipDir
}
