package imagepolicy

import (
	"strings"
	"unicode"
)

// maxText bounds a text of a backend, in bytes. Kubernetes cuts the message of an event here.
const maxText = 1024

// OneLine returns at most 1,024 bytes of a text of a backend or of pullgate-policyd, with a space for each character that cannot be printed, for
// logs and messages. It does not keep a longer text in memory.
func OneLine(s string) string {
	s = s[:min(len(s), 4*maxText)] // the rest is not kept, so it is not converted
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s))
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return strings.Clone(s)
}
