package nodeenable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pullgate/pullgate/internal/atomicfile"
	"github.com/pullgate/pullgate/internal/kubeletconf"
)

// temporary is the name under which a file is written before it takes its place. No program that reads the folder
// takes it for one of its own, and one that a crash left is written over by the next.
const temporary = ".pullgate-new"

func exists(h kubeletconf.Host, file string) bool {
	_, err := os.Lstat(h.Path(file))
	return err == nil
}

// write puts a file in place in one step: after a crash it is the old one or the new one. A file that was there keeps
// its mode and owner, and a link to one stays a link.
func write(h kubeletconf.Host, file string, content []byte, mode fs.FileMode) error {
	file = h.Path(file)
	if to, err := filepath.EvalSymlinks(file); err == nil {
		file = to
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // configuration of the node, which others may read
		return err
	}
	tmp := filepath.Join(dir, temporary)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	uid, gid := -1, -1
	if info, err := os.Stat(file); err == nil {
		mode = info.Mode().Perm()
		if owner, ok := info.Sys().(*syscall.Stat_t); ok {
			uid, gid = int(owner.Uid), int(owner.Gid)
		}
	}
	err := fill(tmp, content, mode, uid, gid)
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		_ = os.Remove(tmp) // an incomplete file
		return fmt.Errorf("write %s: %w", file, err)
	}
	return atomicfile.SyncFolder(dir)
}

// fill writes a new file and waits until it is on disk.
func fill(file string, content []byte, mode fs.FileMode, uid, gid int) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chown(uid, gid)
	}
	if err == nil {
		err = f.Chmod(mode) // after the umask and the new owner
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// remove removes a file; one that is not there is removed.
func remove(h kubeletconf.Host, file string) error {
	if err := os.Remove(h.Path(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := atomicfile.SyncFolder(filepath.Dir(h.Path(file)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// lock keeps others from pointing the same kubelet until it is closed.
func lock(h kubeletconf.Host) (*os.File, error) {
	dir := filepath.Dir(h.Path(Journal))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrBusy
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
