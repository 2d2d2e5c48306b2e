package requirement

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

// A Text matches texts of certificates and names of namespaces. The zero Text matches none.
type Text struct {
	form    textForm
	pattern string
	match   *regexp.Regexp // nil for an exact text
}

type textForm uint8

const (
	noText textForm = iota
	exactText
	globText
	regexpText
)

// Exactly returns the Text that matches one text.
func Exactly(s string) Text { return Text{form: exactText, pattern: s} }

// Glob returns the Text of a pattern, in which * stands for any characters, also for none, and ? for one. Other
// characters stand for themselves.
func Glob(pattern string) Text {
	if !strings.ContainsAny(pattern, "*?") {
		return Exactly(pattern)
	}
	return Text{
		form: globText, pattern: pattern,
		match: regexp.MustCompile(`(?s)\A` + expression(pattern, map[string]string{"*": ".*", "?": "."}) + `\z`),
	}
}

// Regexp returns the Text of an RE2 expression that must match the whole text.
func Regexp(pattern string) (Text, error) {
	_, err := regexp.Compile(pattern) // alone, because a) | (b is valid in parentheses
	match, whole := regexp.Compile(`\A(?:` + pattern + `)\z`)
	if err := cmp.Or(err, whole); err != nil {
		return Text{}, err
	}
	return Text{form: regexpText, pattern: pattern, match: match}, nil
}

// expression returns the regular expression of a glob with wildcards of one or two characters.
func expression(glob string, wildcards map[string]string) (out string) {
	for rest := glob; rest != ""; {
		n := min(2, len(rest))
		if wildcards[rest[:n]] == "" {
			n = 1
		}
		out += cmp.Or(wildcards[rest[:n]], regexp.QuoteMeta(rest[:n]))
		rest = rest[n:]
	}
	return out
}

// Matches reports whether the whole text matches.
func (t Text) Matches(s string) bool {
	if t.form == exactText {
		return s == t.pattern
	}
	return t.match != nil && t.match.MatchString(s)
}

// Forms returns the text that is matched, or the RE2 expression that must match all of it; the other one is "".
func (t Text) Forms() (exactly, re2 string) {
	switch t.form {
	case noText, exactText:
		return t.pattern, ""
	case globText:
		return "", `(?s)` + expression(t.pattern, map[string]string{"*": ".*", "?": "."})
	case regexpText:
	}
	return "", t.pattern
}

func (t Text) overlaps(o Text) bool {
	switch {
	case t.form == exactText:
		return o.Matches(t.pattern)
	case o.form == exactText:
		return t.Matches(o.pattern)
	case t.form == globText && o.form == globText:
		return globsOverlap([]rune(t.pattern), []rune(o.pattern))
	}
	return t.form != noText && t.form == o.form && t.pattern == o.pattern
}

func globsOverlap(a, b []rune) bool {
	var below []bool // for a[i+1:], whether it overlaps with each end of b
	for i := len(a); i >= 0; i-- {
		row := make([]bool, len(b)+1)
		for j := len(b); j >= 0; j-- {
			inA, inB := i < len(a), j < len(b)
			switch {
			case inA && a[i] == '*':
				row[j] = below[j] || inB && row[j+1]
			case inB && b[j] == '*':
				row[j] = row[j+1] || inA && below[j]
			case inA && inB:
				row[j] = (a[i] == b[j] || a[i] == '?' || b[j] == '?') && below[j+1]
			default:
				row[j] = inA == inB
			}
		}
		below = row
	}
	return below[0]
}

func (t Text) String() string {
	if t.form == regexpText {
		return fmt.Sprintf("matching %s", t.pattern)
	}
	return t.pattern
}
