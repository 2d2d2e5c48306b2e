package nodeenable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// temporary is the suffix of the file that is written before the rename. kubelet, systemd, k3s and RKE2 do not read a
// file with this name. If a crash left one, it is removed under the lock, before the next change of the node.
const temporary = ".pullgate-new"

func exists(h doctor.Host, file string) bool {
	_, err := os.Lstat(h.Path(file))
	return err == nil
}

// write writes a file in one step: after a crash it is the old file or the new one. An existing file keeps its mode and
// owner, and a link to a file stays a link.
func write(h doctor.Host, file string, content []byte, mode fs.FileMode) error {
	file = h.Path(file)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // configuration of the node, which others may read
		return err
	}
	o := disk.Options{Replace: true, Mode: mode, KeepAttributes: true, FollowLinks: true, Temporary: temporary}
	err := disk.Write(file, o, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// remove removes a file if it exists.
func remove(h doctor.Host, file string) error {
	file = h.Path(file)
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := disk.SyncFolder(filepath.Dir(file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeTemporary removes the file that an interrupted write has left.
func removeTemporary(h doctor.Host, file string) error {
	path := h.Path(file)
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	err := os.Remove(filepath.Join(filepath.Dir(path), temporary))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// lock prevents changes of the same node by other processes until the file is closed.
func lock(h doctor.Host) (*os.File, error) {
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
