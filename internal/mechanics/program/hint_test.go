package program_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

func TestHintIsFoundThroughWrapping(t *testing.T) {
	for name, tc := range map[string]struct {
		err        error
		text, hint string
	}{
		"wrapped": {
			fmt.Errorf("start: %w", program.WithHint(fs.ErrExist, "remove it")), "start: file already exists",
			"remove it",
		},
		"formatted": {
			program.Hintf("remove it", "make %s: %w", "a", fs.ErrExist), "make a: file already exists",
			"remove it",
		},
		"joined": {
			errors.Join(fs.ErrExist, program.WithHint(fs.ErrExist, "remove it")),
			"file already exists\nfile already exists", "remove it",
		},
		"the first": {program.WithHint(program.WithHint(fs.ErrExist, "second"), "first"), "file already exists", "first"},
		"none":      {fs.ErrExist, "file already exists", ""},
	} {
		if got := tc.err.Error(); got != tc.text || !errors.Is(tc.err, fs.ErrExist) {
			t.Errorf("%s: error = %q; want %q, and that it is %v", name, got, tc.text, fs.ErrExist)
		}
		if got := program.HintOf(tc.err); got != tc.hint {
			t.Errorf("%s: hint = %q; want %q", name, got, tc.hint)
		}
	}
	if err := program.WithHint(nil, "nothing"); err != nil {
		t.Errorf("Wrap(nil) = %v; want nil", err)
	}
}
