package restriction

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func (c *compiler) str(at place, r *StringRestriction) *stringRule {
	if r == nil {
		return nil
	}
	rule := c.stringRule(at, r)
	c.keep(&rule.leaf)
	return rule
}

func (c *compiler) stringRule(at place, r *StringRestriction) *stringRule {
	notEmpty(c, at, "whitelist", r.Whitelist)
	notEmpty(c, at, "blacklist", r.Blacklist)
	return &stringRule{
		leaf:      c.leaf(at, r.PointerRestriction, describe(r)),
		whitelist: r.Whitelist, blacklist: r.Blacklist, regex: c.regex(at, r.Regex),
	}
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

func (c *compiler) paths(at place, name string, r *StringRestriction) *stringRule {
	if r == nil {
		return nil
	}
	at = at.child(name)
	rule := c.stringRule(at, r)
	rule.isPath = true
	rule.whitelist = c.cleanPaths(at, "whitelist", r.Whitelist)
	rule.blacklist = c.cleanPaths(at, "blacklist", r.Blacklist)
	c.keep(&rule.leaf)
	return rule
}

func (c *compiler) cleanPaths(at place, name string, list []string) []string {
	var clean []string
	for i, s := range list {
		if !plainPath(s) {
			c.invalid(at.of(name).Index(i), s, "must be an absolute path without .., and not below the folder of a process in /proc")
		}
		clean = append(clean, path.Clean(s))
	}
	return clean
}

func (c *compiler) boolean(at place, name string, r *BoolRestriction) *boolRule {
	if r == nil {
		return nil
	}
	at = at.child(name)
	allowed := "true or false"
	if r.Require != nil {
		allowed = strconv.FormatBool(*r.Require)
	}
	rule := &boolRule{leaf: c.leaf(at, r.PointerRestriction, allowed), require: r.Require}
	c.keep(&rule.leaf)
	return rule
}

func (c *compiler) number(at place, name string, r *NumericRestriction) *numberRule {
	if r == nil {
		return nil
	}
	at = at.child(name)
	notEmpty(c, at, "ranges", r.Ranges)
	for i, in := range r.Ranges {
		if in.Min != nil && in.Max != nil && *in.Min > *in.Max {
			c.invalid(at.of("ranges").Index(i), fmt.Sprintf("min: %d, max: %d", *in.Min, *in.Max), "min must be at most max")
		}
	}
	rule := &numberRule{leaf: c.leaf(at, r.PointerRestriction, describeRanges(r.Ranges)), ranges: r.Ranges}
	c.keep(&rule.leaf)
	return rule
}

// collection checks a restriction and returns it.
func (c *compiler) collection(at place, r CollectionRestriction) CollectionRestriction {
	if r.ForbidEmpty && r.RequireEmpty {
		c.invalid(at.of(), "forbidEmpty, requireEmpty", "both are true, so no pod matches; set at most one")
	}
	return r
}

func (c *compiler) stringList(at place, name string, r *StringListRestriction, canonical func(string) string) *listRule {
	if r == nil {
		return nil
	}
	at = at.child(name)
	c.required(at, "requiredValues", r.RequiredValues, r.CollectionRestriction)
	rule := &listRule{leaf: c.leaf(at, PointerRestriction{}, ""), CollectionRestriction: c.collection(at, r.CollectionRestriction), canonical: canonical}
	rule.allowed = rule.describe()
	for _, s := range r.RequiredValues {
		rule.required = append(rule.required, canonical(s))
		rule.allowed = strings.TrimPrefix(rule.allowed+", with "+s, ", ")
	}
	if r.Values != nil {
		rule.values = c.stringRule(at.part("values"), r.Values)
		rule.values.whitelist = mapped(r.Values.Whitelist, canonical)
		rule.values.blacklist = mapped(r.Values.Blacklist, canonical)
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

// required refuses required entries in a collection that must be empty.
func (c *compiler) required(at place, name string, list []string, r CollectionRestriction) {
	notEmpty(c, at, name, list)
	if r.RequireEmpty && len(list) > 0 {
		c.invalid(at.of(name), list, "must be absent with requireEmpty, or no pod matches")
	}
}

func (c *compiler) stringMap(at place, name string, r *StringMapRestriction) *mapRule {
	if r == nil {
		return nil
	}
	at = at.child(name)
	c.required(at, "requiredKeys", r.RequiredKeys, r.CollectionRestriction)
	notEmpty(c, at, "keyWhitelist", r.KeyWhitelist)
	notEmpty(c, at, "keyBlacklist", r.KeyBlacklist)
	rule := &mapRule{
		leaf:                  c.leaf(at, PointerRestriction{}, describeKeys(r)),
		CollectionRestriction: c.collection(at, r.CollectionRestriction), required: r.RequiredKeys, keyBlacklist: r.KeyBlacklist,
	}
	if r.KeyWhitelist != nil {
		rule.keyWhitelist = map[string]bool{}
		for _, key := range r.KeyWhitelist {
			rule.keyWhitelist[key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.Values)) {
		value := r.Values[key]
		in := place{at.of("values").Key(key).String(), at.field}
		rule.values = append(rule.values, mapValueRule{key, *c.stringRule(in, &value)})
	}
	c.keep(&rule.leaf)
	return rule
}
