package requirement

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
)

// SignatureType is the predicate type of a statement which says that an image is signed, and nothing else about it.
const SignatureType = "https://sigstore.dev/cosign/sign/v1"

// A Statement is what an attestation must say: an in-toto statement about the image with a predicate that meets
// conditions.
type Statement struct {
	PredicateType string       // a URI
	Conditions    []Conditions // all must be met by the predicate of one statement
	At            string       // the place of the conditions in the file of the policy, for errors
}

// Attesting returns the requirement that each of the signers has signed a statement, instead of the image.
func (r *Requirement) Attesting(s *Statement) Requirement {
	out := *r
	if r.SignedBy != nil {
		signer := *r.SignedBy
		signer.Statement = s
		out.SignedBy = &signer
	}
	out.Of = slices.Clone(r.Of)
	for i := range out.Of {
		out.Of[i] = r.Of[i].Attesting(s)
	}
	return out
}

// Conditions are met if all of All are met, and one of Any unless Any is empty. Without any condition they are not met.
type Conditions struct{ All, Any []Condition }

// A Condition compares two values.
type Condition struct {
	Key, Value any // JSON values, whose texts may contain expressions in {{ }}; see package condition
	Operator   string
	Message    string // for the user of a pod that is denied; it may be empty
	// Denies is the operator in the file, if the condition is of a denial and Operator is the opposite: a value that is
	// absent meets neither, and so it is denied. At is the place in the file then.
	Denies, At string
}

// A Validation has conditions, all of which must be met, or a program.
type Validation struct {
	Conditions []Conditions
	Program    *Program
	// Reads are the variables that the conditions may name, such as image.config; see package condition.
	Reads []string
}

// opposites are pairs of operators of which exactly one is met by values that can be compared.
func opposites() [][2]string {
	return [][2]string{
		{"Equals", "NotEquals"},
		{"AnyIn", "AllNotIn"},
		{"AllIn", "AnyNotIn"},
		{"GreaterThan", "LessThanOrEquals"},
		{"LessThan", "GreaterThanOrEquals"},
		{"DurationGreaterThan", "DurationLessThanOrEquals"},
		{"DurationLessThan", "DurationGreaterThanOrEquals"},
	}
}

// opposite returns the condition that is met where c, of a denial, is known not to be.
func (c Condition) opposite() Condition {
	c.Denies = c.Operator
	for _, pair := range opposites() {
		switch c.Operator {
		case pair[0]:
			c.Operator = pair[1]
			return c
		case pair[1]:
			c.Operator = pair[0]
			return c
		}
	}
	return c // an error when it is compiled
}

// Opposite returns the conditions that are met where these, of a denial, are known not to be.
func (c Conditions) Opposite() (list []Conditions) {
	var all, one []Condition
	for _, condition := range c.All {
		all = append(all, condition.opposite())
	}
	for _, condition := range c.Any {
		one = append(one, condition.opposite())
	}
	switch {
	case len(all) == 0:
		return []Conditions{{All: one}}
	case len(one) == 0:
		return []Conditions{{Any: all}}
	}
	for _, condition := range one { // one of all is not met, or none of one is
		list = append(list, Conditions{Any: append(slices.Clone(all), condition)})
	}
	return list
}

// HasConditions reports whether a leaf requires a statement that meets conditions.
func (r *Requirement) HasConditions() bool {
	has := func(s *Signer) bool { return s.Image != nil || s.Statement != nil && s.Statement.Conditions != nil }
	return slices.ContainsFunc(r.Signers(), has)
}

// ReadsStatements reports whether a leaf requires a statement.
func (r *Requirement) ReadsStatements() bool {
	return slices.ContainsFunc(r.Signers(), func(s *Signer) bool { return s.Statement != nil })
}

func (v *Validation) canonical() string {
	if v.Program != nil {
		return v.Program.canonical()
	}
	return call("image", canonicalConditions(v.Conditions)...)
}

func (s *Statement) canonical() string {
	return call("statement", append([]string{quote(s.PredicateType)}, canonicalConditions(s.Conditions)...)...)
}

func canonicalConditions(list []Conditions) []string {
	parts := make([]string, len(list))
	for i, c := range list {
		parts[i] = call("conditions", conditions("all", c.All), conditions("any", c.Any))
	}
	slices.Sort(parts)
	return parts
}

func conditions(name string, list []Condition) string {
	all := make([]string, len(list))
	for i, c := range list {
		all[i] = call("condition", literal(c.Key), quote(c.Operator), literal(c.Value))
	}
	slices.Sort(all)
	return call(name, all...)
}

func literal(v any) string {
	text, err := json.Marshal(v)
	if err != nil { // it was decoded from JSON
		return call("invalid")
	}
	return quote(string(text))
}

// String describes the condition as its file has it.
func (c Condition) String() string {
	return strings.Join([]string{display(c.Key), cmp.Or(c.Denies, c.Operator), display(c.Value)}, " ")
}

func display(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	text, _ := json.Marshal(v)
	return string(text)
}

// An Attestation is a statement that was signed.
type Attestation struct {
	PredicateType string `json:"predicateType"`
	Digest        string `json:"digest"` // the SHA-256 of the statement, as it was signed
}
