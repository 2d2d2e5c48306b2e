package checks_test

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/checks"
)

// Operators see log messages, flags and metrics before the source, so each of them is documented: log messages in
// docs/log-messages.md, flags in the page of their program, and metrics in docs/metrics.md, those of pullgate-policyd
// in its page.
func TestOperatorsDocumentationIsComplete(t *testing.T) {
	pages := map[string]string{
		"log message": "log-messages.md", "flag of pullgated": "pullgated.md", "flag of pullgatectl": "pullgatectl.md", "metric": "metrics.md",
		"flag of pullgate-policyd": "pullgate-policyd.md", "metric of pullgate-policyd": "pullgate-policyd.md",
	}
	manual := map[string]string{}
	for what, page := range pages {
		manual[what] = read(t, filepath.Join(root, "docs", page))
	}
	metric := regexp.MustCompile(`^(pullgate|image_pull)_[a-z_]+$`)
	seen := map[string]int{}
	know := func(what, text string, at token.Position) {
		seen[what]++
		if pages[what] == "" {
			t.Errorf("%s: this test knows no page for a %s", at, what)
		} else if !strings.Contains(manual[what], text) {
			t.Errorf("%s: docs/%s does not know %s %q", at, pages[what], what, text)
		}
	}
	err := checks.Programs(os.DirFS(root), func(_ string, fset *token.FileSet, f *ast.File) error {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Error" && len(n.Args) > 1 && !isNamed(s.X, "status") {
					if text, ok := literal(n.Args[1]); ok {
						know("log message", text, fset.Position(n.Pos()))
					}
				}
				if s, ok := n.Fun.(*ast.SelectorExpr); ok && strings.Contains(s.Sel.Name, "Var") && len(n.Args) > 2 {
					if name, ok := literal(n.Args[1]); ok && (f.Name.Name == "main" || f.Name.Name == "cli") {
						know("flag of "+program(fset.Position(n.Pos())), "`-"+strings.Repeat("-", min(1, len(name)-1))+name, fset.Position(n.Pos()))
					}
				}
			case *ast.BasicLit:
				if text, ok := literal(n); ok && metric.MatchString(text) && (f.Name.Name == "metrics" || f.Name.Name == "policyd") {
					what, at := "metric", fset.Position(n.Pos())
					if f.Name.Name == "policyd" {
						what = "metric of pullgate-policyd"
					}
					know(what, text, at)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for what := range pages {
		if seen[what] == 0 {
			t.Errorf("no %s found in the source, so this test looks in the wrong place", what)
		}
	}
}

// program is the one that has a flag: what makes it is in its folder, or in the package cli that pullgatectl's commands
// share.
func program(at token.Position) string {
	if dir := filepath.Base(filepath.Dir(at.Filename)); dir != "cli" {
		return dir
	}
	return "pullgatectl"
}

// isNamed reports whether e is the bare name of a package or a variable.
func isNamed(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// A drop-in of a unit adds flags without a copy of ExecStart=, by a variable that the page of the program names.
func TestUnitsTakeFlagsFromAVariable(t *testing.T) {
	for program, variable := range map[string]string{"pullgated": "PULLGATED_FLAGS", "pullgate-policyd": "POLICYD_FLAGS"} {
		unit, page := read(t, filepath.Join(root, "systemd", program+".service")), read(t, filepath.Join(root, "docs", program+".md"))
		if !strings.Contains(unit, "/"+program+" $"+variable+"\n") {
			t.Errorf("systemd/%s.service: ExecStart= does not have $%s", program, variable)
		}
		if !strings.Contains(page, "Environment="+variable+"=--logging-format=json") {
			t.Errorf("docs/%s.md does not have %s", program, variable)
		}
	}
}
