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

// mode is the mode of a new file. An existing file keeps its mode.
const mode = 0o600

// A sink is the destination of lines.
type sink interface {
	io.WriteCloser
	// Gone reports whether no path leads to the file any more, so that further writes would be lost.
	Gone() bool
}

// A file is a sink on disk.
type file struct {
	*os.File

	torn bool // the last line is incomplete
}

// openFile opens a file for appending and creates it if it does not exist. Its directory must exist.
func openFile(path string) (*file, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for a reader without a limit.
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

// CheckPath reports why Open would fail, without creating or changing a file.
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

// check refuses a file that this package has not written, because a wrong path in a configuration would damage it. It
// reports whether the last line is incomplete.
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

// Write appends a line. After an incomplete line it first begins a new line, so that at most one line is invalid.
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
