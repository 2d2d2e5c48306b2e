package safetext_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/pullgate/pullgate/internal/mechanics/safetext"
)

func TestTexts(t *testing.T) {
	for name, tc := range map[string]struct{ got, want string }{
		"one line":             {safetext.Line(" a\nb\x1b[31mc\u202e\t ", 20), "a b [31mc"},
		"cut in a character":   {safetext.Line("aéé", 4), "aé"},
		"not UTF-8":            {safetext.Line("a\xffb", 20), "a\ufffdb"},
		"invalid is replaced":  {safetext.Valid("a\xff\xfeb"), "a\ufffdb"},
		"a long line":          {safetext.Line(strings.Repeat("é", 1<<20), 9), "éééé"},
		"short":                {safetext.Shorten("äöü", 3), "äöü"},
		"shortened":            {safetext.Shorten("äöüß", 3), "äö…"},
		"shortened 4 bytes":    {safetext.Shorten(strings.Repeat("😀", 4), 3), "😀😀…"},
		"not UTF-8, shortened": {safetext.Shorten(strings.Repeat("\xff", 20), 3), "\ufffd\ufffd…"},
		"look-alikes":          {safetext.ASCII("pаypal\n\x00", 20), "p?ypal ?"},
		"a long look-alike":    {safetext.ASCII(strings.Repeat("а", 1<<20), 4), "???…"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %q; want %q", name, tc.got, tc.want)
		}
	}
}

func FuzzTexts(f *testing.F) {
	f.Add("a\xff\n\u202eé😀", 3)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = 3 + max(limit, -limit-1)%300
		line := safetext.Line(s, limit)
		printable := !strings.ContainsFunc(line, func(c rune) bool { return !unicode.IsPrint(c) })
		if len(line) > limit || !utf8.ValidString(line) || !printable {
			t.Errorf("Line(%q, %d) = %q", s, limit, line)
		}
		if got := safetext.ASCII(s, limit); utf8.RuneCountInString(got) > limit {
			t.Errorf("ASCII(%q, %d) = %q", s, limit, got)
		}
		if got := safetext.Shorten(s, limit); utf8.RuneCountInString(got) > limit {
			t.Errorf("Shorten(%q, %d) = %q", s, limit, got)
		}
	})
}
