package restriction

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// describe returns the strings that a restriction allows, for violations.
func describe(r *StringRestriction) string {
	var parts []string
	if len(r.Whitelist) > 0 {
		parts = append(parts, strings.Join(r.Whitelist, ", "))
	}
	if len(r.Blacklist) > 0 {
		parts = append(parts, "not "+strings.Join(r.Blacklist, ", "))
	}
	if r.Regex != "" {
		parts = append(parts, "matching "+r.Regex)
	}
	if len(parts) == 0 {
		return "any value"
	}
	return strings.Join(parts, "; ")
}

func describeRanges(ranges []NumericRange) string {
	if len(ranges) == 0 {
		return "any number"
	}
	parts := make([]string, 0, len(ranges))
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
	return strings.Join(parts, ", ")
}

func describeKeys(r *StringMapRestriction) string {
	var parts []string
	if s := r.describe(); s != "" {
		parts = append(parts, s)
	}
	for _, list := range []struct {
		text string
		keys []string
	}{{"with the keys ", r.RequiredKeys}, {"only the keys ", r.KeyWhitelist}, {"without the keys ", r.KeyBlacklist}} {
		if len(list.keys) > 0 {
			parts = append(parts, list.text+strings.Join(list.keys, ", "))
		}
	}
	return cmp.Or(strings.Join(parts, "; "), "any keys")
}

func (c CollectionRestriction) describe() string {
	switch {
	case c.ForbidEmpty:
		return "not empty"
	case c.RequireEmpty:
		return "empty"
	default:
		return ""
	}
}
