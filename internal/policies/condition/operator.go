package condition

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// maxComparisons bounds how many elements an operator compares.
const maxComparisons = 1_000_000

var errComparisons = fmt.Errorf("needs more than %d comparisons", maxComparisons)

// A value is what a key is compared with.
type value struct {
	any
	// patterns match the texts of a value without expressions, element by element: a document brings no wildcards. nil
	// if the value is evaluated.
	patterns []requirement.Text
}

func newValue(literal any) value {
	v := value{any: literal}
	for _, element := range list(literal) {
		v.patterns = append(v.patterns, requirement.Glob(asText(element)))
	}
	return v
}

// An operator compares a key with a value.
type operator struct {
	// compare returns anything when ctx has ended.
	compare func(ctx context.Context, key any, v value) bool
	check   func(literal any) error // of a value without expressions
	// grows says that what is met by a duration is met by every longer one, shrinks likewise for every shorter one.
	grows, shrinks bool
}

//nolint:gochecknoglobals // a constant table
var operators = func() map[string]operator {
	table := map[string]operator{}
	in := func(key any, v value) bool {
		for i, element := range list(v.any) {
			if equal(key, element, v.pattern(i)) {
				return true
			}
		}
		return false
	}
	// each reports whether every element of the key is in the value, or none is.
	each := func(ctx context.Context, key any, v value, want bool) bool {
		return !slices.ContainsFunc(list(key), func(k any) bool { return ctx.Err() != nil || in(k, v) != want })
	}
	equals := func(k any, v value) bool { return equal(k, v.any, v.pattern(0)) }
	type compare = func(ctx context.Context, key any, v value) bool
	for name, compare := range map[string]compare{
		"AnyIn":    func(ctx context.Context, k any, v value) bool { return !each(ctx, k, v, false) },
		"AllIn":    func(ctx context.Context, k any, v value) bool { return len(list(k)) > 0 && each(ctx, k, v, true) },
		"AnyNotIn": func(ctx context.Context, k any, v value) bool { return alike(k, v) && !each(ctx, k, v, true) },
		"AllNotIn": func(ctx context.Context, k any, v value) bool { return alike(k, v) && each(ctx, k, v, false) },
	} {
		table[name] = operator{compare: compare, check: notEmpty}
	}
	table["Equals"] = operator{compare: func(_ context.Context, k any, v value) bool {
		return equals(k, v)
	}, check: anything}
	table["NotEquals"] = operator{compare: func(_ context.Context, k any, v value) bool {
		return isScalar(k) == isScalar(v.any) && !equals(k, v)
	}, check: anything}
	for name, o := range map[string]struct {
		operator
		holds func(c int) bool
	}{
		"GreaterThan":         {operator{grows: true}, func(c int) bool { return c > 0 }},
		"GreaterThanOrEquals": {operator{grows: true}, func(c int) bool { return c >= 0 }},
		"LessThan":            {operator{shrinks: true}, func(c int) bool { return c < 0 }},
		"LessThanOrEquals":    {operator{shrinks: true}, func(c int) bool { return c <= 0 }},
	} {
		order := o.operator
		order.check = isMeasure
		order.compare = func(_ context.Context, k any, v value) bool {
			c, ok := ordered(k, v.any)
			return ok && o.holds(c)
		}
		table[name] = order
		order.check = isDuration
		order.compare = func(_ context.Context, k any, v value) bool {
			key, isKey := duration(k)
			limit, isLimit := duration(v.any)
			return isKey && isLimit && o.holds(cmp.Compare(key, limit))
		}
		table["Duration"+name] = order
	}
	return table
}()

// Operators returns the names of the operators.
func Operators() []string { return slices.Sorted(maps.Keys(operators)) }

func anything(v any) error {
	if v == nil {
		return errors.New("must not be null; a condition on an absent field is never met")
	}
	return nil
}

func notEmpty(v any) error {
	if l, ok := v.([]any); ok && len(l) == 0 {
		return errors.New("must have at least one element")
	}
	return anything(v)
}

func isMeasure(v any) error {
	if _, ok := ordered(v, v); !ok {
		return errors.New("must be a number, a quantity, a duration or a time")
	}
	return nil
}

func isDuration(v any) error {
	if _, ok := duration(v); !ok {
		return errors.New("must be a duration, as in 24h, or a number of seconds")
	}
	return nil
}

// alike reports whether the elements of a key can be equal to those of a value: a list of lists is in no list of texts,
// and that says nothing about its texts.
func alike(key any, v value) bool {
	elements := list(v.any)
	other := func(k any) bool { return isScalar(k) != isScalar(elements[0]) }
	return len(elements) > 0 && !slices.ContainsFunc(list(key), other)
}

func (v value) pattern(i int) *requirement.Text {
	if i < len(v.patterns) {
		return &v.patterns[i]
	}
	return nil
}

func list(v any) []any {
	if l, ok := v.([]any); ok {
		return l
	}
	return []any{v}
}

func equal(key, v any, pattern *requirement.Text) bool {
	if !isScalar(key) || !isScalar(v) {
		return reflect.DeepEqual(key, v)
	}
	if c, ok := byNumber(key, v); ok {
		return c == 0
	}
	if pattern != nil {
		return pattern.Matches(asText(key))
	}
	return asText(key) == asText(v)
}

func isScalar(v any) bool {
	switch v.(type) {
	case string, float64, bool:
		return true
	}
	return false
}

// ordered compares two values; ok is false if there is no order between them. Texts have none: a document must not
// choose that "10/10" comes before "8.0", and "5004h0m0s" before "7 days".
func ordered(key, v any) (c int, ok bool) {
	if c, ok := byNumber(key, v); ok {
		return c, true
	}
	k, _ := key.(string)
	text, _ := v.(string)
	a, first := time.Parse(time.RFC3339, k)
	b, second := time.Parse(time.RFC3339, text)
	return a.Compare(b), first == nil && second == nil
}

// byNumber compares two values as durations if both are texts of durations, else as quantities or numbers if both are.
func byNumber(key, v any) (c int, ok bool) {
	if k, ok := durationText(key); ok {
		if d, ok := durationText(v); ok {
			return cmp.Compare(k, d), true
		}
	}
	if k, ok := key.(float64); ok {
		if f, ok := v.(float64); ok {
			return cmp.Compare(k, f), true
		}
	}
	k, isKey := quantity(key)
	q, isValue := quantity(v)
	if !isKey || !isValue {
		return 0, false
	}
	return k.Cmp(q), true
}

func duration(v any) (time.Duration, bool) {
	if f, ok := v.(float64); ok {
		d := time.Duration(f * float64(time.Second))
		return d, d.Seconds()-f < 1 && f-d.Seconds() < 1 // not too large
	}
	return durationText(v)
}

func durationText(v any) (time.Duration, bool) {
	text, ok := v.(string)
	if !ok || len(text) > maxQuantity {
		return 0, false
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}

// maxQuantity bounds the texts of quantities and durations. One with a large exponent takes much memory to be compared.
const maxQuantity = 32

func quantity(v any) (resource.Quantity, bool) {
	text, ok := v.(string)
	if f, isNumber := v.(float64); isNumber {
		text, ok = asText(f), true
	}
	exponent := strings.IndexAny(text, "eE")
	if !ok || text == "" || len(text) > maxQuantity || exponent >= 0 && len(text)-exponent > len("e+99") {
		return resource.Quantity{}, false
	}
	q, err := resource.ParseQuantity(text)
	return q, err == nil
}

func asText(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}
