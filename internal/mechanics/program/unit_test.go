package program_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A check reads what the unit can read, and no other thread of the process changes.
func TestAsUnit(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}
	//nolint:usetesting // other users can enter only a folder that is not below that of the test
	dir, err := os.MkdirTemp("", "unit")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testkit.Must(t, os.Chmod(dir, 0o755))
	const nobody = 65534
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, file := range map[string]struct {
		owner int
		mode  os.FileMode
	}{"of root": {0, 0o600}, "of nobody": {nobody, 0o600}, "of all": {0, 0o644}, "of root's group": {0, 0o640}} {
		testkit.Must(t, os.WriteFile(path(name), nil, 0o600))
		testkit.Must(t, os.Chmod(path(name), file.mode))
		testkit.Must(t, os.Chown(path(name), file.owner, 0))
	}
	for unit, readable := range map[string]string{
		"LoadState=not-found\nUser=nobody\n":                                "of all, of nobody, of root, of root's group",
		"LoadState=loaded\nUser=\nCapabilityBoundingSet=cap_dac_override\n": "of all, of nobody, of root, of root's group",
		"LoadState=loaded\nUser=\nCapabilityBoundingSet=\n":                 "of all, of root, of root's group",
		"LoadState=loaded\nUser=nobody\nCapabilityBoundingSet=\n":           "of all, of nobody",
	} {
		run := func(context.Context, string, ...string) ([]byte, error) { return []byte(unit), nil }
		var read []string
		err := program.AsUnit(t.Context(), run, "a.service", func() error {
			var failed error
			for _, name := range []string{"of all", "of nobody", "of root", "of root's group"} {
				if _, err := os.ReadFile(path(name)); err == nil {
					read = append(read, name)
				} else {
					failed = err
				}
			}
			return failed
		})
		got := strings.Join(read, ", ")
		if all := len(read) == 4; got != readable || (err == nil) != all || !all &&
			(!errors.Is(err, fs.ErrPermission) || !strings.Contains(program.HintOf(err), "a.service runs")) {
			t.Errorf("%q reads %s, %v; want %s", unit, got, err, readable)
		}
		testkit.Value(os.ReadFile(path("of nobody")))(t)
	}
	run := func(context.Context, string, ...string) ([]byte, error) {
		return []byte("LoadState=loaded\nUser=nosuchuser\n"), nil
	}
	if err := program.AsUnit(t.Context(), run, "a.service", func() error { return nil }); err == nil ||
		program.HintOf(err) == "" {
		t.Errorf("a user that does not exist: %v; want an error with a hint", err)
	}
}
