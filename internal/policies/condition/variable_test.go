package condition_test

import (
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/condition"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// Conditions name only variables that exist, whatever an expression does with them.
func TestVariables(t *testing.T) {
	for key, wrong := range map[string]string{
		"image.config.User":                       "",
		"length(signatures)":                      "",
		"signatures[?image == 'a'].keyID | [0]":   "",
		"image.config.Env[?contains(@, 'A')] | @": "",
		"image.config || signatures[0].keyID":     "",
		"image.tag":                               "image.tag",
		"image.configuration":                     "image.configuration",
		"image":                                   "image",
		"image | config":                          "image",
		"@.image.config":                          "@",
		"@":                                       "@",
		"[0]":                                     "@",
		"images.app.config":                       "images.app.config",
		"signatures[0].keyID == request.object.a": "request.object.a",
		"length(element)":                         "element",
		"!(image.config || secrets[*].a)":         "secrets",
		"\"image.config\" || a[?b].c":             "a",
	} {
		v := &requirement.Validation{
			Conditions: []requirement.Conditions{{All: []requirement.Condition{
				{Key: "{{ " + key + " }}", Operator: "NotEquals", Denies: "Equals", Value: "a", At: "spec.any[0]"},
			}}},
			Reads: []string{"image.config", "signatures"},
		}
		_, errs := condition.CompileValidation(v)
		want := "there is no variable " + wrong + " here; use one of image.config, signatures"
		if (wrong == "") != (errs == nil) || wrong != "" && (!strings.Contains(errs[0].Error(), want) ||
			!strings.HasPrefix(errs[0].Error(), "spec.any[0].key: ")) {
			t.Errorf("%s: %v; want %q", key, errs, wrong)
		}
	}
}

// A denial is lifted if its conditions are known not to be met: by values that can be compared if and only if they are
// not met, by others never.
func TestOpposites(t *testing.T) {
	keys := []any{
		"a", "b", 0.5, 1.0, 5.0, "1h", "2h",
		[]any{"a"},
		[]any{"a", "b"},
		[]any{"b", "c"},
		[]any{},
		nil,
		[]any{[]any{}},
	}
	values := []any{"a", "*", 1.0, "1h", []any{"a", "b"}, []any{"a"}}
	met := func(document any, list ...requirement.Conditions) bool {
		c, errs := condition.CompileValidation(&requirement.Validation{Conditions: list, Reads: []string{"key"}})
		if errs != nil {
			t.Fatal(errs)
		}
		r, err := c.Evaluate(t.Context(), document, now)
		return r.Met && err == nil
	}
	of := func(operator string, value any) requirement.Condition {
		return requirement.Condition{Key: "{{ key }}", Operator: operator, Value: value}
	}
	lifted := map[string]int{}
	for _, operator := range condition.Operators() {
		for _, value := range values {
			denial := requirement.Conditions{Any: []requirement.Condition{of(operator, value)}}
			if _, errs := condition.CompileValidation(&requirement.Validation{
				Conditions: []requirement.Conditions{denial},
			}); errs != nil {
				continue // not a value for the operator
			}
			for _, key := range keys {
				document := map[string]any{"key": key}
				denies, lifts := met(document, denial), met(document, denial.Opposite()...)
				if lifts {
					lifted[operator]++
				}
				if denies && lifts || key == nil && lifts || key == "a" && value == "a" && denies == lifts {
					t.Errorf("%s of %v and %v: denies: %v, lifted: %v", operator, key, value, denies, lifts)
				}
			}
		}
		if lifted[operator] == 0 {
			t.Errorf("%s is never lifted", operator)
		}
	}
	// All of all and one of any deny.
	for n := range 16 {
		key := func(i int) requirement.Condition {
			return of("AnyIn", map[bool]string{true: "a", false: "b"}[n>>i&1 == 1])
		}
		both, one := []requirement.Condition{key(0), key(1)}, []requirement.Condition{key(2), key(3)}
		for _, tc := range []struct {
			requirement.Conditions

			denies bool
		}{
			{requirement.Conditions{All: both, Any: one}, n&3 == 3 && n&12 != 0},
			{requirement.Conditions{All: both}, n&3 == 3},
			{requirement.Conditions{Any: one}, n&12 != 0},
		} {
			if document := map[string]any{"key": "a"}; met(document, tc.Conditions) != tc.denies ||
				met(document, tc.Opposite()...) == tc.denies {
				t.Errorf("conditions %04b, %v: want denied: %v", n, tc.Conditions, tc.denies)
			}
		}
	}
}
