package restriction

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// A leaf is what all rules about one field have in common. The method check of a rule reports whether a value matches;
// a nil rule matches every value. It is small, so that it is inlined: most rules of most policies are nil.
type leaf struct {
	path  string // in the policy
	field *Field
	// allowed describes the values that match, for violations.
	allowed               string
	forbidNil, requireNil bool
	// needsState reports whether the value that takes effect is not enough for the rule.
	needsState bool
}

// checkNil compares whether the pod sets the field with what the rule wants.
func (l *leaf) checkNil(j *judgement, s admission.State) bool {
	if !l.forbidNil && !l.requireNil {
		return true
	}
	switch s {
	case admission.StateSet:
		return !l.requireNil || j.violated(l, "set")
	case admission.StateAbsent:
		return !l.forbidNil || j.violated(l, "nil")
	case admission.StateUnknown:
	}
	if l.field.at(j.From) != Exact {
		return j.unjudged(l)
	}
	return j.unknown(l)
}

// decide returns whether a field matches, if that does not depend on its value. known reports whether there is a value.
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

// A stringRule is a compiled StringRestriction.
type stringRule struct {
	leaf
	whitelist, blacklist []string
	regex                *regexp.Regexp
	// isPath is whether values are paths; the lists are clean and absolute then.
	isPath bool
}

func (r *stringRule) check(j *judgement, v admission.Value[string]) bool {
	return r == nil || r.compare(j, v)
}

func (r *stringRule) compare(j *judgement, v admission.Value[string]) bool {
	s, known := v.Effective()
	if !known || r.needsState {
		if matches, decided := r.decide(j, v.State(), known); decided {
			return matches
		}
	}
	return r.allows(s) || j.violated(&r.leaf, quote(j, s))
}

func (r *stringRule) allows(s string) bool {
	if r.isPath {
		return r.allowsPath(s)
	}
	return (r.whitelist == nil || slices.Contains(r.whitelist, s)) && !slices.Contains(r.blacklist, s) && (r.regex == nil || r.regex.MatchString(s))
}

// allowsPath is allows of a rule about a path.
func (r *stringRule) allowsPath(p string) bool {
	if r.whitelist == nil && r.blacklist == nil && r.regex == nil {
		return true
	}
	if !plainPath(p) {
		return false
	}
	p = path.Clean(p)
	if r.whitelist != nil && !slices.ContainsFunc(r.whitelist, func(folder string) bool { return within(p, folder) }) {
		return false
	}
	// A folder that contains a denied path gives access to it.
	if slices.ContainsFunc(r.blacklist, func(folder string) bool { return within(p, folder) || within(folder, p) }) {
		return false
	}
	return r.regex == nil || r.regex.MatchString(p)
}

// plainPath reports whether a path is absolute, has no .. in it, and does not lead through the folder of a process,
// whose links root and cwd are other folders of the node on every node.
func plainPath(p string) bool {
	return strings.HasPrefix(p, "/") && !slices.Contains(strings.Split(p, "/"), "..") && !throughProcess(path.Clean(p))
}

// throughProcess reports whether a clean path is below the folder of a process.
func throughProcess(p string) bool {
	rest, ok := strings.CutPrefix(p, "/proc/")
	process, _, below := strings.Cut(rest, "/")
	if _, err := strconv.ParseUint(process, 10, 64); err != nil && process != "self" && process != "thread-self" {
		return false
	}
	return ok && below
}

// within reports whether a clean path is the folder or below it.
func within(p, folder string) bool {
	rest, ok := strings.CutPrefix(p, folder)
	return ok && (rest == "" || rest[0] == '/' || folder == "/")
}

// A boolRule is a compiled BoolRestriction.
type boolRule struct {
	leaf
	require *bool
}

func (r *boolRule) check(j *judgement, v admission.Value[bool]) bool {
	return r == nil || r.compare(j, v)
}

func (r *boolRule) compare(j *judgement, v admission.Value[bool]) bool {
	b, known := v.Effective()
	if !known || r.needsState {
		if matches, decided := r.decide(j, v.State(), known); decided {
			return matches
		}
	}
	return r.require == nil || *r.require == b || j.violated(&r.leaf, strconv.FormatBool(b))
}

// A numberRule is a compiled NumericRestriction.
type numberRule struct {
	leaf
	ranges []NumericRange
}

func (r *numberRule) check(j *judgement, v admission.Value[int64]) bool {
	return r == nil || r.compare(j, v)
}

func (r *numberRule) compare(j *judgement, v admission.Value[int64]) bool {
	n, known := v.Effective()
	if !known || r.needsState {
		if matches, decided := r.decide(j, v.State(), known); decided {
			return matches
		}
	}
	return r.allows(n) || j.violatedNumber(&r.leaf, n)
}

// checkEach compares each number of a list. An empty list is nil.
func (r *numberRule) checkEach(j *judgement, v admission.Value[[]int64]) bool {
	if r == nil {
		return true
	}
	if list, ok := v.Effective(); ok && len(list) == 0 {
		v = admission.Absent[[]int64]()
	}
	list, known := v.Effective()
	if !known || r.needsState {
		if matches, decided := r.decide(j, v.State(), known); decided {
			return matches
		}
	}
	for _, n := range list {
		if !r.allows(n) {
			return j.violatedNumber(&r.leaf, n)
		}
	}
	return true
}

func (r *numberRule) allows(n int64) bool {
	return r.ranges == nil || slices.ContainsFunc(r.ranges, func(in NumericRange) bool {
		return (in.Min == nil || n >= *in.Min) && (in.Max == nil || n <= *in.Max)
	})
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

// A listRule is a compiled StringListRestriction.
type listRule struct {
	leaf
	CollectionRestriction

	values   *stringRule
	required []string
	// canonical, unless it is nil, is applied to each element of the pod before it is compared.
	canonical func(string) string
}

func (r *listRule) check(j *judgement, v admission.Value[[]string]) bool {
	return r == nil || r.compare(j, v)
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
		if !slices.ContainsFunc(list, func(have string) bool { return r.of(have) == s }) {
			return j.violated(&r.leaf, "without "+s)
		}
	}
	if r.values == nil {
		return true
	}
	for _, s := range list {
		if !r.values.allows(r.of(s)) {
			return j.violated(&r.values.leaf, quote(j, s))
		}
	}
	return true
}

func (r *listRule) of(s string) string {
	if r.canonical == nil {
		return s
	}
	return r.canonical(s)
}

// A mapRule is a compiled StringMapRestriction.
type mapRule struct {
	leaf
	CollectionRestriction

	keyBlacklist, required []string
	keyWhitelist           map[string]bool // nil: every key
	values                 []mapValueRule
}

// A mapValueRule is about the value of one key.
type mapValueRule struct {
	key string
	stringRule
}

func (r *mapRule) check(j *judgement, v admission.Value[map[string]string]) bool {
	return r == nil || r.compare(j, v)
}

func (r *mapRule) compare(j *judgement, v admission.Value[map[string]string]) bool {
	m, ok := v.Effective()
	if !ok && v.State() != admission.StateAbsent {
		return j.unknown(&r.leaf)
	}
	return r.CollectionRestriction.check(j, &r.leaf, len(m)) && r.checkKeys(j, m) && r.checkValues(j, m)
}

func (r *mapRule) checkKeys(j *judgement, m map[string]string) bool {
	for _, key := range r.required {
		if _, ok := m[key]; !ok {
			return j.violated(&r.leaf, "without the key "+key)
		}
	}
	for _, key := range r.keyBlacklist {
		if _, ok := m[key]; ok {
			return j.violated(&r.leaf, "the key "+key)
		}
	}
	if r.keyWhitelist == nil {
		return true
	}
	for key := range m { // ends after at most as many keys as the list has
		if !r.keyWhitelist[key] {
			return j.violated(&r.leaf, quote(j, key))
		}
	}
	return true
}

func (r *mapRule) checkValues(j *judgement, m map[string]string) bool {
	for i := range r.values {
		value := &r.values[i]
		v := admission.Absent[string]()
		if s, ok := m[value.key]; ok {
			v = admission.Set(s)
		}
		if !value.check(j, v) {
			return false
		}
	}
	return true
}

// maxShown bounds the part of a value that a violation shows, because a tenant chooses it.
const maxShown = 128

// quote returns a value for a violation, or "" if the judgement reports none.
func quote(j *judgement, s string) string {
	if j.report == nil {
		return ""
	}
	return shown(s)
}

// shown returns a string of a tenant for a message: quoted, and shortened.
func shown(s string) string {
	if len(s) > maxShown {
		return strconv.Quote(s[:maxShown]) + "…"
	}
	return strconv.Quote(s)
}
