package strictyaml_test

import (
	"errors"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// A file that cannot be located must not end a daemon that reads it again.
func FuzzWithLines(f *testing.F) {
	f.Add([]byte("a: &a [*a]\nb: {c.d: [1]}\n"), "b.c.d[0]: Invalid value")
	f.Add([]byte("? [a]\n: b\n<<: {x: 1}\n"), "[a]: text")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		cause := errors.New(text)
		if got := strictyaml.WithLines(data, []error{cause}); len(got) != 1 || !errors.Is(got[0], cause) {
			t.Errorf("WithLines(%q, %q) = %v; want the error", data, text, got)
		}
	})
}
