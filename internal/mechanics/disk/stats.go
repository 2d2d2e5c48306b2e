package disk

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

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
