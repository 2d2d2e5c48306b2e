package checks_test

import (
	_ "embed"
	"go/parser"
	"go/token"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/pullgate/pullgate/"

// table has the layers and the walls, a line each:
//
//	layer FOLDERS: PACKAGES; tests PACKAGES # REASON  what files in the folders import beside their own, and tests too
//	wall PACKAGES: FOLDERS; tests # REASON            where packages may be imported, and whether by all tests
//
// A list names folders of this module and packages of others, each with all that lies below it; a "$" at the end
// excludes what lies below, a "!" in front forbids. The longest entry that fits decides, and of several layers the one
// with the longest entry for a folder. Packages of other modules are allowed in a layer unless forbidden.
//
//go:embed imports.txt
var table string

type rule struct {
	wall          bool
	of, to        string
	inTests       bool
	tests, reason string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	for line := range strings.Lines(table) {
		line = strings.TrimSuffix(line, "\n")
		text, reason, _ := strings.Cut(line, " # ")
		head, to, isRule := strings.Cut(text, ": ")
		kind, of, _ := strings.Cut(head, " ")
		switch {
		case line == "" || line[0] == '#':
		case isRule && (kind == "layer" || kind == "wall"):
			to, tests, inTests := strings.Cut(to, "; tests")
			all = append(all, rule{wall: kind == "wall", of: of, to: to, tests: tests, inTests: inTests, reason: reason})
		default:
			t.Fatalf("imports.txt: not a rule: %s", line)
		}
	}
	return all
}

// Shows: 003-09
func TestImportsFollowLayersAndWalls(t *testing.T) {
	all := rules(t)
	walk(t, os.DirFS(root), ".go", func(name, src string) {
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
		must(t, err)
		for _, spec := range f.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			must(t, err)
			for _, reason := range forbidden(all, path.Dir(name), to, strings.HasSuffix(name, "_test.go")) {
				t.Errorf("%s imports %s: %s", name, to, reason)
			}
		}
	})
	// The table and its reader forbid something.
	if len(forbidden(all, "internal/daemon", "k8s.io/apimachinery/pkg/types", false)) != 1 {
		t.Error("internal/daemon may import k8s.io/apimachinery/pkg/types; this test reads the table wrongly")
	}
}

// forbidden returns why a file in the folder from, which may be a test, must not import the package to.
func forbidden(all []rule, from, to string, test bool) (reasons []string) {
	to, ours := strings.CutPrefix(to, module)
	if test && to == from {
		return nil // a test of the package
	}
	var layer rule
	folder := ""
	for _, r := range all {
		if !r.wall {
			if f, _ := longest(r.of, from); len(f) > len(folder) {
				layer, folder = r, f
			}
			continue
		}
		inside, outside := longest(r.of, to)
		open, _ := longest(r.to, from)
		if len(inside) > len(outside) && open == "" && (!test || !r.inTests) {
			reasons = append(reasons, r.reason)
		}
	}
	if folder == "" {
		return reasons
	}
	list := folder + " " + layer.to
	if test {
		list += " " + layer.tests
	}
	if allowed, denied := longest(list, to); denied != "" && len(denied) >= len(allowed) || ours && allowed == "" {
		reasons = append(reasons, layer.reason)
	}
	return reasons
}

// longest returns the longest entries of a list that fit a path: of those that allow and of those that forbid.
func longest(list, path string) (allowed, denied string) {
	for entry := range strings.FieldsSeq(list) {
		entry, deny := strings.CutPrefix(entry, "!")
		entry, exact := strings.CutSuffix(entry, "$")
		switch {
		case path != entry && (exact || !strings.HasPrefix(path, entry+"/")):
		case deny && len(entry) > len(denied):
			denied = entry
		case !deny && len(entry) > len(allowed):
			allowed = entry
		}
	}
	return allowed, denied
}
