// Package globals reports package variables that change after the program has started. A table
// that is filled where it is declared is fine; one that is written to by a function, in the package
// or in its tests, is state that everybody shares and nobody owns.
//
// A variable counts as changed when it, an element or a field of it is assigned to, incremented,
// deleted from or cleared, when its address is taken, and when a method with a pointer receiver
// is called on it. Types that exist in order to change (channels, locks, atomics, pointers other
// than to values known never to change) are reported where they are declared.
//
// Files that are only built with the tag crashpoint are left alone: they kill the process they are in.
package globals

import (
	"go/ast"
	"go/build/constraint"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Analyzer returns the analyzer. It keeps no state between packages.
func Analyzer() *analysis.Analyzer {
	return &analysis.Analyzer{
		Name: "globals",
		Doc:  "report package variables that change after the program has started",
		URL:  "https://github.com/pullgate/pullgate/blob/main/CONTRIBUTING.md",
		Run:  run,
	}
}

func run(pass *analysis.Pass) (any, error) {
	c := checker{pass: pass}
	for _, f := range pass.Files {
		if ast.IsGenerated(f) || forCrashes(f) {
			continue
		}
		for _, d := range f.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
				c.declared(g)
			}
		}
		ast.Inspect(f, c.visit)
	}
	return nil, nil //nolint:nilnil // an analyzer without facts has no result
}

// forCrashes reports whether a file is only built with the tag crashpoint.
func forCrashes(f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.Pos() > f.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			expr, err := constraint.Parse(c.Text)
			return err == nil && !expr.Eval(func(tag string) bool { return tag != "crashpoint" })
		}
	}
	return false
}

type checker struct {
	pass *analysis.Pass
}

// declared reports variables whose type is made for change.
func (c *checker) declared(g *ast.GenDecl) {
	for _, s := range g.Specs {
		spec, ok := s.(*ast.ValueSpec)
		if !ok {
			continue
		}
		for i, name := range spec.Names {
			if i < len(spec.Values) && c.isTestFlag(spec.Values[i]) {
				continue
			}
			v, ok := c.pass.TypesInfo.Defs[name].(*types.Var)
			if !ok || name.Name == "_" {
				continue
			}
			if why := mutable(v.Type()); why != "" {
				c.pass.Reportf(name.Pos(), "package variable %s is %s, which is made to change", name.Name, why)
			}
		}
	}
}

// isTestFlag reports whether e defines a flag of a test binary, which is parsed before any test.
func (c *checker) isTestFlag(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || !strings.HasSuffix(c.pass.Fset.File(e.Pos()).Name(), "_test.go") {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	f := c.pass.TypesInfo.Uses[sel.Sel]
	return f != nil && f.Pkg() != nil && f.Pkg().Path() == "flag"
}

// mutable says why a type is made for change, "" if it is not.
func mutable(t types.Type) string {
	switch u := types.Unalias(t).(type) {
	case *types.Chan:
		return "a channel"
	case *types.Pointer:
		if !constant(u.Elem()) {
			return "a pointer"
		}
	case *types.Named:
		if p := u.Obj().Pkg(); p != nil && (p.Path() == "sync" || p.Path() == "sync/atomic") {
			return p.Name() + "." + u.Obj().Name()
		}
	}
	return ""
}

// constant reports whether what a pointer leads to never changes once it is made.
func constant(t types.Type) bool {
	n, ok := types.Unalias(t).(*types.Named)
	if !ok {
		return false
	}
	p := n.Obj().Pkg()
	if p == nil {
		return false
	}
	switch p.Path() + "." + n.Obj().Name() {
	case "regexp.Regexp", "hash/crc32.Table", "text/template.Template", "html/template.Template",
		"github.com/prometheus/client_golang/prometheus.Desc",
		"google.golang.org/grpc.ServiceDesc", "google.golang.org/grpc.StreamDesc":
		return true
	default:
		return false
	}
}

func (c *checker) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			for _, e := range n.Lhs {
				c.written(e, "assigned to")
			}
		}
	case *ast.IncDecStmt:
		c.written(n.X, "changed")
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			c.written(n.Key, "assigned to")
			c.written(n.Value, "assigned to")
		}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			c.written(n.X, "handed out by its address")
		}
	case *ast.CallExpr:
		c.call(n)
	}
	return true
}

// call looks for built-in functions that change their argument and for methods that may change
// their receiver.
func (c *checker) call(n *ast.CallExpr) {
	switch fun := ast.Unparen(n.Fun).(type) {
	case *ast.Ident:
		b, ok := c.pass.TypesInfo.Uses[fun].(*types.Builtin)
		if ok && len(n.Args) > 0 && (b.Name() == "delete" || b.Name() == "clear" || b.Name() == "copy") {
			c.written(n.Args[0], "changed")
		}
	case *ast.SelectorExpr:
		s, ok := c.pass.TypesInfo.Selections[fun]
		if !ok || s.Kind() != types.MethodVal {
			return
		}
		sig, ok := s.Obj().Type().(*types.Signature)
		if !ok {
			return
		}
		_, byPointer := sig.Recv().Type().(*types.Pointer)
		if _, isPointer := s.Recv().Underlying().(*types.Pointer); byPointer && !isPointer {
			c.written(fun.X, "changed by method "+s.Obj().Name())
		}
	}
}

// written reports e if it is a package variable, or an element or a field of one. What lies behind
// a pointer is another value; a pointer is reported where it is declared.
func (c *checker) written(e ast.Expr, how string) {
	for e != nil {
		switch x := ast.Unparen(e).(type) {
		case *ast.Ident:
			c.report(x, how)
			return
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.SelectorExpr:
			if _, ok := c.pass.TypesInfo.Selections[x]; !ok { // a name of another package
				c.report(x.Sel, how)
				return
			}
			e = x.X
		default:
			return
		}
		if t := c.pass.TypesInfo.TypeOf(e); t != nil {
			if _, ok := t.Underlying().(*types.Pointer); ok {
				return
			}
		}
	}
}

func (c *checker) report(id *ast.Ident, how string) {
	v, ok := c.pass.TypesInfo.Uses[id].(*types.Var)
	if !ok || v.Pkg() == nil || v.Parent() != v.Pkg().Scope() {
		return
	}
	if strings.HasSuffix(how, "its address") && constantUse(v) {
		return
	}
	c.pass.Reportf(id.Pos(), "package variable %s is %s; it may only be set where it is declared", v.Name(), how)
}

// constantUse reports whether taking the address of a variable is how its owner means it to be
// used: the service descriptions that generated code exports.
func constantUse(v *types.Var) bool {
	n, ok := types.Unalias(v.Type()).(*types.Named)
	return ok && constant(n)
}
