package condition

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// Compiled conditions can be evaluated. They are immutable. The zero value is met by every document.
type Compiled struct {
	blocks  []block
	program *program // nil if there is none
}

type block struct{ all, any []condition }

type condition struct {
	text       requirement.Condition
	key, value operand
	literal    value // of value, if it has no expression
	operator   operator
}

// An operand is a JSON value whose texts may contain expressions.
type operand struct {
	literal any
	parts   []part // of a text with expressions; nil for any other value
}

// A part of a text is an expression, or a text before or after one.
type part struct {
	text string
	*expression
}

// Compile returns the conditions of a statement, or an error for each one that cannot be evaluated, which names its
// place in the file of the policy.
func Compile(s *requirement.Statement) (*Compiled, field.ErrorList) {
	return compile(s.Conditions, field.NewPath(s.At), nil)
}

// CompileValidation is Compile for conditions on what was collected about an image, or on a pod.
func CompileValidation(v *requirement.Validation) (*Compiled, field.ErrorList) {
	if v.Program != nil {
		p, errs := compileProgram(v.Program)
		if errs != nil {
			return nil, errs
		}
		return &Compiled{program: p}, nil
	}
	c, errs := compile(v.Conditions, nil, v.Reads)
	seen := map[string]bool{} // a condition can be there several times; see requirement.Conditions.Opposite
	return c, slices.DeleteFunc(errs, func(e *field.Error) bool {
		repeated := seen[e.Error()]
		seen[e.Error()] = true
		return repeated
	})
}

// compile compiles conditions, which may name all variables if known is nil.
func compile(list []requirement.Conditions, place *field.Path, known []string) (*Compiled, field.ErrorList) {
	c := &Compiled{}
	var errs field.ErrorList
	compile := func(list []requirement.Condition, at *field.Path, together bool) (all []condition) {
		for i, text := range list {
			at := at.Index(i)
			if text.At != "" {
				at = field.NewPath(text.At)
			}
			o, ok := operators[text.Operator]
			if !ok {
				errs = append(errs, field.NotSupported(at.Child("operator"), text.Operator, Operators()))
				continue
			}
			key, err := compileOperand(text.Key)
			if err != nil {
				errs = append(errs, field.Invalid(at.Child("key"), text.Key, err.Error()))
			}
			value, invalid := compileOperand(text.Value)
			if invalid == nil && value.parts == nil {
				_, isText := durationText(value.literal)
				invalid = o.check(value.literal)
				if (o.grows || o.shrinks) && key.isTimeSince() && !isText && !strings.HasPrefix(text.Operator, "Duration") {
					invalid = errors.New("must be a duration, as in 24h")
				}
			}
			if invalid != nil {
				errs = append(errs, field.Invalid(at.Child("value"), text.Value, invalid.Error()))
			}
			if err == nil && key.parts == nil {
				errs = append(errs, field.Invalid(at.Child("key"), text.Key,
					"must contain an expression in {{ }}; without one the document does not decide"))
			}
			if err := cmp.Or(key.variables(known), value.variables(known)); err != nil {
				errs = append(errs, field.Invalid(at.Child("key"), text.Key, err.Error()))
			}
			compiled := condition{text: text, key: key, value: value, operator: o}
			if value.parts == nil {
				compiled.literal = newValue(value.literal)
			}
			if together && slices.ContainsFunc(all, compiled.contradicts) {
				errs = append(errs, field.Invalid(at.Child("value"), text.Value, "is another one than that of a condition on the "+
					"same key, so that nothing meets both"))
			}
			all = append(all, compiled)
		}
		return all
	}
	conditions := 0
	for i, b := range list {
		at := place.Index(i)
		if conditions += len(b.All) + len(b.Any); conditions > maxConditions {
			return nil, append(errs, field.TooMany(at, conditions, maxConditions))
		}
		if len(b.All)+len(b.Any) == 0 {
			errs = append(errs, field.Required(at, "must have all or any, with at least one condition"))
		}
		c.blocks = append(c.blocks,
			block{all: compile(b.All, at.Child("all"), true), any: compile(b.Any, at.Child("any"), false)})
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return c, nil
}

func compileOperand(v any) (operand, error) {
	text, ok := v.(string)
	if !ok {
		if containsExpression(v) {
			return operand{}, fmt.Errorf("expressions inside of lists and objects are not supported")
		}
		return operand{literal: v}, nil
	}
	o := operand{literal: v}
	for rest := text; ; {
		before, after, found := strings.Cut(rest, "{{")
		if before != "" {
			o.parts = append(o.parts, part{text: before})
		}
		if !found {
			break
		}
		inside, behind, closed := strings.Cut(after, "}}")
		if !closed {
			return operand{}, fmt.Errorf("{{ has no }}")
		}
		if len(o.parts) > maxParts {
			return operand{}, fmt.Errorf("a text has more than %d parts", maxParts)
		}
		e, err := compileExpression(strings.TrimSpace(inside))
		if err != nil {
			return operand{}, err
		}
		o.parts = append(o.parts, part{expression: e})
		rest = behind
	}
	if !slices.ContainsFunc(o.parts, func(p part) bool { return p.expression != nil }) {
		o.parts = nil
	}
	return o, nil
}

func containsExpression(v any) bool {
	text, err := json.Marshal(v)
	return err != nil || strings.Contains(string(text), "{{")
}

// single returns the expression of a text that is nothing else.
func (o operand) single() *expression {
	if len(o.parts) == 1 {
		return o.parts[0].expression
	}
	return nil
}

// isTimeSince reports whether the operand is the time since another one.
func (o operand) isTimeSince() bool {
	e := o.single()
	return e != nil && isCall(e.node, timeSince)
}

func (o operand) readsClock() bool {
	return slices.ContainsFunc(o.parts, func(p part) bool { return p.expression != nil && readsClock(p.node) })
}

// evaluate returns the value; nil if an expression has none.
func (o operand) evaluate(data any, now time.Time) (any, error) {
	if o.parts == nil {
		return o.literal, nil
	}
	if e := o.single(); e != nil {
		return e.evaluate(data, now)
	}
	var all strings.Builder
	for _, p := range o.parts {
		if p.expression == nil {
			all.WriteString(p.text)
			continue
		}
		v, err := p.evaluate(data, now)
		switch {
		case v == nil || err != nil:
			return nil, err
		case !isScalar(v) || all.Len() > maxText:
			return nil, errors.New("a part of a text is no text, number or boolean, or the text is too long")
		}
		all.WriteString(asText(v))
	}
	return all.String(), nil
}

// A Result says whether a document meets conditions.
type Result struct {
	Met bool
	// Until is the first time when conditions that are met need no longer be; the zero time if they are for ever.
	Until time.Time
	// Open says that a time may come before Until when they are not met, and that it is not known.
	Open bool
	// Why names the first condition that is not met, with its message and what was found. What was seen comes before
	// the condition, because messages are cut.
	Why string
	// Lacks is, of a program, what the validation that failed has asked for and was not found.
	Lacks []Lack
	// Annotations are, of a program, the audit annotations of the pod.
	Annotations map[string]string
}

// A Lack is a signature of an attestor, or its attestation, that was not found.
type Lack struct{ Attestor, Attestation string }

// Evaluate compares a document, as encoding/json decodes it, at a time. The error is that of ctx.
func (c *Compiled) Evaluate(ctx context.Context, document any, now time.Time) (Result, error) {
	if c.program != nil {
		return c.program.pod(ctx, document)
	}
	r := Result{Met: true}
	for _, b := range c.blocks {
		all := Result{Met: true}
		for _, c := range b.all {
			all.and(c.evaluate(ctx, document, now))
		}
		r.and(all)
		if len(b.any) > 0 {
			var one Result
			for _, c := range b.any {
				one.or(c.evaluate(ctx, document, now))
			}
			r.and(one)
		}
		if err := ctx.Err(); err != nil {
			return Result{}, err
		}
		if !r.Met {
			break
		}
	}
	return r, nil
}

// Describe returns a text for each condition: whether a document meets it at a time, what was found, and what is
// wanted; of a denial, whether the condition allows or denies.
func (c *Compiled) Describe(ctx context.Context, document any, now time.Time) (texts []string) {
	for _, b := range c.blocks {
		for _, one := range slices.Concat(b.all, b.any) {
			states := [...]string{"met", "not met"}
			if one.text.Denies != "" {
				states = [...]string{"allows", "denies"}
			}
			state := states[1]
			if one.evaluate(ctx, document, now).Met {
				state = states[0]
			}
			key, _, err := one.operands(document, now)
			texts = append(texts, state+": "+one.why(key, err))
		}
	}
	return texts
}

func (r *Result) and(o Result) {
	r.Met, r.Open, r.Why = r.Met && o.Met, r.Open || o.Open, cmp.Or(r.Why, o.Why)
	if r.Until.IsZero() || !o.Until.IsZero() && o.Until.Before(r.Until) {
		r.Until = o.Until
	}
}

// Longer reports whether, of two results that are met, the first one certainly is for as long as the other.
func (r *Result) Longer(o Result) bool {
	if r.Open != o.Open {
		return o.Open
	}
	return r.Until.IsZero() || !o.Until.IsZero() && !r.Until.Before(o.Until)
}

// or keeps, of two results that are met, the one that is for longer.
func (r *Result) or(o Result) {
	if r.Met && (!o.Met || r.Longer(o)) {
		return
	}
	if !o.Met {
		o.Why = cmp.Or(r.Why, o.Why)
	}
	*r = o
}

func (c condition) evaluate(ctx context.Context, document any, now time.Time) Result {
	if ctx.Err() != nil {
		return Result{}
	}
	key, v, err := c.operands(document, now)
	r := Result{Met: err == nil && key != nil && v.any != nil && c.operator.compare(ctx, key, v)}
	switch {
	case !r.Met:
		r.Why = c.why(key, err)
	case c.key.readsClock() || c.value.readsClock():
		r.Until, r.Open = c.end(document, v.any, now)
	}
	return r
}

// contradicts reports whether two conditions want one key to equal different texts, numbers or truth values.
func (c condition) contradicts(o condition) bool {
	exact := func(c condition) (key string, ok bool) {
		key, ok = c.text.Key.(string)
		v := c.literal.any
		return key, ok && c.text.Operator == "Equals" && isScalar(v) && !strings.ContainsAny(asText(v), "*?")
	}
	a, first := exact(c)
	b, second := exact(o)
	return first && second && a == b && !equal(c.literal.any, o.literal.any, nil)
}

func (c condition) why(found any, err error) string {
	text := "nothing found"
	switch {
	case err != nil:
		text = err.Error()
	case found != nil:
		text = "found " + shown(found)
	}
	if c.text.Denies == "" {
		text += "; want " + c.text.String()
	} else {
		text += "; denied by " + c.text.String()
	}
	if c.text.Message != "" {
		text = c.text.Message + "; " + text
	}
	return text
}

// operands returns what is compared; nil for what is absent. An error is for what must not be compared.
func (c condition) operands(document any, now time.Time) (key any, v value, err error) {
	if key, err = c.key.evaluate(document, now); err != nil {
		return nil, v, err
	}
	if v = c.literal; c.value.parts != nil {
		if v.any, err = c.value.evaluate(document, now); err != nil {
			return key, v, err
		}
	}
	if len(list(key))*len(list(v.any)) > maxComparisons {
		return nil, v, errComparisons
	}
	return key, v, nil
}

// end returns when a condition that is met will not be any more. That is known of a time since a time in the document,
// which is compared with a duration.
func (c condition) end(document, value any, now time.Time) (until time.Time, open bool) {
	limit, ok := duration(value)
	if !ok || !c.key.isTimeSince() || c.value.readsClock() {
		return time.Time{}, true
	}
	e := c.key.single()
	if isText(e.node.Children[2]) || readsClock(e.node.Children[1]) {
		return time.Time{}, true
	}
	later, err := run(e.node.Children[2], document, now)
	if err != nil || later != "" { // a text of the document; what is between two times does not change
		return time.Time{}, err != nil || isCall(e.node.Children[2], timeNow)
	}
	if c.operator.grows { // it is met by any longer time too
		return time.Time{}, false
	}
	layout, err := run(e.node.Children[0], document, now)
	if !c.operator.shrinks || err != nil {
		return time.Time{}, true
	}
	from, err := run(e.node.Children[1], document, now)
	if err != nil {
		return time.Time{}, true
	}
	text, _ := layout.(string)
	t, err := parseTime(text, from, now)
	return t.Add(limit), err != nil
}

const (
	maxShown = 200      // bounds a value in messages, in bytes
	maxParts = 20       // bounds the expressions and texts of an operand
	maxText  = 64 << 10 // bounds a text that is made of parts, in bytes
)

// shown returns the beginning of a value as JSON, for messages.
func shown(v any) string {
	text := appendShown(nil, v)
	if len(text) <= maxShown {
		return string(text)
	}
	return string(text[:maxShown]) + "…"
}

// appendShown stops soon after maxShown bytes, because values can be large.
func appendShown(b []byte, v any) []byte {
	switch v := v.(type) {
	case string:
		text, _ := json.Marshal(v[:min(len(v), maxShown)]) // a text has a JSON form
		return append(b, text...)
	case []any:
		b = append(b, '[')
		for i := 0; i < len(v) && len(b) <= maxShown; i++ {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendShown(b, v[i])
		}
		return append(b, ']')
	case map[string]any:
		b = append(b, '{')
		for key, value := range v {
			if len(b) > maxShown {
				break
			}
			b = append(appendShown(append(appendShown(b, key), ':'), value), ',')
		}
		return append(bytes.TrimSuffix(b, []byte(",")), '}')
	}
	return fmt.Append(b, v)
}

// Check returns why conditions of rules cannot be evaluated: all errors, each of which begins with the name of a file.
func Check(rules []requirement.Rule) error {
	var errs []error
	seen, said := map[*requirement.Statement]bool{}, map[string]bool{}
	for i := range rules {
		report := func(invalid field.ErrorList) {
			for _, err := range invalid {
				err := fmt.Errorf("%s: %w", rules[i].File, err)
				if !said[err.Error()] { // a rule for pods and for custom resources is there twice
					errs = append(errs, err)
				}
				said[err.Error()] = true
			}
		}
		if c := rules[i].Custom; c != nil {
			report(checkPaths(c.Paths))
		}
		for _, v := range []*requirement.Validation{rules[i].Object, rules[i].Selects} {
			if v != nil {
				_, invalid := CompileValidation(v)
				report(invalid)
			}
		}
		if m := rules[i].Mutation; m != nil {
			_, invalid := CompilePatch(m)
			report(invalid)
		}
		if rules[i].Requirement == nil {
			continue
		}
		for _, s := range rules[i].Requirement.Signers() {
			if s.Image != nil {
				_, invalid := CompileValidation(s.Image)
				report(invalid)
			}
			if s.Statement == nil || seen[s.Statement] {
				continue
			}
			seen[s.Statement] = true
			_, invalid := Compile(s.Statement)
			report(invalid)
		}
	}
	return errors.Join(errs...)
}
