package restriction

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// A check compares values of a view. Policies of one mode with the same restriction at the same path share a check. Its
// answer depends on the view alone, so a judgement compares each view once. A nil check matches every view.
type check struct {
	field   *Field
	compare func(*judgement) bool
	number  int // the index of its answers, among the checks of the type of view
}

type answer uint8

const (
	notCompared answer = iota
	matched
	different
)

func (c *check) matches(j *judgement) bool {
	if c == nil {
		return true
	}
	if j.report != nil {
		return c.compare(j)
	}
	a := &j.answers[c.number]
	if *a == notCompared {
		*a = different
		if c.compare(j) {
			*a = matched
		}
	}
	return *a == matched
}

func value[T any](r *valueRule[T]) func(*judgement) bool {
	return func(j *judgement) bool { return r.compare(j, valueIn[T](j, r.field)) }
}

// valueIn returns the value of a field, which is unknown if the view has it with another type.
func valueIn[T any](j *judgement, f *Field) admission.Value[T] {
	v, ok := j.values[f.index].(*admission.Value[T])
	if !ok {
		return admission.Value[T]{}
	}
	return *v
}

type leaf struct {
	path                  string // in the policy
	field                 *Field
	allowed               string // describes the values that match, for violations
	forbidNil, requireNil bool
	needsState            bool // the value that takes effect is not enough for the rule
}

func (l *leaf) checkNil(j *judgement, s admission.State) bool {
	switch {
	case !l.forbidNil && !l.requireNil:
		return true
	case s == admission.StateSet:
		return !l.requireNil || j.violated(l, "set")
	case s == admission.StateAbsent:
		return !l.forbidNil || j.violated(l, "nil")
	case l.field.at(j.From) != Exact:
		return j.unjudged(l)
	}
	return j.unknown(l)
}

// decide returns whether a field matches, if that does not depend on its value.
func (l *leaf) decide(j *judgement, s admission.State, known bool) (matches, decided bool) {
	switch {
	case !l.checkNil(j, s):
		return false, true
	case known:
		return false, false
	case s == admission.StateAbsent: // nil
		return true, true
	default:
		return j.unknown(l), true
	}
}

// A valueRule is a compiled restriction of a string, a number or a boolean. A nil rule matches every value.
type valueRule[T any] struct {
	leaf
	allows func(T) bool // nil: every value
}

func (r *valueRule[T]) compare(j *judgement, v admission.Value[T]) bool {
	if r == nil {
		return true
	}
	value, known := v.Effective()
	return r.compareEach(j, v.State(), known, value)
}

func (r *valueRule[T]) compareEach(j *judgement, s admission.State, known bool, values ...T) bool {
	if !known || r.needsState {
		if matches, decided := r.decide(j, s, known); decided {
			return matches
		}
	}
	for _, v := range values {
		if r.allows != nil && !r.allows(v) {
			return j.violated(&r.leaf, quote(j, v))
		}
	}
	return true
}

// compareGroups compares each group of a list. An empty list is nil.
func compareGroups(j *judgement, r *valueRule[int64], v admission.Value[[]int64]) bool {
	switch list, known := v.Effective(); {
	case r == nil:
		return true
	case known && len(list) == 0:
		return r.compareEach(j, admission.StateAbsent, false)
	default:
		return r.compareEach(j, v.State(), known, list...)
	}
}

// allowsPath returns whether a path is allowed. The lists are clean and absolute.
func allowsPath(whitelist, blacklist []string, regex *regexp.Regexp) func(string) bool {
	if whitelist == nil && blacklist == nil && regex == nil {
		return nil
	}
	return func(p string) bool {
		clean := path.Clean(p)
		in := func(folder string) bool { return within(clean, folder) }
		contains := func(folder string) bool { return within(folder, clean) } // which gives access to it
		return plainPath(p) && (whitelist == nil || slices.ContainsFunc(whitelist, in)) &&
			!slices.ContainsFunc(blacklist, in) && !slices.ContainsFunc(blacklist, contains) &&
			(regex == nil || regex.MatchString(clean))
	}
}

// plainPath reports whether a path is absolute, has no .. in it, and does not lead through the folder of a process,
// whose links root and cwd are other folders of the node on every node.
func plainPath(p string) bool {
	return strings.HasPrefix(p, "/") && !slices.Contains(strings.Split(p, "/"), "..") && !throughProcess(path.Clean(p))
}

func throughProcess(p string) bool {
	rest, ok := strings.CutPrefix(p, "/proc/")
	process, _, below := strings.Cut(rest, "/")
	if _, err := strconv.ParseUint(process, 10, 64); err != nil && process != "self" && process != "thread-self" {
		return false
	}
	return ok && below
}

func within(p, folder string) bool {
	rest, ok := strings.CutPrefix(p, folder)
	return ok && (rest == "" || rest[0] == '/' || folder == "/")
}

func (c CollectionRestriction) check(j *judgement, l *leaf, n int) bool {
	switch {
	case c.ForbidEmpty && n == 0:
		return j.violated(l, "empty")
	case c.RequireEmpty && n > 0:
		return j.violated(l, "not empty")
	default:
		return true
	}
}

type listRule struct {
	leaf
	CollectionRestriction
	values   *valueRule[string]
	required []string
	// canonical is applied to each element of the pod before it is compared.
	canonical func(string) string
}

func (r *listRule) compare(j *judgement, v admission.Value[[]string]) bool {
	list, ok := v.Effective()
	if !ok && v.State() != admission.StateAbsent {
		return j.unknown(&r.leaf)
	}
	if !r.CollectionRestriction.check(j, &r.leaf, len(list)) {
		return false
	}
	for _, s := range r.required {
		if !slices.ContainsFunc(list, func(have string) bool { return r.canonical(have) == s }) {
			return j.violated(&r.leaf, "without "+s)
		}
	}
	for _, s := range list {
		if r.values != nil && !r.values.allows(r.canonical(s)) {
			return j.violated(&r.values.leaf, quote(j, s))
		}
	}
	return true
}

type mapRule struct {
	leaf
	*stringMapRestriction
	values []mapValueRule
}

type mapValueRule struct {
	key string
	*valueRule[string]
}

func (r *mapRule) compare(j *judgement, v admission.Value[map[string]string]) bool {
	m, ok := v.Effective()
	if !ok && v.State() != admission.StateAbsent {
		return j.unknown(&r.leaf)
	}
	if !r.CollectionRestriction.check(j, &r.leaf, len(m)) {
		return false
	}
	for _, key := range r.RequiredKeys {
		if _, ok := m[key]; !ok {
			return j.violated(&r.leaf, "without the key "+key)
		}
	}
	for _, key := range r.KeyBlacklist {
		if _, ok := m[key]; ok {
			return j.violated(&r.leaf, "the key "+key)
		}
	}
	if r.KeyWhitelist != nil {
		for key := range m { // ends after at most as many keys as the list has
			if !slices.Contains(r.KeyWhitelist, key) {
				return j.violated(&r.leaf, quote(j, key))
			}
		}
	}
	for _, value := range r.values {
		v := admission.Absent[string]()
		if s, ok := m[value.key]; ok {
			v = admission.Set(s)
		}
		if !value.valueRule.compare(j, v) {
			return false
		}
	}
	return true
}

// maxShown bounds the part of a value that a violation shows, because a tenant chooses it.
const maxShown = 128

// quote returns a value for a violation, or "" if the judgement reports none.
func quote[T any](j *judgement, v T) string {
	if j.report == nil {
		return ""
	}
	if s, ok := any(v).(string); ok {
		return shown(s)
	}
	return fmt.Sprint(v)
}

func shown(s string) string {
	if len(s) > maxShown {
		return strconv.Quote(s[:maxShown]) + "…"
	}
	return strconv.Quote(s)
}
