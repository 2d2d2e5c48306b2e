package condition

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jmespath-community/go-jmespath/pkg/parsing"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A Path is an expression that finds values in an object. What is an object where a list is expected is the list of its
// values. It is immutable.
type Path struct {
	*expression

	fields []string
}

// CompilePath returns the path of a text, which is one expression, with or without {{ }}.
func CompilePath(text string) (*Path, error) {
	if !strings.Contains(text, "{{") {
		text = "{{" + text + "}}"
	}
	o, err := compileOperand(text)
	if err != nil {
		return nil, err
	}
	e := o.single()
	switch {
	case e == nil:
		return nil, errors.New("must be one expression, as in {{ spec.steps[*] }}")
	case readsClock(e.node):
		return nil, errors.New("must not read the clock")
	}
	return &Path{&expression{listed(e.node)}, fieldsOf(e.node, strings.Contains(text, `"`))}, nil
}

// listed returns a node that takes an object in the place of a list for the list of its values.
func listed(n parsing.ASTNode) parsing.ASTNode {
	n.Children = slices.Clone(n.Children)
	for i := range n.Children {
		n.Children[i] = listed(n.Children[i])
	}
	wrap := func(n *parsing.ASTNode) {
		*n = parsing.ASTNode{NodeType: parsing.ASTFunctionExpression, Value: elements, Children: []parsing.ASTNode{*n}}
	}
	switch n.NodeType { //nolint:exhaustive // the others take no list
	case parsing.ASTFlatten:
		inner := &n.Children[0]
		projects := inner.NodeType == parsing.ASTProjection || inner.NodeType == parsing.ASTFilterProjection
		if projects && inner.Children[1].NodeType != parsing.ASTIdentity { // as in a[].b[]
			wrap(&inner.Children[1])
		}
		wrap(inner)
	case parsing.ASTProjection, parsing.ASTFilterProjection:
		wrap(&n.Children[0])
	}
	return n
}

// elements is the name of a function that no policy can call.
const elements = " elements"

func elementsOf(arguments []any) (any, error) {
	object, ok := arguments[0].(map[string]any)
	if !ok {
		return arguments[0], nil
	}
	list := make([]any, 0, len(object))
	for _, key := range slices.Sorted(maps.Keys(object)) {
		list = append(list, object[key])
	}
	return list, nil
}

func checkPaths(list []requirement.ImagePath) (errs field.ErrorList) {
	for _, p := range list {
		if _, err := CompilePath(p.Path); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(p.At), p.Path, err.Error()))
		}
	}
	return errs
}

// Find returns what is there in an object; nil if nothing is.
func (p *Path) Find(object any) (any, error) { return p.evaluate(object, time.Time{}) }

// Fields returns the fields of an object that decide what the path finds; nil if all of them can.
func (p *Path) Fields() []string { return p.fields }

// fieldsOf returns the fields that an expression reads. A quoted name may contain a dot.
func fieldsOf(n parsing.ASTNode, quoted bool) (names []string) {
	for _, name := range variables(n) {
		if name == "@" || quoted {
			return nil
		}
		name, _, _ = strings.Cut(name, ".")
		names = append(names, name)
	}
	return slices.Compact(slices.Sorted(slices.Values(names)))
}
