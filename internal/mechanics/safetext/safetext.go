package safetext

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Event is where Kubernetes cuts the message of an event, in bytes.
const Event = 1024

// Valid returns a text with U+FFFD for each run of bytes that is not UTF-8: protobuf and JSON have no others.
func Valid(s string) string { return strings.ToValidUTF8(s, string(unicode.ReplacementChar)) }

// Line returns the beginning of a text, at most limit bytes, with a space for each character that cannot be printed.
func Line(s string, limit int) string {
	s = strings.TrimSpace(strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, s[:min(len(s), 4*limit)]))
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return strings.Clone(s)
}

// ASCII returns at most limit characters of a text, as [Shorten], all of them printable ASCII: no character looks like
// another one.
func ASCII(s string, limit int) string {
	return Shorten(strings.Map(func(c rune) rune {
		switch {
		case unicode.IsSpace(c):
			return ' '
		case !unicode.IsPrint(c), c > unicode.MaxASCII:
			return '?'
		}
		return c
	}, s[:min(len(s), 4*limit)]), limit)
}

// Shorten returns a text, or its first characters and an ellipsis if it has more than limit.
func Shorten(s string, limit int) string {
	if utf8.RuneCountInString(s[:min(len(s), 4*limit+1)]) <= limit {
		return s
	}
	return string([]rune(s[:min(len(s), 4*limit)])[:limit-1]) + "…"
}

// Split returns the errors that [errors.Join] made err of; err alone if it is not such an error.
func Split(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// OneLine returns an error with the lines of its text in one, because the journal has one line for each event. It has
// no hint.
func OneLine(err error) error {
	return errors.New(strings.ReplaceAll(strings.ReplaceAll(err.Error(), ":\n", ": "), "\n", "; "))
}
