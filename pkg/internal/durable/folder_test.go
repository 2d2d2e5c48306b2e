package durable_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/pullgate/pullgate/pkg/internal/durable"
)

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	if err := durable.Folder(dir); err != nil {
		t.Errorf("Folder = %v; want nil", err)
	}
	if err := durable.Folder(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Folder of what is not there = %v; want ErrNotExist", err)
	}
}
