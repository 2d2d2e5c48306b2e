package policyfiles

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// Patterns returns the image patterns of a list.
func (c *checker) Patterns(at *field.Path, list []string, syntax requirement.Syntax) []requirement.Pattern {
	var all []requirement.Pattern
	for i, text := range list {
		if p, ok := c.Pattern(at.Index(i), text, syntax); ok {
			all = append(all, p)
		}
	}
	return all
}

// Pattern returns the image pattern of a field.
func (c *checker) Pattern(at *field.Path, text string, syntax requirement.Syntax) (requirement.Pattern, bool) {
	p, err := requirement.ParsePattern(text, syntax)
	if err != nil {
		c.Invalid(at, text, err.Error())
	}
	return p, err == nil
}

// maxIdentity is the length of the longest issuer and subject.
const maxIdentity = 2048

// Identity returns the issuer or the subject of a certificate. name is the name of its field, beside which there can be
// a field for a regular expression; exactly one of the two must be present. of makes the text of a value.
func (c *checker) Identity(at *field.Path, name string, value, expression *string, of func(string) requirement.Text) requirement.Text {
	const suffix = "RegExp"
	given := value != nil && *value != ""
	if expression == nil || *expression == "" {
		if !given {
			c.Required(at.Child(name), fmt.Sprintf("must be the %s of the certificate; %s%s can be an RE2 expression that matches all of it", name, name, suffix))
			return requirement.Text{}
		}
		c.NoVariable(at.Child(name), *value)
		if len(*value) > maxIdentity {
			c.Invalid(at.Child(name), (*value)[:64]+"…", fmt.Sprintf("must have at most %d characters", maxIdentity))
			return requirement.Text{}
		}
		return of(*value)
	}
	at = at.Child(name + suffix)
	if given {
		c.Invalid(at, *expression, "must be absent if "+name+" is given")
		return requirement.Text{}
	}
	t, err := requirement.Regexp(*expression)
	if err != nil {
		c.Invalid(at, *expression, fmt.Sprintf("must be an RE2 expression: %v", err))
	}
	return t
}

// NoVariable reports a value that is a variable in other programs. Here it would stand for itself and match nothing.
func (c *checker) NoVariable(at *field.Path, value string) {
	if strings.Contains(value, "{{") {
		c.Invalid(at, value, "variables are not supported; write the value itself")
	}
}

// A requirementNode is a requirement and the field that it is from.
type requirementNode struct {
	requirement.Requirement
	At *field.Path
}

// Distinct returns the requirements of a list. One that equals an earlier one is an error, because one signature would
// count twice. It is not reported beside other errors, because parts of requirements that are missing are equal.
func (c *checker) Distinct(nodes []requirementNode) []requirement.Requirement {
	all := make([]requirement.Requirement, len(nodes))
	first := make(map[string]*field.Path, len(nodes))
	for i := range nodes {
		all[i] = nodes[i].Requirement
		hash := all[i].Hash("")
		if earlier, ok := first[hash]; ok && len(c.Errs) == 0 {
			c.Errs = append(c.Errs, fmt.Errorf("%s: Duplicate value: the same as %s; one signature would count twice", nodes[i].At, earlier))
			continue
		}
		first[hash] = nodes[i].At
	}
	return all
}
