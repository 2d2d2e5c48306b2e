package restriction

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/admission"
)

func compile(p *PodRestriction, known *interned) (*policy, field.ErrorList) {
	c := &compiler{known: known, out: &policy{name: p.Metadata.Name, restricts: map[string]bool{}}}
	c.header(p)
	if p.Binding != nil {
		c.binding(field.NewPath("binding"), p.Binding)
	}
	at, r := place{"spec", "spec"}, &c.out.rule
	r.values = c.all(c.values(at, &p.Spec)...)
	at, s := at.child("spec"), cmp.Or(p.Spec.Spec, &podSpecRestriction{})
	r.volumes = list(c, at, "volumes", s.Volumes, c.volume)
	var volumes, mounts []*check
	for _, rule := range r.volumes {
		volumes, mounts = append(volumes, rule.volume), append(mounts, rule.mount)
	}
	r.volume, r.mount = c.any(volumes...), c.any(mounts...)
	r.containers = c.any(list(c, at, "containers", s.Containers, c.container)...)
	r.initContainers = c.any(list(c, at, "initContainers", s.InitContainers, c.container)...)
	if s.InitContainers == nil {
		r.initContainers = r.containers
	}
	return c.out, c.errs
}

type compiler struct {
	known *interned
	errs  field.ErrorList
	out   *policy
}

// interned are the checks of all policies of a Set, by their texts.
type interned struct {
	sync.Mutex
	checks map[string]*check
	counts map[reflect.Type]int // by the type of the view
}

func newInterned() *interned {
	return &interned{checks: map[string]*check{}, counts: map[reflect.Type]int{}}
}

func (n *interned) check(text string, f *Field, compare func(*judgement) bool) *check {
	n.Lock()
	defer n.Unlock()
	if n.checks[text] == nil {
		n.checks[text] = &check{f, compare, n.counts[f.of]}
		n.counts[f.of]++
	}
	return n.checks[text]
}

func (c *compiler) check(at place, restriction any, compare func(*judgement) bool) *check {
	text, err := json.Marshal(restriction)
	if err != nil || bytes.Contains(text, []byte(`\ufffd`)) { // which stands for all that is not UTF-8
		text = []byte(c.out.name) // the check of no other policy
	}
	// Accept is in the text because fields that are not judged match Drop policies only.
	return c.known.check(fmt.Sprintf("%s %s %v", text, at.path, c.out.accept), fieldAt[at.field], compare)
}

// all returns the check that matches if all do, in the order of the table of fields.
func (c *compiler) all(checks ...*check) *check {
	slices.SortStableFunc(checks, func(a, b *check) int { return a.field.number - b.field.number })
	return c.join("all", allOf, checks)
}

// any returns the check that matches if one does, or if there is none.
func (c *compiler) any(checks ...*check) *check {
	if slices.Contains(checks, nil) {
		return nil
	}
	return c.join("any", anyOf, checks)
}

func (c *compiler) join(name string, compare func(*judgement, []*check) bool, checks []*check) *check {
	if len(checks) < 2 {
		return append(checks, nil)[0]
	}
	name += " " + checks[0].field.of.Name()
	for _, one := range checks {
		name += " " + strconv.Itoa(one.number)
	}
	return c.known.check(name, checks[0].field, func(j *judgement) bool { return compare(j, checks) })
}

// A place is a position in a policy: its path, and the path of its Field, which has no indices.
type place struct{ path, field string }

func (p place) child(name string) place { return place{p.path + "." + name, p.field + "." + name} }

func (p place) index(i int) place {
	return place{p.path + "[" + strconv.Itoa(i) + "]", p.field + "[]"}
}

func (p place) part(name string) place { return place{p.path + "." + name, p.field} }

func (p place) as(field string) place { return place{p.path, field} }

// of returns the path for errors about parts of the place.
func (p place) of(parts ...string) *field.Path { return field.NewPath(p.path, parts...) }

func (c *compiler) invalid(p *field.Path, value any, detail string) {
	c.errs = append(c.errs, field.Invalid(p, value, detail))
}

func (c *compiler) each(p *field.Path, value string, details []string) {
	for _, detail := range details {
		c.invalid(p, value, detail)
	}
}

func (c *compiler) leaf(at place, r PointerRestriction, allowed string) leaf {
	f := fieldAt[at.field]
	if f == nil {
		panic("restriction: no entry in the table of fields for " + at.field)
	}
	c.out.restricts[at.field] = true
	if r.ForbidNil && r.RequireNil {
		c.invalid(at.of(), "forbidNil, requireNil", "both are true, so no pod matches; set at most one")
	}
	switch {
	case r.RequireNil:
		allowed = "nil"
	case r.ForbidNil:
		allowed += ", not nil"
	}
	return leaf{
		path: at.path, field: f, allowed: strings.TrimPrefix(allowed, ", "),
		forbidNil: r.ForbidNil, requireNil: r.RequireNil, needsState: r.ForbidNil || r.RequireNil,
	}
}

func (c *compiler) keep(l *leaf) { c.out.leaves = append(c.out.leaves, l) }

func (c *compiler) header(p *PodRestriction) {
	if p.APIVersion != APIVersion {
		c.errs = append(c.errs, field.NotSupported(field.NewPath("apiVersion"), p.APIVersion,
			[]string{APIVersion, ProposedAPIVersion}))
	}
	if p.Kind != Kind {
		detail := "must be " + Kind
		if strictyaml.Nearest(p.Kind, []string{Kind}) != "" {
			detail = "unknown kind; did you mean " + Kind + "?"
		}
		c.invalid(field.NewPath("kind"), p.Kind, detail)
	}
	c.each(field.NewPath("metadata", "name"), p.Metadata.Name, validation.IsDNS1123Subdomain(p.Metadata.Name))
	mode, ok := p.Metadata.Annotations[ModeAnnotation]
	if ok && mode != ModeAudit && mode != ModeEnforce {
		at := field.NewPath("metadata", "annotations").Key(ModeAnnotation)
		c.errs = append(c.errs, field.NotSupported(at, mode, []string{ModeAudit, ModeEnforce}))
	}
	c.out.audit = mode == ModeAudit
}

func (c *compiler) values(at place, restrictions any) (checks []*check) {
	for f, in := range reflect.ValueOf(restrictions).Elem().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || in.IsZero() {
			continue
		}
		at := at.child(name)
		switch r := in.Interface().(type) {
		case *stringRestriction:
			rule := c.str(at, r, same)
			compare := value(rule)
			if at.field == pathName {
				compare = func(j *judgement) bool { return rule.compare(j, nameOf(j.pod)) }
			}
			checks = append(checks, c.check(at, r, compare))
		case *boolRestriction:
			checks = append(checks, c.check(at, r, value(c.boolean(at, r))))
		case *numericRestriction:
			if fieldAt[at.field] == nil || fieldAt[at.field].index >= 0 { // not one of the groups
				checks = append(checks, c.check(at, r, value(c.number(at, r))))
			}
		case *stringMapRestriction:
			checks = append(checks, c.stringMap(at, r))
		case *capabilitiesRestriction:
			checks = append(checks, c.capabilities(at, r)...)
		case *seLinuxOptionsRestriction:
			checks = append(checks, c.seLinux(at, r))
		case *podSecurityContextRestriction:
			checks = append(checks, c.groups(at, r)...)
			checks = append(checks, c.values(at, r)...)
		default:
			if in.Kind() == reflect.Pointer {
				checks = append(checks, c.values(at, r)...)
			}
		}
	}
	return checks
}

func list[T, R any](c *compiler, at place, name string, entries []T, compile func(place, *T) R) []R {
	if entries == nil {
		return nil
	}
	notEmpty(c, at, name, entries)
	at = at.child(name)
	rules := make([]R, 0, len(entries))
	for i := range entries {
		rules = append(rules, compile(at.index(i), &entries[i]))
	}
	return rules
}

func notEmpty[T any](c *compiler, at place, name string, list []T) {
	if list != nil && len(list) == 0 {
		c.invalid(at.of(name), "[]", "must have at least one entry; leave the field out to allow everything")
	}
}

func (c *compiler) container(at place, r *containerRestriction) *check {
	at = at.as(pathContainers)
	l := c.leaf(at, PointerRestriction{}, "")
	c.keep(&l)
	var checks []*check
	if r.Image != nil {
		images := at.child("image")
		unknown := c.leaf(images.as(pathImages), PointerRestriction{}, "an image name in the list")
		one := c.any(list(c, at, "image", r.Image, c.image)...)
		checks = append(checks, c.check(images.as(pathImages), r.Image, func(j *judgement) bool {
			if !j.subject.image.known {
				return j.unknown(&unknown)
			}
			return one.matches(j)
		}))
	}
	return c.all(append(checks, c.values(at, r)...)...)
}

func (c *compiler) capabilities(at place, r *capabilitiesRestriction) []*check {
	l := c.leaf(at, r.PointerRestriction, "capabilities")
	c.keep(&l)
	checks := []*check{c.check(at, r.PointerRestriction, func(j *judgement) bool {
		add, drop := stateOf(j.subject.container.CapabilitiesAdd), stateOf(j.subject.container.CapabilitiesDrop)
		state := admission.StateAbsent
		switch {
		case add == admission.StateSet || drop == admission.StateSet:
			state = admission.StateSet
		case add == admission.StateUnknown || drop == admission.StateUnknown:
			state = admission.StateUnknown
		}
		return l.checkNil(j, state)
	})}
	if at := at.child("add"); r.Add != nil {
		add := c.stringList(at, r.Add, addedCapability)
		if r.Add.Values != nil && r.Add.Values.Blacklist != nil {
			allows := add.values.allows
			add.values.allows = func(name string) bool { return name != allCapabilities && allows(name) }
		}
		checks = append(checks, c.check(at, r.Add, func(j *judgement) bool {
			return add.compare(j, j.subject.container.CapabilitiesAdd)
		}))
	}
	if at := at.child("drop"); r.Drop != nil {
		drop := c.stringList(at, r.Drop, strings.ToUpper)
		compare := func(j *judgement) bool { return drop.compare(j, j.subject.container.CapabilitiesDrop) }
		checks = append(checks, c.check(at, r.Drop, compare))
	}
	return checks
}

// allCapabilities in a list to add adds those that a policy denies.
const allCapabilities = "ALL"

// addedCapability returns the name that runtimes read in a capability to add. Some add the prefix CAP_ to every name,
// others only where it is missing, so a name with the prefix may add the capability.
func addedCapability(name string) string {
	return strings.TrimPrefix(strings.ToUpper(name), "CAP_")
}

func (c *compiler) seLinux(at place, r *seLinuxOptionsRestriction) *check {
	l := c.leaf(at, r.PointerRestriction, "SELinux options")
	c.keep(&l)
	user, role := c.str(at.part("user"), r.User, same), c.str(at.part("role"), r.Role, same)
	kind, level := c.str(at.part("type"), r.Type, same), c.str(at.part("level"), r.Level, same)
	return c.check(at, r, func(j *judgement) bool {
		v := j.subject.container.SELinux
		o, known := v.Effective()
		known = known || v.State() == admission.StateAbsent
		ok := l.checkNil(j, v.State())
		ok = user.compare(j, option(o.User, known)) && ok
		ok = role.compare(j, option(o.Role, known)) && ok
		ok = kind.compare(j, option(o.Type, known)) && ok
		return level.compare(j, option(o.Level, known)) && ok
	})
}

// groups adds the check of supplementalGroups and fsGroup, which need each other.
func (c *compiler) groups(at place, r *podSecurityContextRestriction) []*check {
	if r.SupplementalGroups == nil && r.FSGroup == nil {
		return nil
	}
	var supplemental, fs *valueRule[int64]
	if r.SupplementalGroups != nil {
		supplemental = c.number(at.child("supplementalGroups"), r.SupplementalGroups)
	}
	if r.FSGroup != nil {
		fs = c.number(at.child("fsGroup"), r.FSGroup)
	}
	return []*check{c.check(at.child("fsGroup"), r, func(j *judgement) bool { return checkGroups(j, supplemental, fs) })}
}

func (c *compiler) image(at place, r *imageRestriction) *check {
	registry := c.str(at.part("registry"), r.Registry, registryOf)
	image, tag := c.str(at.part("image"), r.Image, same), c.str(at.part("tag"), r.Tag, same)
	return c.check(at, r, func(j *judgement) bool {
		name := &j.subject.image
		ok := registry.compare(j, name.registry)
		ok = image.compare(j, name.name) && ok
		return tag.compare(j, name.tag) && ok
	})
}

func (c *compiler) volume(at place, r *volumeRestriction) *volumeRule {
	c.collection(at, r.CollectionRestriction, "", nil)
	allowed := cmp.Or(r.describe(), "volumes that match the list")
	out := &volumeRule{leaf: c.leaf(at, PointerRestriction{}, allowed), CollectionRestriction: r.CollectionRestriction}
	if r.ForbidEmpty {
		c.keep(&leaf{path: at.path, field: out.field, needsState: true})
	}
	volume := *r
	volume.Mount = nil
	checks := c.values(at, &volume)
	if r.RequireEmpty {
		checks = append(checks, c.check(at, r.CollectionRestriction, func(j *judgement) bool {
			return j.violated(&out.leaf, "not empty")
		}))
	}
	out.volume = c.all(slices.Clone(checks)...)
	if r.Mount != nil {
		checks = append(checks, c.values(at.child("mount"), r.Mount)...)
	}
	out.mount = c.all(checks...)
	return out
}

func same(s string) string { return s }

func (c *compiler) str(at place, r *stringRestriction, canonical func(string) string) *valueRule[string] {
	if r == nil {
		return nil
	}
	rule := c.stringRule(at, r, canonical)
	c.keep(&rule.leaf)
	return rule
}

func (c *compiler) stringRule(at place, r *stringRestriction, canonical func(string) string) *valueRule[string] {
	notEmpty(c, at, "whitelist", r.Whitelist)
	notEmpty(c, at, "blacklist", r.Blacklist)
	rule := &valueRule[string]{leaf: c.leaf(at, r.PointerRestriction, describe(r))}
	regex := c.regex(at, r.Regex)
	if at.field == pathVolumes+".hostPath.path" {
		rule.allows = allowsPath(c.cleanPaths(at, "whitelist", r.Whitelist), c.cleanPaths(at, "blacklist", r.Blacklist),
			regex)
		return rule
	}
	whitelist, blacklist := mapped(r.Whitelist, canonical), mapped(r.Blacklist, canonical)
	rule.allows = func(s string) bool {
		return (whitelist == nil || slices.Contains(whitelist, s)) && !slices.Contains(blacklist, s) &&
			(regex == nil || regex.MatchString(s))
	}
	return rule
}

func (c *compiler) regex(at place, expression string) *regexp.Regexp {
	if expression == "" {
		return nil
	}
	_, err := regexp.Compile(expression) // alone, because a) | (b is valid in parentheses
	whole, wholeErr := regexp.Compile(`\A(?:` + expression + `)\z`)
	if err := cmp.Or(err, wholeErr); err != nil {
		c.invalid(at.of("regex"), expression, fmt.Sprintf("must be an RE2 expression: %v", err))
	}
	return whole
}

func (c *compiler) cleanPaths(at place, name string, list []string) []string {
	for i, s := range list {
		if !plainPath(s) {
			c.invalid(at.of(name).Index(i), s,
				"must be an absolute path without .., and not below the folder of a process in /proc")
		}
	}
	return mapped(list, path.Clean)
}

func (c *compiler) boolean(at place, r *boolRestriction) *valueRule[bool] {
	rule := &valueRule[bool]{}
	allowed := "true or false"
	if r.Require != nil {
		allowed = strconv.FormatBool(*r.Require)
		rule.allows = func(b bool) bool { return b == *r.Require }
	}
	rule.leaf = c.leaf(at, r.PointerRestriction, allowed)
	c.keep(&rule.leaf)
	return rule
}

func (c *compiler) number(at place, r *numericRestriction) *valueRule[int64] {
	notEmpty(c, at, "ranges", r.Ranges)
	for i, in := range r.Ranges {
		if in.Min != nil && in.Max != nil && *in.Min > *in.Max {
			c.invalid(at.of("ranges").Index(i), fmt.Sprintf("min: %d, max: %d", *in.Min, *in.Max), "min must be at most max")
		}
	}
	rule := &valueRule[int64]{leaf: c.leaf(at, r.PointerRestriction, describeRanges(r.Ranges))}
	if r.Ranges != nil {
		rule.allows = func(n int64) bool {
			return slices.ContainsFunc(r.Ranges, func(in numericRange) bool {
				return (in.Min == nil || n >= *in.Min) && (in.Max == nil || n <= *in.Max)
			})
		}
	}
	c.keep(&rule.leaf)
	return rule
}

func (c *compiler) collection(at place, r CollectionRestriction, name string, required []string) {
	notEmpty(c, at, name, required)
	if r.RequireEmpty && len(required) > 0 {
		c.invalid(at.of(name), required, "must be absent with requireEmpty, or no pod matches")
	}
	if r.ForbidEmpty && r.RequireEmpty {
		c.invalid(at.of(), "forbidEmpty, requireEmpty", "both are true, so no pod matches; set at most one")
	}
}

func (c *compiler) stringList(at place, r *stringListRestriction, canonical func(string) string) *listRule {
	c.collection(at, r.CollectionRestriction, "requiredValues", r.RequiredValues)
	allowed := r.describe()
	for _, s := range r.RequiredValues {
		allowed = strings.TrimPrefix(allowed+", with "+s, ", ")
	}
	required := mapped(r.RequiredValues, canonical)
	rule := &listRule{c.leaf(at, PointerRestriction{}, allowed), r.CollectionRestriction, nil, required, canonical}
	if r.Values != nil {
		rule.values = c.stringRule(at.part("values"), r.Values, canonical)
	}
	c.keep(&rule.leaf)
	return rule
}

func mapped(list []string, f func(string) string) []string {
	var all []string
	for _, s := range list {
		all = append(all, f(s))
	}
	return all
}

func (c *compiler) stringMap(at place, r *stringMapRestriction) *check {
	c.collection(at, r.CollectionRestriction, "requiredKeys", r.RequiredKeys)
	notEmpty(c, at, "keyWhitelist", r.KeyWhitelist)
	notEmpty(c, at, "keyBlacklist", r.KeyBlacklist)
	rule := &mapRule{leaf: c.leaf(at, PointerRestriction{}, describeKeys(r)), stringMapRestriction: r}
	for _, key := range slices.Sorted(maps.Keys(r.Values)) {
		value := r.Values[key]
		in := place{at.of("values").Key(key).String(), at.field}
		rule.values = append(rule.values, mapValueRule{key, c.stringRule(in, &value, same)})
	}
	c.keep(&rule.leaf)
	return c.check(at, r, func(j *judgement) bool {
		return rule.compare(j, valueIn[map[string]string](j, rule.field))
	})
}

func describe(r *stringRestriction) string {
	parts := slices.Concat(listed("", r.Whitelist), listed("not ", r.Blacklist))
	if r.Regex != "" {
		parts = append(parts, "matching "+r.Regex)
	}
	if parts == nil {
		return "any value"
	}
	return strings.Join(parts, "; ")
}

func listed(text string, list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return []string{text + strings.Join(list, ", ")}
}

func describeRanges(ranges []numericRange) string {
	var parts []string
	for _, r := range ranges {
		switch {
		case r.Min != nil && r.Max != nil && *r.Min == *r.Max:
			parts = append(parts, strconv.FormatInt(*r.Min, 10))
		case r.Min != nil && r.Max != nil:
			parts = append(parts, fmt.Sprintf("%d to %d", *r.Min, *r.Max))
		case r.Min != nil:
			parts = append(parts, fmt.Sprintf("at least %d", *r.Min))
		case r.Max != nil:
			parts = append(parts, fmt.Sprintf("at most %d", *r.Max))
		default:
			parts = append(parts, "any number")
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "any number")
}

func describeKeys(r *stringMapRestriction) string {
	text := strings.Join(slices.Concat([]string{r.describe()}, listed("with the keys ", r.RequiredKeys),
		listed("only the keys ", r.KeyWhitelist), listed("without the keys ", r.KeyBlacklist)), "; ")
	return cmp.Or(strings.TrimPrefix(text, "; "), "any keys")
}

func (c CollectionRestriction) describe() string {
	switch {
	case c.ForbidEmpty:
		return "not empty"
	case c.RequireEmpty:
		return "empty"
	}
	return ""
}
