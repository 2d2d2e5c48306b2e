package checks_test

import (
	"go/ast"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Operators see log messages, flags and metrics before the source, so each of them is documented.
func TestOperatorsDocumentationIsComplete(t *testing.T) {
	pages := map[string]string{
		"log message": "log-messages.md", "metric": "metrics.md", "metric of pullgate-policyd": "pullgate-policyd.md",
		"flag of pullgated": "pullgated.md", "flag of pullgatectl": "pullgatectl.md",
		"flag of pullgate-policyd": "pullgate-policyd.md", "flag of pullgate-dispatcher": "pullgate-dispatcher.md",
		"metric of pullgate-dispatcher": "pullgate-dispatcher.md",
	}
	manual := map[string]string{}
	for what, page := range pages {
		manual[what] = read(t, filepath.Join(root, "docs", page))
	}
	metric := regexp.MustCompile(`^(pullgate|image_pull)_[a-z_]+$`)
	seen := map[string]int{}
	programs(t, func(name string, fset *token.FileSet, f *ast.File) {
		know := func(what, text string, n ast.Node) {
			if seen[what]++; !strings.Contains(manual[what], text) {
				t.Errorf("%s: docs/%s does not know %s %q", fset.Position(n.Pos()), pages[what], what, text)
			}
		}
		// What makes a flag is in the folder of its program, or in the package cli that pullgatectl's commands share.
		program, kind := strings.Replace(path.Base(path.Dir(name)), "cli", "pullgatectl", 1), "metric"
		if f.Name.Name == "policyd" || f.Name.Name == "dispatcher" {
			kind = "metric of pullgate-" + f.Name.Name
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				s, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || len(n.Args) < 2 {
					break
				}
				from, _ := s.X.(*ast.Ident)
				text, ok := literal(n.Args[1])
				switch {
				case !ok:
				case s.Sel.Name == "Error" && (from == nil || from.Name != "status"):
					know("log message", text, n)
				case strings.Contains(s.Sel.Name, "Var") && len(n.Args) > 2 && (f.Name.Name == "main" || f.Name.Name == "cli"):
					know("flag of "+program, "`-"+strings.Repeat("-", min(1, len(text)-1))+text, n)
				}
			case *ast.BasicLit:
				text, ok := literal(n)
				if ok && metric.MatchString(text) && (f.Name.Name == "metrics" || kind != "metric") {
					know(kind, text, n)
				}
			}
			return true
		})
	})
	for what := range pages {
		if seen[what] == 0 {
			t.Errorf("no %s found in the source, so this test looks in the wrong place", what)
		}
	}
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
		unit, page := read(t, root+"/systemd/"+program+".service"), read(t, root+"/docs/"+program+".md")
		if !strings.Contains(unit, "/"+program+" $"+variable+"\n") {
			t.Errorf("systemd/%s.service: ExecStart= does not have $%s", program, variable)
		}
		if !strings.Contains(page, "Environment="+variable+"=--logging-format=json") {
			t.Errorf("docs/%s.md does not have %s", program, variable)
		}
	}
}
