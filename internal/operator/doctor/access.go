package doctor

import (
	"fmt"
	"io/fs"
	"syscall"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

// An access is the owner and the permissions of a file.
type access struct {
	uid, gid int // -1 if they are not known
	mode     fs.FileMode
}

func accessOf(info fs.FileInfo) access {
	a := access{uid: -1, gid: -1, mode: info.Mode().Perm()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		a.uid, a.gid = int(s.Uid), int(s.Gid)
	}
	return a
}

func (a access) owner() string { return fmt.Sprintf("user %d, group %d", a.uid, a.gid) }

func (a access) String() string { return fmt.Sprintf("mode %04o and belongs to %s", a.mode, a.owner()) }

// may reports whether a user has permissions, which are those of a class: 4 read, 1 search.
func (a access) may(uid, gid int, want fs.FileMode) bool {
	mode := a.mode
	switch {
	case a.uid == uid:
		mode >>= 6
	case a.gid == gid:
		mode >>= 3
	}
	return mode&want == want
}

// writable returns a finding if users other than root can write the file at a path.
func writable(info fs.FileInfo, path string) []Finding {
	if !disk.OthersWrite(info, 0) {
		return nil
	}
	return []Finding{fail(fmt.Sprintf("chown root:root %s && chmod go-w %s", path, path),
		"%s has %s: users other than root decide which pod may use which image", path, accessOf(info))}
}

// private returns a finding if users other than root have access to the file at a path.
func private(info fs.FileInfo, path string, want fs.FileMode) []Finding {
	a := accessOf(info)
	if a.mode&^want == 0 && a.uid == 0 {
		return nil
	}
	return []Finding{fail(fmt.Sprintf("chown root:root %s && chmod %04o %s", path, want, path),
		"%s has %s; it must have mode %04o and belong to root", path, a, want)}
}
