package condition

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	celop "github.com/google/cel-go/common/operators"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// readsKnown checks that an expression names no field of the pod but those that are known.
func (c *celCompiler) readsKnown(e requirement.Expression, root ast.Expr) {
	if c.from.Known == nil {
		return
	}
	var unknown []string
	c.paths(root, map[string]string{"object": ""}, func(path string) {
		c.reads = append(c.reads, path)
		if !slices.ContainsFunc(c.from.Known, func(known string) bool {
			return path == known || strings.HasPrefix(path, known+".") || strings.HasPrefix(path, known+"[")
		}) {
			unknown = append(unknown, strings.TrimSuffix("object."+path, "."))
		}
	})
	if len(unknown) > 0 {
		c.invalid(e, fmt.Sprintf("a node does not know %s of every pod; it knows %s. Write "+
			"policy.pullgate.dev/at: Admission, or have the hook judge it", strings.Join(unknown, ", "),
			strings.Join(c.from.Known, ", ")))
	}
}

// Needs reports whether the conditions read a field that is not known, by the paths of those. A list of which an
// element is known has paths of fields of the element, too.
func (c *Compiled) Needs(unknown []string) bool {
	return slices.ContainsFunc(c.program.reads, func(path string) bool {
		return slices.ContainsFunc(unknown, func(u string) bool {
			rest, covered := strings.CutPrefix(path, u)
			return covered && (rest == "" || rest[0] == '.' || rest[0] == '[' &&
				!slices.ContainsFunc(unknown, func(other string) bool { return strings.HasPrefix(other, u+"[*].") }))
		})
	})
}

// paths calls use with the paths of the fields that an expression reads, as longest ones. vars has the paths of
// variables.
func (c *celCompiler) paths(x ast.Expr, vars map[string]string, use func(path string)) {
	if path, ok := pathIn(x, vars); ok {
		use(path)
		return
	}
	if x.Kind() == ast.CallKind && x.AsCall().IsMemberFunction() && len(x.AsCall().Args()) >= 2 {
		call := x.AsCall()
		macro := slices.Contains([]string{"all", "exists", "exists_one", "existsOne", "filter", "map"}, call.FunctionName())
		of, ok := pathIn(call.Target(), vars)
		if macro && ok && call.Args()[0].Kind() == ast.IdentKind {
			inside := map[string]string{call.Args()[0].AsIdent(): of + "[*]"}
			for name, path := range vars {
				if _, shadowed := inside[name]; !shadowed {
					inside[name] = path
				}
			}
			if !slices.ContainsFunc(c.from.Known, func(known string) bool { return strings.HasPrefix(known, of+"[*]") }) {
				use(of)
			}
			for _, a := range call.Args()[1:] {
				c.paths(a, inside, use)
			}
			return
		}
	}
	visit(x, func(part ast.Expr) bool {
		if part == x {
			return true
		}
		c.paths(part, vars, use)
		return false
	})
}

// pathIn returns the path of a field in the pod.
func pathIn(x ast.Expr, vars map[string]string) (string, bool) {
	var operand ast.Expr
	step := "[*]"
	switch x.Kind() { //nolint:exhaustive // the others are no fields
	case ast.IdentKind:
		path, ok := vars[x.AsIdent()]
		return path, ok
	case ast.SelectKind:
		operand, step = x.AsSelect().Operand(), "."+x.AsSelect().FieldName()
	case ast.CallKind:
		call := x.AsCall()
		if !slices.Contains([]string{celop.Index, celop.OptIndex, celop.OptSelect}, call.FunctionName()) {
			return "", false
		}
		operand = call.Args()[0]
		if key := call.Args()[1]; key.Kind() == ast.LiteralKind {
			if text, ok := key.AsLiteral().Value().(string); ok {
				step = "." + text
			}
		}
	default:
		return "", false
	}
	if of, name, ok := member(x); ok && of == "request" && name == "object" {
		return "", true
	}
	path, ok := pathIn(operand, vars)
	return strings.TrimPrefix(path+step, "."), ok
}
