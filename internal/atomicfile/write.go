package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// The texts follow the name of the file, for the person who gave it.
var (
	// ErrExists is returned for a file that is there and is not to be replaced. It is an fs.ErrExist.
	ErrExists error = existsError{}
	// ErrNoFile is returned for what is there and is no regular file: a rename would replace a device just as well.
	ErrNoFile = errors.New("is there and is no regular file")
)

type existsError struct{}

func (existsError) Error() string        { return "is there already" }
func (existsError) Is(target error) bool { return target == fs.ErrExist }

// May returns the error with which Write would refuse before it has written anything.
func May(path string, replace bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s %w", path, ErrNoFile)
	case !replace:
		return fmt.Errorf("%s %w", path, ErrExists)
	default:
		return nil
	}
}

// Write makes the file of what fill writes, beside it at first, and gives it its name once that is on disk.
func Write(path string, replace bool, fill func(io.Writer) error) (err error) {
	if err := May(path, replace); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // closed already, unless it went wrong before
			if gone := os.Remove(f.Name()); !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}()
	if err := fill(f); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := place(f.Name(), path, replace); err != nil {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// place gives a file its name, and takes that from no other file unless that is wanted.
func place(from, to string, replace bool) error {
	if replace {
		return os.Rename(from, to)
	}
	// A link, unlike a rename, fails if somebody has made the file meanwhile.
	switch err := os.Link(from, to); {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s %w", to, ErrExists)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
		// A file system without links. Of two that create at once, the second takes the place of the first.
		if err := May(to, false); err != nil {
			return err
		}
		return os.Rename(from, to)
	case err != nil:
		return err
	default:
		return os.Remove(from)
	}
}
