package program_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/program"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A folder is also writable by its other names.
func TestSandboxFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "real"), 0o700),
		os.Symlink("real", filepath.Join(dir, "link")),
	} {
		testkit.Must(t, err)
	}
	unit := program.SandboxOf(t.Context(), func(context.Context, string, ...string) ([]byte, error) {
		return []byte("LoadState=loaded\nProtectSystem=strict\nReadWritePaths=" + filepath.Join(dir, "real") + "\n"), nil
	}, "x.service")
	for path, want := range map[string]bool{
		"link": true, "link/absent/more": true, "real": true, "other": false,
		"real-2": false,
	} {
		if err := unit.Writes(filepath.Join(dir, path)); (err == nil) != want {
			t.Errorf("%s: %v; want writable: %v", path, err, want)
		}
	}
}
