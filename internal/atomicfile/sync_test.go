package atomicfile_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/internal/atomicfile"
)

func TestSyncFolder(t *testing.T) {
	dir := t.TempDir()
	if err := atomicfile.SyncFolder(dir); err != nil {
		t.Errorf("Folder = %v; want nil", err)
	}
	if err := atomicfile.SyncFolder(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Folder of what is not there = %v; want ErrNotExist", err)
	}
}
