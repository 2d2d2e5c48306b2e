package atomicfile_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/atomicfile"
)

func TestSyncFolder(t *testing.T) {
	dir := t.TempDir()
	if err := atomicfile.SyncFolder(dir); err != nil {
		t.Errorf("SyncFolder = %v; want nil", err)
	}
	if err := atomicfile.SyncFolder(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("SyncFolder of an absent folder = %v; want ErrNotExist", err)
	}
}
