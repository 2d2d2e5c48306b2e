package boltfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// LockWait is how long Open waits for a file's lock by default. bbolt waits without a limit, so that a second daemon
// would block without a message.
const LockWait = 2 * time.Second

// Options are the settings of [Open].
type Options struct {
	// LockWait bounds the wait for the file lock; the zero value is [LockWait].
	LockWait time.Duration
	// ReadOnly opens a file for reading, together with other readers.
	ReadOnly bool
	// OnPanic is called for a panic in a transaction, with its value and the stack, before the transaction returns
	// ErrUnreadable; nil is allowed. The cause is a failed read ([FailedRead]), a damaged page, or an error in the
	// program. bbolt may hold its locks for ever after a panic, so every later transaction fails and the file cannot be
	// closed.
	OnPanic func(value any, stack []byte)
	// Check checks the content of the file after its structure was checked; an error means that the file is damaged.
	Check func(*bolt.Tx) error
}

// A File is an open file. Its methods may be called concurrently.
type File struct {
	// DB is the database. Use View and Update, so that a damaged page does not end the process.
	DB   *bolt.DB
	file *os.File // of DB, closed with it
	// onPanic is Options.OnPanic.
	onPanic  func(value any, stack []byte)
	panicked atomic.Bool // in a transaction
	info     fs.FileInfo // of file, when it was opened
}

// Open opens the file at path, which must be a regular file, and reads all of it. For a damaged file it returns the
// damage instead of a File. err says nothing about the content: it is ErrInUse, ErrReplaced, or an error of the file
// system.
func Open(path string, o Options) (f *File, damage, err error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, fmt.Errorf("not a regular file: %v", info.Mode().Type())
	case info.Size() == 0:
		return nil, errors.New("the file is empty"), nil // bbolt would create a new database in it
	}
	f = &File{info: info, onPanic: o.OnPanic}
	damage = guard(nil, func() error {
		if err := f.open(path, o, 0); err != nil {
			return err
		}
		return f.check(o.Check)
	})
	if err := InPlace(path, f.info); err != nil {
		return nil, nil, errors.Join(err, f.closeDamaged())
	}
	switch {
	case damage == nil:
		return f, nil, nil
	case errors.Is(damage, bolterrors.ErrTimeout):
		return nil, nil, ErrInUse
	case errors.Is(damage, fs.ErrPermission), IsSystem(damage):
		return nil, nil, errors.Join(damage, f.closeDamaged())
	}
	if _, failed := errors.AsType[failedReadError](damage); failed || f.DB == nil {
		// To bbolt, a failed read is a fault in its memory map or an invalid file.
		if found := walkFile(path); found == nil || IsSystem(found) {
			return nil, nil, errors.Join(damage, found, f.closeDamaged())
		}
	}
	return nil, damage, f.closeDamaged()
}

// Create creates a database in a new file.
func Create(path string) (*File, error) {
	var f File
	if err := guard(nil, func() error { return f.open(path, Options{}, os.O_CREATE|os.O_EXCL) }); err != nil {
		return nil, errors.Join(err, f.closeDamaged())
	}
	return &f, nil
}

// mapped is how much of the address space is reserved for the file, in bytes. The reservation costs nothing, and bbolt
// does not have to enlarge the memory map of a smaller file: that would wait for every reader, and all other calls
// would wait for it. allocated is by how much the file grows.
const (
	mapped    = 256 << 20
	allocated = 1 << 20
)

// open opens the file with its lock. If it fails, the fields of f show what it has opened.
func (f *File) open(path string, o Options, flags int) (err error) {
	if o.LockWait == 0 {
		o.LockWait = LockWait
	}
	f.DB, err = bolt.Open(path, 0o600, &bolt.Options{
		Timeout: o.LockWait, ReadOnly: o.ReadOnly, InitialMmapSize: mapped,
		OpenFile: func(name string, flag int, mode os.FileMode) (file *os.File, err error) {
			if file, err = os.OpenFile(name, flag&^os.O_CREATE|flags, mode); err == nil {
				f.file = file
				f.info, err = file.Stat()
			}
			return file, err
		},
	})
	if err == nil {
		f.DB.AllocSize = allocated // otherwise bbolt allocates the mapped size at once
	}
	return err
}

// InPlace returns ErrReplaced if the path leads to another file than before: the process that held the lock has
// replaced it. Everything written to the old file would be lost.
func InPlace(path string, before fs.FileInfo) error {
	now, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(before, now) {
		return ErrReplaced
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

// closeDamaged closes a file that may be too damaged for a normal close; it does not write pages.
func (f *File) closeDamaged() error {
	if f.DB != nil {
		return guard(nil, f.DB.Close)
	}
	if f.file != nil { // bbolt closes it after an error, but not after a panic
		if err := f.file.Close(); !errors.Is(err, os.ErrClosed) {
			return err
		}
	}
	return nil
}

// check walks the whole tree, and then checks the content.
func (f *File) check(content func(*bolt.Tx) error) error {
	// Before bbolt reads the tree, because bbolt does not validate it. The walk finds all damage that bbolt's own check
	// finds, which would read the file again, and keep it in memory. The file is locked: no other process writes.
	if err := walkAll(f.file); err != nil || content == nil {
		return err
	}
	return f.DB.View(content)
}

// walkFile returns the first damage of the tree of a file, or the error of the file system that keeps the file from
// being read.
func walkFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	return walkAll(file)
}

func walkAll(file io.ReaderAt) error {
	m, err := Newest(file)
	if err != nil {
		return err
	}
	if err := CheckMetas(file, m); err != nil {
		return err
	}
	return Walk(file, m, Visitor{})
}

// View runs a read transaction and returns a panic in it as an error; see Options.OnPanic.
func (f *File) View(do func(*bolt.Tx) error) error {
	return f.guarded(func() error { return f.DB.View(do) })
}

// Update runs a write transaction and returns a panic in it as an error; see Options.OnPanic. After nil the change is
// on disk.
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

// Walk walks the pages of a transaction of the file, also during writes.
func (f *File) Walk(tx *bolt.Tx, v Visitor) error {
	// The file's own meta pages may be from later transactions.
	var head firstWrite
	if _, err := tx.WriteTo(&head); head.page == nil {
		return err
	}
	m, err := ParseMeta(head.page)
	if err != nil {
		return err
	}
	return Walk(f.file, m, v)
}

// A firstWrite keeps the first write and refuses others. The first write of a transaction is its own meta page.
type firstWrite struct{ page []byte }

func (f *firstWrite) Write(b []byte) (int, error) {
	if f.page != nil {
		return 0, io.ErrShortWrite
	}
	f.page = append([]byte{}, b...)
	return len(b), nil
}

// guard runs f and returns a panic as an error, also a fault in the file's memory map. Before it returns, it calls
// onPanic unless that is nil.
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
