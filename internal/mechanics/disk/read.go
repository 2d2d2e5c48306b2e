package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrTooLarge is wrapped by the error about a file that is longer than the limit.
var ErrTooLarge = errors.New("too large")

// Read returns the content of a regular file of at most limit bytes; a longer one is [ErrTooLarge]. Anything else than
// a regular file is an error; it is never waited for.
func Read(path string, limit int64) ([]byte, error) {
	// Without O_NONBLOCK the opening of a named pipe waits for a writer, for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
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
