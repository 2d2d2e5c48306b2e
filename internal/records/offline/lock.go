package offline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
)

// The time between two attempts to get the lock.
const lockPause = 20 * time.Millisecond

// locked calls do with the file at path, opened for reading and locked in the way of bbolt: syscall.LOCK_SH excludes
// writers, syscall.LOCK_EX excludes every other process.
func locked(ctx context.Context, path string, how int, do func(*os.File) error) (err error) {
	// Like Open, this refuses a symbolic link; and opening a named pipe does not block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return fmt.Errorf("%s is a symbolic link; give the file that it leads to", path)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }() // the close releases the lock
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file: %v", path, info.Mode().Type())
	}
	if err := lock(ctx, f, how); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	if err := boltfile.InPlace(path, info); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	return do(f)
}

func lock(ctx context.Context, f *os.File, how int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, boltfile.LockWait, ErrInUse)
	defer cancel()
	pause := time.NewTicker(lockPause)
	defer pause.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-pause.C:
		}
	}
}
