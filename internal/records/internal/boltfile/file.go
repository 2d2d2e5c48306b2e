package boltfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

const (
	lockWait  = 2 * time.Second // by default
	lockPause = 20 * time.Millisecond
)

// Options are the settings of [OpenLocked].
type Options struct {
	// ReadOnly says that Lock opened the file for reading.
	ReadOnly bool
	// OnPanic is called for a panic in a transaction, which then returns ErrUnreadable; nil is allowed. The cause is a
	// failed read ([FailedRead]), a damaged page, or an error in the program. Every later call fails.
	OnPanic func(value any, stack []byte)
	// Check checks the content of the file after its structure was checked; an error means that the file is damaged.
	Check func(*bolt.Tx) error
}

// A File is an open file. Its methods may be called concurrently.
type File struct {
	// DB is the database. Use View and Update, so that a damaged page does not end the process.
	DB       *bolt.DB
	file     *os.File // of DB, closed with it
	onPanic  func(value any, stack []byte)
	panicked atomic.Bool // in a transaction
}

// Lock opens the regular file at path and locks it like bbolt: readOnly together with other readers, otherwise alone.
// It returns the file that is at path then, or ErrInUse after wait; 0 means 2 s.
func Lock(ctx context.Context, path string, readOnly bool, wait time.Duration) (*os.File, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(wait, lockWait), ErrInUse)
	defer cancel()
	flags, how := os.O_RDWR, syscall.LOCK_EX
	if readOnly {
		flags, how = os.O_RDONLY, syscall.LOCK_SH
	}
	for {
		f, err := openRegular(path, flags)
		if err != nil {
			return nil, err
		}
		switch err = flock(ctx, f, how); {
		case err != nil:
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		case inPlace(path, f):
			return f, nil
		}
		// The process that held the lock has replaced the file. Everything written to the old one would be lost.
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// openRegular opens a regular file. The opening of a named pipe does not block.
func openRegular(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link; give the file that it leads to", path)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file: %v", path, info.Mode().Type())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func flock(ctx context.Context, f *os.File, how int) error {
	pause := time.NewTicker(lockPause)
	defer pause.Stop()
	for ctx.Err() == nil {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
	}
	return context.Cause(ctx)
}

func inPlace(path string, f *os.File) bool {
	now, err := os.Lstat(path)
	info, statErr := f.Stat()
	return err == nil && statErr == nil && os.SameFile(now, info)
}

// OpenLocked opens a file that Lock has returned, or closes it and returns its damage or an error of the file system.
func OpenLocked(file *os.File, o Options) (f *File, damage, err error) {
	if err := Walk(file, Visitor{}); err != nil {
		if IsSystem(err) {
			return nil, nil, errors.Join(err, file.Close())
		}
		return nil, err, file.Close()
	}
	f = &File{file: file, onPanic: o.OnPanic}
	if err := guard(nil, func() error { return f.open(o.ReadOnly) }); err != nil {
		return nil, nil, errors.Join(err, f.closeDamaged())
	}
	if o.Check == nil {
		return f, nil, nil
	}
	damage = guard(nil, func() error { return f.DB.View(o.Check) })
	if _, failed := errors.AsType[failedReadError](damage); failed {
		return nil, nil, errors.Join(damage, f.closeDamaged())
	} else if damage != nil {
		return nil, damage, f.closeDamaged()
	}
	return f, nil, nil
}

// Create creates a database in a new file.
func Create(path string) (*File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	f := &File{file: file}
	if err := guard(nil, func() error { return f.open(false) }); err != nil {
		return nil, errors.Join(err, f.closeDamaged())
	}
	return f, nil
}

// mapped is how much of the address space is reserved for the file: to enlarge the memory map, bbolt would wait for
// every reader, and all other calls for it. allocated is by how much the file grows.
const (
	mapped    = 256 << 20
	allocated = 1 << 20
)

// open opens the database in the file. bbolt locks the same open file again, which changes nothing.
func (f *File) open(readOnly bool) (err error) {
	f.DB, err = bolt.Open(f.file.Name(), 0o600, &bolt.Options{
		ReadOnly: readOnly, Timeout: lockWait, InitialMmapSize: mapped,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) { return f.file, nil },
	})
	if err == nil {
		f.DB.AllocSize = allocated // otherwise bbolt allocates the mapped size at once
	}
	return err
}

// IsSystem reports whether an error is from the file system and says nothing about the file's content.
func IsSystem(err error) bool {
	var path *fs.PathError
	var call *os.SyscallError
	var number syscall.Errno // bbolt does not wrap errors of flock, mmap and fdatasync
	return errors.As(err, &path) || errors.As(err, &call) || errors.As(err, &number)
}

// closeDamaged closes a file that may be too damaged for a normal close.
func (f *File) closeDamaged() error {
	if f.DB != nil {
		return guard(nil, f.DB.Close)
	}
	// bbolt has closed it after an error, but not after a panic.
	if err := f.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// View runs a read transaction; see Options.OnPanic.
func (f *File) View(do func(*bolt.Tx) error) error {
	return f.guarded(func() error { return f.DB.View(do) })
}

// Update runs a write transaction; see Options.OnPanic. After nil the change is on disk.
func (f *File) Update(do func(*bolt.Tx) error) error {
	return f.guarded(func() error { return f.DB.Update(do) })
}

// Close closes the file after its transactions have ended.
func (f *File) Close() error { return f.guarded(f.DB.Close) }

func (f *File) guarded(do func() error) error {
	if f.panicked.Load() {
		return fmt.Errorf("%w: an earlier transaction panicked", ErrUnreadable)
	}
	return guard(func(value any, stack []byte) {
		f.panicked.Store(true)
		if f.onPanic != nil {
			f.onPanic(value, stack)
		}
	}, do)
}

// Walk walks the pages of a snapshot. It calls begun when the snapshot exists; until then the caller prevents writes.
func (f *File) Walk(begun func(), v Visitor) error {
	return f.View(func(tx *bolt.Tx) error {
		m, err := newest(f.file)
		begun()
		if err == nil && m.txID != uint64(tx.ID()) { //nolint:gosec // it begins at 0 and goes up
			err = errors.New("the newest meta page is damaged")
		}
		return walk(f.file, m, err, v)
	})
}

// guard runs f and returns a panic as an error, also a fault in the file's memory map.
func guard(onPanic func(value any, stack []byte), f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if p := recover(); p != nil {
			if onPanic != nil {
				onPanic(p, debug.Stack())
			}
			if err = fmt.Errorf("%w: panic: %v", ErrUnreadable, p); FailedRead(p) {
				err = failedReadError{p}
			}
		}
	}()
	return f()
}

// FailedRead reports whether the value of a panic is a fault in a memory map: the disk failed, or the file became
// shorter.
func FailedRead(panicked any) bool {
	_, fault := panicked.(interface{ Addr() uintptr })
	return fault
}
