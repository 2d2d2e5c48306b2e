package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	testkit.Must(t, os.WriteFile(file, []byte("12345"), 0o600))
	testkit.Must(t, os.Symlink(file, link))
	for _, tc := range []struct {
		name, path string
		limit      int64
		want       string
	}{{"whole", file, 5, "12345"}, {"through a link", link, 100, "12345"}} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := disk.Read(tc.path, tc.limit)
			if err != nil || string(got) != tc.want {
				t.Errorf("Read = %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestReadOfLargeFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	testkit.Must(t, os.WriteFile(file, []byte("123"), 0o600))
	if got, err := disk.Read(file, 2); got != nil || !errors.Is(err, disk.ErrTooLarge) ||
		err.Error() != file+": too large: more than 2 bytes" {
		t.Errorf("Read = %q, %v; want ErrTooLarge", got, err)
	}
}

func TestReadOfOtherKindsOfFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	testkit.Must(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{pipe, dir, filepath.Join(dir, "absent"), "/dev/zero"} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			if got, err := disk.Read(path, 10); err == nil {
				t.Errorf("Read = %q; want an error", got)
			}
		})
	}
}
