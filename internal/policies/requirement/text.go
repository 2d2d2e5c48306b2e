package requirement

import (
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
	if _, err := regexp.Compile(pattern); err != nil { // alone, because a) | (b is valid in parentheses
		return Text{}, err
	}
	match, err := regexp.Compile(`\A(?:` + pattern + `)\z`)
	if err != nil {
		return Text{}, err
	}
	return Text{form: regexpText, pattern: pattern, match: match}, nil
}

// expression returns the regular expression of a glob whose wildcards are given, longest first among those that begin
// alike.
func expression(glob string, wildcards map[string]string) string {
	var out strings.Builder
	for rest := glob; rest != ""; {
		for length := 2; length >= 0; length-- {
			if length == 0 {
				out.WriteString(regexp.QuoteMeta(rest[:1]))
				rest = rest[1:]
				break
			}
			if length <= len(rest) && wildcards[rest[:length]] != "" {
				out.WriteString(wildcards[rest[:length]])
				rest = rest[length:]
				break
			}
		}
	}
	return out.String()
}

// Matches reports whether the whole text matches.
func (t Text) Matches(s string) bool {
	switch t.form {
	case exactText:
		return s == t.pattern
	case globText, regexpText:
		return t.match.MatchString(s)
	case noText:
	}
	return false
}

// overlaps reports whether a text is known to match both. Of two regular expressions, or one and a glob, this is known
// only if they are equal.
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

// String returns the pattern, with its form if it is a regular expression.
func (t Text) String() string {
	if t.form == regexpText {
		return fmt.Sprintf("matching %s", t.pattern)
	}
	return t.pattern
}
