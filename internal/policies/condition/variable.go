package condition

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jmespath-community/go-jmespath/pkg/parsing"
)

// variables returns an error for a variable of an operand that is not known. All are if known is nil.
func (o operand) variables(known []string) error {
	for _, p := range o.parts {
		if p.expression == nil || known == nil {
			continue
		}
		for _, name := range variables(p.node) {
			is := func(k string) bool { return name == k || strings.HasPrefix(name, k+".") }
			if !slices.ContainsFunc(known, is) {
				return fmt.Errorf("there is no variable %s here; use one of %s", name, strings.Join(known, ", "))
			}
		}
	}
	return nil
}

// Reads reports whether an expression of the conditions reads a variable, such as image.config.
func (c *Compiled) Reads(variable string) bool {
	if p := c.program; p != nil {
		return variable == "signatures" || variable == "attestations" && p.payloads != nil ||
			strings.HasPrefix(variable, "image.") && p.readsImage
	}
	return slices.ContainsFunc(c.blocks, func(b block) bool {
		return slices.ContainsFunc(slices.Concat(b.all, b.any), func(c condition) bool {
			return c.key.reads(variable) || c.value.reads(variable)
		})
	})
}

func (o operand) reads(variable string) bool {
	return slices.ContainsFunc(o.parts, func(p part) bool {
		return p.expression != nil && slices.ContainsFunc(variables(p.node), func(name string) bool {
			return name == variable || strings.HasPrefix(name, variable+".")
		})
	})
}

// variables returns what an expression reads of its document: names with their fields, as in image.config; "@" is all.
func variables(n parsing.ASTNode) []string {
	if name, ok := path(n); ok {
		return []string{name}
	}
	children := n.Children
	switch n.NodeType { //nolint:exhaustive // the others evaluate all of their children on the same document
	case parsing.ASTCurrentNode, parsing.ASTIdentity:
		return []string{"@"}
	case parsing.ASTSubexpression, parsing.ASTProjection, parsing.ASTFilterProjection, parsing.ASTIndexExpression,
		parsing.ASTPipe:
		children = children[:1]
	}
	var all []string
	for _, c := range children {
		all = append(all, variables(c)...)
	}
	return all
}

// path returns a name with the fields behind it.
func path(n parsing.ASTNode) (string, bool) {
	switch {
	case n.NodeType == parsing.ASTField:
		name, ok := n.Value.(string)
		return name, ok
	case n.NodeType == parsing.ASTSubexpression && len(n.Children) == 2:
		before, first := path(n.Children[0])
		behind, second := path(n.Children[1])
		return before + "." + behind, first && second
	}
	return "", false
}
