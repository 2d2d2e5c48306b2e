package host_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/e2e/host"
)

// The error of a program that does not start contains the last lines of its output, for a developer who runs the
// suite on a machine where something is missing.
func TestStartThatFailsShowsTheLastLines(t *testing.T) {
	never := func() error { return errors.New("not there yet") }
	_, err := host.Start(t.Context(), "part", filepath.Join(t.TempDir(), "log"), never, "/bin/sh", "-c", "seq 100; echo no such setting >&2; exit 3")
	if err == nil {
		t.Fatal("start of a program that ends = nil; want an error")
	}
	for _, want := range []string{"part did not start", "    87\n", "    100\n", "no such setting"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error = %q; want it to hold %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "    86\n") {
		t.Errorf("error = %q; want the last 15 lines alone", err)
	}
}
