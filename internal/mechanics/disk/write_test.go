package disk_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/testkit"
)

var errFill = errors.New("no more")

func text(s string, err error) func(io.Writer) error {
	return func(w io.Writer) error {
		_, writeErr := io.WriteString(w, s)
		return errors.Join(writeErr, err)
	}
}

func TestWriteIsAllOrNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		before  string // "" is no file
		replace bool
		fill    func(path string) func(io.Writer) error
		wantErr error
		want    string
	}{
		"a new file":                   {"", false, with("new", nil), nil, "new"},
		"a new file that may replace":  {"", true, with("new", nil), nil, "new"},
		"an empty one":                 {"", false, with("", nil), nil, ""},
		"one that is there":            {"old", false, with("new", nil), disk.ErrExists, "old"},
		"one that is to be replaced":   {"old", true, with("new", nil), nil, "new"},
		"a failure":                    {"", false, with("half", errFill), errFill, ""},
		"a failure where one is there": {"old", true, with("half", errFill), errFill, "old"},
		"one that another process makes meanwhile": {"", false, func(path string) func(io.Writer) error {
			return func(io.Writer) error { return os.WriteFile(path, []byte("theirs"), 0o600) }
		}, disk.ErrExists, "theirs"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			if tc.before != "" {
				testkit.Must(t, os.WriteFile(path, []byte(tc.before), 0o600))
			}
			if err := disk.Write(path, disk.Options{Replace: tc.replace}, tc.fill(path)); !errors.Is(err, tc.wantErr) {
				t.Errorf("Write = %v; want %v", err, tc.wantErr)
			}
			got, err := os.ReadFile(path)
			if string(got) != tc.want || err != nil && tc.want != "" {
				t.Errorf("the file holds %q, %v; want %q", got, err, tc.want)
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != "file" {
				t.Errorf("the folder holds %v, %v; want the file alone", entries, err)
			}
			if info, err := os.Stat(path); err == nil && info.Mode() != 0o600 {
				t.Errorf("the file has mode %v; want 0600", info.Mode())
			}
		})
	}
}

func with(s string, err error) func(string) func(io.Writer) error {
	return func(string) func(io.Writer) error { return text(s, err) }
}

func TestWriteReplacesOnlyRegularFiles(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	testkit.Must(t, os.Symlink(filepath.Join(dir, "target"), link))
	// It represents any device: a test that goes wrong must not replace one of the system.
	pipe := filepath.Join(dir, "pipe")
	testkit.Must(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{link, dir, pipe} {
		if err := disk.Write(path, disk.Options{Replace: true}, text("x", nil)); !errors.Is(err, disk.ErrNoFile) {
			t.Errorf("Write(%s) = %v; want %v", path, err, disk.ErrNoFile)
		}
	}
	if err := disk.Write(filepath.Join(dir, "gone", "file"), disk.Options{}, text("x", nil)); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("Write into a folder that is not there = %v; want %v", err, os.ErrNotExist)
	}
}

func TestWriteAttributes(t *testing.T) {
	keep := disk.Options{Replace: true, Mode: 0o640, KeepAttributes: true}
	for name, tc := range map[string]struct {
		before fs.FileMode // 0 is no file
		o      disk.Options
		want   fs.FileMode
	}{
		"a new file":             {0, keep, 0o640},
		"more than the umask":    {0, disk.Options{Mode: 0o666}, 0o666},
		"kept":                   {0o604, keep, 0o604},
		"replaced":               {0o604, disk.Options{Replace: true, Mode: 0o640}, 0o640},
		"replaced, without mode": {0o604, disk.Options{Replace: true}, 0o600},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if tc.before != 0 {
				testkit.Must(t, errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, tc.before)))
			}
			testkit.Must(t, disk.Write(path, tc.o, text("x", nil)))
			if info, err := os.Stat(path); err != nil || info.Mode() != tc.want {
				t.Errorf("mode %v, %v; want %v", info.Mode(), err, tc.want)
			}
		})
	}
}

func TestWriteFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	link, target := filepath.Join(dir, "link"), filepath.Join(dir, "target")
	testkit.Must(t, os.Symlink("target", link))
	o := disk.Options{Replace: true, FollowLinks: true}
	if err := disk.Write(link, o, text("x", nil)); !errors.Is(err, disk.ErrNoFile) {
		t.Errorf("Write through a dangling link = %v; want %v", err, disk.ErrNoFile)
	}
	testkit.Must(t, os.WriteFile(target, []byte("old"), 0o600))
	testkit.Must(t, disk.Write(link, o, text("new", nil)))
	to, err := os.Readlink(link)
	if content, readErr := os.ReadFile(target); err != nil || readErr != nil || to != "target" ||
		string(content) != "new" {
		t.Errorf("link to %q, content %q, %v, %v; want target, new", to, content, err, readErr)
	}
}

func TestWriteReplacesATemporaryFileThatACrashLeft(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, ".new"), []byte("half of a longer file"), 0o644))
	path := filepath.Join(dir, "file")
	testkit.Must(t, disk.Write(path, disk.Options{Temporary: ".new"}, text("new", nil)))
	entries, err := os.ReadDir(dir)
	content, readErr := os.ReadFile(path)
	if err != nil || readErr != nil || len(entries) != 1 || string(content) != "new" {
		t.Errorf("folder %v, content %q, %v, %v; want the new file alone", entries, content, err, readErr)
	}
}

func TestSyncFolder(t *testing.T) {
	dir := t.TempDir()
	if err := disk.SyncFolder(dir); err != nil {
		t.Errorf("SyncFolder = %v; want nil", err)
	}
	if err := disk.SyncFolder(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("SyncFolder of an absent folder = %v; want ErrNotExist", err)
	}
}

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
