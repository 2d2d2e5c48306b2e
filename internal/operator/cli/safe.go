package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Safe returns s with every character that is not printable as an escape of Go and JSON: \u001b, \U000e0001, and \xff
// for a byte that is not UTF-8. It escapes line feeds too.
func Safe(s string) string { return escape(s, "", whole) }

// escape is Safe, except that it keeps the characters in kept; long returns the escape of a character beyond U+FFFF.
func escape(s, kept string, long func(rune) string) string {
	if printable(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			_, _ = fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r), strings.ContainsRune(kept, r):
			b.WriteRune(r)
		case r > 0xffff:
			b.WriteString(long(r))
		default:
			_, _ = fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

func whole(r rune) string { return fmt.Sprintf(`\U%08x`, r) }

func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
