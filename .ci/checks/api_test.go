package checks_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/checks"
)

// docs/api.txt is what other programs may rely on, so that a review sees when it changes. UPDATE=1 rewrites it.
func TestAPIIsAsListed(t *testing.T) {
	got, err := checks.API(root)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(root, "docs", "api.txt")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(list, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	listed := read(t, list)
	if listed == got {
		return
	}
	t.Error("the exported API of pkg/ is not what docs/api.txt lists; if it should be: cd .ci/checks && UPDATE=1 go test -count=1 -run TestAPI .")
	was, is := strings.Split(listed, "\n"), strings.Split(got, "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			t.Logf("- %s", line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Logf("+ %s", line)
		}
	}
}
