package decisionlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// mode is that of a file that is made. One that is there keeps its own.
const mode = 0o600

// A sink is what lines are written to.
type sink interface {
	io.WriteCloser
	// Gone reports whether no path leads to the file any more, so that further writes are lost.
	Gone() bool
}

// A file is a sink on disk.
type file struct {
	*os.File

	torn bool // the last line has no end
}

// openFile opens a file for appending and makes it if it is not there. Its directory must be.
func openFile(path string) (*file, error) {
	// Without O_NONBLOCK the opening of a named pipe waits for a reader, for ever.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, mode)
	if err != nil {
		return nil, err
	}
	torn, err := check(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s %w", ErrNotALog, path, err), f.Close())
	}
	return &file{File: f, torn: torn}, nil
}

// CheckPath reports why Open would fail, without making or changing a file.
func CheckPath(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		dir := filepath.Dir(path)
		info, err := os.Stat(dir)
		switch {
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%s is not a directory", dir)
		}
		if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
			return &fs.PathError{Op: "write to", Path: dir, Err: err}
		}
		return nil
	}
	if err != nil {
		return err
	}
	if _, err = check(f); err != nil {
		err = fmt.Errorf("%w: %s %w", ErrNotALog, path, err)
	}
	return errors.Join(err, f.Close())
}

// check refuses what was not written by this package, which a wrong path in a configuration would spoil, and
// reports whether the last line has no end.
func check(f *os.File) (torn bool, err error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return false, err
	case !info.Mode().IsRegular():
		return false, errors.New("is not a regular file")
	case info.Size() == 0:
		return false, nil
	}
	var ends [2]byte
	if _, err := f.ReadAt(ends[:1], 0); err != nil {
		return false, err
	}
	if _, err := f.ReadAt(ends[1:], info.Size()-1); err != nil {
		return false, err
	}
	if ends[0] != '{' {
		return false, errors.New("holds something else")
	}
	return ends[1] != '\n', nil
}

// Write appends a line. After one that was written in part it begins a new one first, so that no more than one is
// spoilt.
func (f *file) Write(line []byte) (int, error) {
	if f.torn {
		if _, err := f.File.WriteString("\n"); err != nil {
			return 0, err
		}
		f.torn = false
	}
	n, err := f.File.Write(line)
	f.torn = n > 0 && n < len(line)
	return n, err
}

// Gone reports whether the file has been deleted.
func (f *file) Gone() bool {
	info, err := f.Stat()
	if err != nil {
		return true
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && s.Nlink == 0
}
