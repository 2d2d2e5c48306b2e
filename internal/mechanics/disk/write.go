package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// The texts follow the name of the file.
var (
	// ErrExists is returned for a file that exists and must not be replaced. It is an fs.ErrExist.
	ErrExists error = existsError{}
	// ErrNoFile is returned for a path that exists and is not a regular file.
	ErrNoFile = errors.New("exists and is not a regular file")
)

type existsError struct{}

func (existsError) Error() string        { return "already exists" }
func (existsError) Is(target error) bool { return target == fs.ErrExist }

// Options of Write. The zero value creates a file with mode 0600 and replaces none.
type Options struct {
	// Replace allows to replace a regular file. What is not a regular file is never replaced.
	Replace bool
	// Mode is the mode of a new file, whatever the umask; 0 means 0600.
	Mode fs.FileMode
	// KeepAttributes gives the new file the mode and the owner of the file that it replaces.
	KeepAttributes bool
	// FollowLinks writes the file that a symbolic link names. Without it a link is not a regular file.
	FollowLinks bool
	// Temporary is the name, in the file's folder, of the file that is written first. A file of that name is removed, so
	// that the next call cleans up after a crash; the caller excludes concurrent calls. "" means a name that is not in
	// use.
	Temporary string
}

// Check returns the error with which Write would refuse the path before it writes anything.
func Check(path string, replace bool) error {
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

// Write writes what fill writes to a temporary file in the same folder, and renames it to path once it is on disk.
// After an error the temporary file is removed and the file at path is as it was, unless only the sync of the folder
// failed.
func Write(path string, o Options, fill func(io.Writer) error) (err error) {
	if o.FollowLinks {
		switch target, err := filepath.EvalSymlinks(path); {
		case err == nil:
			path = target
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	if err := Check(path, o.Replace); err != nil {
		return err
	}
	f, err := create(path, o.Temporary)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // fails if it is closed already
			if removeErr := os.Remove(f.Name()); !errors.Is(removeErr, fs.ErrNotExist) {
				err = errors.Join(err, removeErr)
			}
		}
	}()
	if err := fill(f); err != nil {
		return err
	}
	if err := setAttributes(f, path, o); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := place(f.Name(), path, o.Replace); err != nil {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

func create(path, temporary string) (*os.File, error) {
	dir := filepath.Dir(path)
	if temporary == "" {
		return os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	}
	name := filepath.Join(dir, temporary)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func setAttributes(f *os.File, path string, o Options) error {
	mode := o.Mode
	if o.KeepAttributes {
		switch info, err := os.Lstat(path); {
		case err == nil:
			mode = info.Mode().Perm()
			if owner, ok := info.Sys().(*syscall.Stat_t); ok {
				if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
					return err
				}
			}
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	if mode == 0 {
		return nil
	}
	return f.Chmod(mode) // after Chown, which may clear bits
}

// place renames from to to. Without replace it fails if another process has created the file meanwhile.
func place(from, to string, replace bool) error {
	if replace {
		return os.Rename(from, to)
	}
	// A hard link, unlike a rename, does not replace a file.
	switch err := os.Link(from, to); {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s %w", to, ErrExists)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
		// A file system without hard links. Of two concurrent calls the second replaces the file of the first.
		if err := Check(to, false); err != nil {
			return err
		}
		return os.Rename(from, to)
	case err != nil:
		return err
	default:
		return os.Remove(from)
	}
}

// SyncFolder returns when the names in a folder are on disk: a file that was created, renamed or removed there stays so
// after a crash.
func SyncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// ErrTooLarge is wrapped by the error about a file that is longer than the limit.
var ErrTooLarge = errors.New("too large")

// Read returns the content of a regular file of at most limit bytes; a longer one is [ErrTooLarge]. Anything else than
// a regular file is an error; it is never waited for.
func Read(path string, limit int64) ([]byte, error) { return ReadIf(path, limit, nil) }

// ReadIf is Read of a file that check accepts; nil accepts all. The error is that of check.
func ReadIf(path string, limit int64, check func(fs.FileInfo) error) ([]byte, error) {
	// Without O_NONBLOCK the opening of a named pipe waits for a writer, for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err == nil && check != nil {
		err = check(info)
	}
	var content []byte
	if err == nil {
		content, err = io.ReadAll(io.LimitReader(f, limit+1))
	}
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s: %w: more than %d bytes", path, ErrTooLarge, limit)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return content, nil
}

// CheckOwner returns an error unless root or the user of this process owns what info is of.
func CheckOwner(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("the owner is not known")
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("owned by user %d; must be owned by root", stat.Uid)
	}
	return nil
}

// OthersWrite reports whether a user other than root and the given one, or a group other than root's, can write to a
// file.
func OthersWrite(info fs.FileInfo, user int) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return true
	}
	mode := info.Mode().Perm()
	return s.Uid != 0 && int(s.Uid) != user || mode&0o002 != 0 || mode&0o020 != 0 && s.Gid != 0
}

// Stats describe the file system of a path.
type Stats struct {
	Bytes, Free       uint64
	Inodes, FreeNodes uint64 // 0 Inodes if the file system has no limit
	Remote            bool   // the file system is on another machine
	Volatile          bool   // the file system is in memory
	Kernel            bool   // the kernel makes its files; others cannot be stored
}

// StatsOf returns the statistics of the file system of an existing path.
func StatsOf(path string) (Stats, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Stats{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	is := func(types ...int64) bool {
		return slices.Contains(types, int64(s.Type)) //nolint:unconvert // its size differs between machines
	}
	block := uint64(s.Bsize) //nolint:gosec // the size of a block
	return Stats{
		Bytes: s.Blocks * block, Free: s.Bavail * block, Inodes: s.Files, FreeNodes: s.Ffree,
		Remote: is(unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC,
			unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC,
			unix.V9FS_MAGIC),
		Volatile: is(unix.TMPFS_MAGIC, unix.RAMFS_MAGIC),
		Kernel:   is(unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC),
	}, nil
}
