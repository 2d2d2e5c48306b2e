package condition

import (
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// A Path is an expression that finds values in an object. It is immutable.
type Path struct {
	*expression

	// list is the expression without [*] or [] at its end; nil if there is none.
	list   *expression
	quoted bool // a name in it may contain a dot
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
	p := &Path{expression: e, quoted: strings.Contains(text, `"`)}
	inside := strings.TrimSpace(strings.Trim(text, "{}"))
	if before, ok := strings.CutSuffix(strings.TrimSuffix(inside, "[]"), "[*]"); ok || before != inside {
		p.list, _ = compileExpression(before) // nil if nothing is before it
	}
	return p, nil
}

func checkPaths(list []requirement.ImagePath) (errs field.ErrorList) {
	for _, p := range list {
		if _, err := CompilePath(p.Path); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(p.At), p.Path, err.Error()))
		}
	}
	return errs
}

// Find returns what is there in an object; nil if nothing is. If a list is expected at the end of the path, an object
// in its place is returned.
func (p *Path) Find(object any) (any, error) {
	v, err := p.evaluate(object, time.Time{})
	if v != nil || err != nil || p.list == nil {
		return v, err
	}
	v, err = p.list.evaluate(object, time.Time{})
	if _, isObject := v.(map[string]any); !isObject {
		return nil, err
	}
	return v, err
}

// Fields returns the fields of an object that decide what the path finds; nil if all of them can.
func (p *Path) Fields() (names []string) {
	for _, name := range variables(p.node) {
		if name == "@" || p.quoted {
			return nil
		}
		name, _, _ = strings.Cut(name, ".")
		names = append(names, name)
	}
	return slices.Compact(slices.Sorted(slices.Values(names)))
}
