package boltfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

// Copy writes a consistent copy of the file, also during write transactions, after change was applied to the copy.
// Before the first byte it calls size with the number of bytes; nil is allowed.
//
// The copy is sent from an unnamed file in the same directory: a read transaction that waits for a slow w would block
// the write that has to enlarge the memory map, and every call that waits for that write.
func (f *File) Copy(ctx context.Context, w io.Writer, size func(int64), change func(*bolt.Tx) error) (err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = ctx.Err() // bbolt does not wrap it
		}
	}()
	copied, err := os.CreateTemp(filepath.Dir(f.DB.Path()), filepath.Base(f.DB.Path())+".backup-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copied.Close()) }()
	if err := os.Remove(copied.Name()); err != nil {
		return err
	}
	err = f.View(func(tx *bolt.Tx) error {
		if err := room(copied.Name(), tx.Size()); err != nil {
			return err
		}
		_, err = tx.WriteTo(untilDone{ctx, copied})
		return err
	})
	if err != nil {
		return err
	}
	if err := changeCopy(copied, change); err != nil {
		return fmt.Errorf("change the copy: %w", err)
	}
	info, err := copied.Stat()
	if err != nil {
		return err
	}
	if _, err := copied.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if size != nil {
		size(info.Size())
	}
	_, err = io.Copy(untilDone{ctx, w}, copied)
	return err
}

// changeCopy runs one transaction in a file that has no name any more. The program that stores the copy syncs it.
func changeCopy(copied *os.File, change func(*bolt.Tx) error) (err error) {
	db, err := bolt.Open(fmt.Sprintf("/proc/self/fd/%d", copied.Fd()), 0o600,
		&bolt.Options{NoSync: true, NoGrowSync: true})
	if err != nil {
		return err
	}
	db.AllocSize = os.Getpagesize() // otherwise a copy above a certain size grows by 16 MiB
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.Update(change)
}

// room returns an error if a copy of n bytes would take more than half of the free space: a full disk stops pulls.
func room(path string, n int64) error {
	on, err := disk.StatsOf(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("look for room beside the file: %w", err)
	}
	if free := int64(on.Free); free/2 < n { //nolint:gosec // of a disk
		return fmt.Errorf("%w: %d bytes are free, a copy of %d needs twice its size", ErrNoRoom, free, n)
	}
	return nil
}

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
