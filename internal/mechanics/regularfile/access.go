package regularfile

import (
	"io/fs"
	"syscall"
)

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
