package dbfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	bolt "go.etcd.io/bbolt"
)

// Copy writes the file as it is at one moment, also while others write to it. Before the first byte it tells size how
// many come; nil is allowed. After an error what was written is no copy.
//
// The copy is made beside the file first, in a file without a name, and sent from there: a reader of bbolt that
// waits for a slow w would hold up the write that has to enlarge the memory map, and behind it every call.
func (f *File) Copy(ctx context.Context, w io.Writer, size func(int64)) error {
	err := f.copy(ctx, w, size)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // bbolt does not wrap it
	}
	return err
}

func (f *File) copy(ctx context.Context, w io.Writer, size func(int64)) (err error) {
	copied, err := os.CreateTemp(filepath.Dir(f.DB.Path()), filepath.Base(f.DB.Path())+".backup-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copied.Close()) }()
	if err := os.Remove(copied.Name()); err != nil {
		return err
	}
	var n int64
	err = f.View(func(tx *bolt.Tx) error {
		if err := room(copied.Name(), tx.Size()); err != nil {
			return err
		}
		n, err = tx.WriteTo(untilDone{ctx, copied})
		return err
	})
	if err != nil {
		return err
	}
	if _, err := copied.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if size != nil {
		size(n)
	}
	_, err = io.Copy(untilDone{ctx, w}, copied)
	return err
}

// room returns an error if a copy of n bytes would fill the disk, or nearly: pulls are refused on a full one.
func room(path string, n int64) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &disk); err != nil {
		return fmt.Errorf("look for room beside the file: %w", err)
	}
	if free := int64(disk.Bavail) * disk.Bsize; free/2 < n { //nolint:gosec // blocks of a disk
		return fmt.Errorf("%w: %d bytes are free, a copy of %d needs twice its size", ErrNoRoom, free, n)
	}
	return nil
}

// untilDone writes until ctx is done.
type untilDone struct {
	ctx context.Context //nolint:containedctx // of the one call that makes it
	w   io.Writer
}

func (u untilDone) Write(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.w.Write(b)
}
