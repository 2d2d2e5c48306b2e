package records

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/pullgate/pullgate/pkg/internal/crashpoint"
	"github.com/pullgate/pullgate/pkg/records/pages"
)

// Format is the version of the file that this code writes, and the newest that it reads.
const Format = 1

// lockWait bounds the wait for the file lock. bbolt's default is to wait forever, which would turn a
// second daemon into a silent hang.
const lockWait = 2 * time.Second

// mapped is how much of the address space is set aside for the file. It costs nothing, and a file that stays smaller never has
// its memory map enlarged: that waits for every reader, with all other calls behind it. allocated is by how much it grows.
const (
	mapped    = 256 << 20
	allocated = 1 << 20
)

// replacedTimes bounds how often Open follows a file that is replaced while it waits for the lock.
const replacedTimes = 3

var errReplaced = errors.New("the file was replaced while its lock was waited for")

// asideInfix follows a store's path in the name that it is set aside under.
const asideInfix = ".damaged-"

// The keys of the meta bucket.
const (
	metaFormat   = "format"
	metaDistrust = "distrust"
	metaScanned  = "scanned"
	metaKey      = "key"
)

// Options are the settings of [Open]. The zero value is that of a very first start.
type Options struct {
	// KeyExists says that the node's key shows that there was a store. A store that is missing
	// then was lost, and the new one is distrusted.
	KeyExists bool
	// Now is the time that is written; the zero value is the time of the call.
	Now time.Time
	// LockWait bounds the wait for the file lock; the zero value is 2 s.
	LockWait time.Duration
	// OnSync is told how long each write transaction took; nil is allowed.
	OnSync func(time.Duration)

	readOnly bool // for Examine
}

// A Report says what Open met.
type Report struct {
	// Created says that a new store was begun.
	Created bool
	// SetAside is where a damaged file was moved to; "" if there was none.
	SetAside string
	// Damage says what was wrong with it.
	Damage string
	// Distrust is set while the store is distrusted.
	Distrust *Distrust
}

// A newerFormatError is a format that this code does not know.
type newerFormatError struct{ found int }

func (e newerFormatError) Error() string {
	return fmt.Sprintf("%v: format %d, this version reads up to %d", ErrNewerFormat, e.found, Format)
}

func (e newerFormatError) Is(target error) bool { return target == ErrNewerFormat }

// Open opens the store at path, or begins a new one. It returns ErrNewerFormat or ErrInUse, or an
// opaque error if the file cannot be had; a damaged file is no error but moved aside, see [Report].
func Open(path string, o Options) (*Store, Report, error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	if o.LockWait == 0 {
		o.LockWait = lockWait
	}
	var report Report
	var b *boltFile
	var distrust *Distrust
	var damage, err error
	for range replacedTimes {
		b, distrust, damage, err = openPresent(path, o)
		if !errors.Is(err, errReplaced) {
			break
		}
	}
	if err != nil {
		return nil, report, fmt.Errorf("open records %s: %w", path, err)
	}
	if damage != nil {
		report.Damage = damage.Error()
		report.SetAside, err = setAside(path, o.Now)
		if err != nil {
			return nil, report, fmt.Errorf("set damaged records %s aside: %w", path, err)
		}
		distrust = &Distrust{Since: o.Now, Reason: "the store was damaged and set aside as " + filepath.Base(report.SetAside)}
	}
	if b == nil {
		report.Created = true
		if b, err = create(path, o, distrust); err != nil {
			return nil, report, fmt.Errorf("begin records %s: %w", path, err)
		}
	}
	s := &Store{db: b.db, file: b.file, onSync: o.OnSync, written: map[Pair]uint64{}}
	if err := s.readDistrust(); err != nil {
		return nil, report, errors.Join(fmt.Errorf("open records %s: %w", path, err), b.db.Close())
	}
	report.Distrust = s.Distrusted()
	return s, report, nil
}

// A boltFile is an open bbolt file.
type boltFile struct {
	db   *bolt.DB
	file *os.File    // of db, closed with it
	info fs.FileInfo // of file, when it was opened
}

// open opens the file at path, with its lock. What it has opened is noted also if it fails.
func (b *boltFile) open(path string, o Options, flags int) (err error) {
	b.db, err = bolt.Open(path, 0o600, &bolt.Options{
		Timeout: o.LockWait, ReadOnly: o.readOnly, InitialMmapSize: mapped,
		OpenFile: func(name string, flag int, mode os.FileMode) (file *os.File, err error) {
			if file, err = os.OpenFile(name, flag&^os.O_CREATE|flags, mode); err == nil {
				b.file = file
				b.info, err = file.Stat()
			}
			return file, err
		},
	})
	if err == nil {
		b.db.AllocSize = allocated // else as much as is mapped, at once
	}
	return err
}

// openPresent opens the store if there is one, and else returns with which distrust a new one would begin.
func openPresent(path string, o Options) (b *boltFile, distrust *Distrust, damage, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		distrust, err = absent(path, o)
		return nil, distrust, nil, err
	case err != nil:
		return nil, nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, nil, fmt.Errorf("it is no regular file but %v", info.Mode().Type())
	}
	b, damage, err = openChecked(path, info, o)
	return b, nil, damage, err
}

// absent returns with which distrust a new store begins, nil for none.
func absent(path string, o Options) (*Distrust, error) {
	aside, err := lastAside(path)
	switch {
	case err != nil:
		return nil, err
	case aside != "": // a crash between the setting aside and the new store
		return &Distrust{Since: o.Now, Reason: "the store was damaged and set aside as " + aside}, nil
	case o.KeyExists:
		return &Distrust{Since: o.Now, Reason: "the store is missing although the node's key shows that there was one"}, nil
	}
	return nil, nil //nolint:nilnil // trusted
}

// lastAside returns the name of the store that was last set aside, "" if none was.
func lastAside(path string) (last string, err error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+asideInfix) {
			last = e.Name()
		}
	}
	return last, err
}

// openChecked opens an existing file and reads all of it. It returns none but the damage for one that is damaged, and
// errReplaced if the path has come to lead elsewhere.
func openChecked(path string, info fs.FileInfo, o Options) (b *boltFile, damage, err error) {
	if info.Size() == 0 {
		return nil, errors.New("the file is empty"), nil // bbolt would begin a new database in it
	}
	b = &boltFile{info: info}
	damage = guard(func() error {
		if err := b.open(path, o, 0); err != nil {
			return err
		}
		return check(b)
	})
	if err := b.inPlace(path); err != nil {
		return nil, nil, errors.Join(err, closeDamaged(b.db))
	}
	switch {
	case damage == nil:
		return b, nil, nil
	case errors.Is(damage, bolterrors.ErrTimeout):
		return nil, nil, ErrInUse
	case errors.Is(damage, ErrNewerFormat), errors.Is(damage, fs.ErrPermission), isSystem(damage):
		return nil, nil, errors.Join(damage, closeDamaged(b.db))
	}
	return nil, damage, closeDamaged(b.db)
}

// inPlace returns errReplaced if the path leads to another file than was opened: who held the lock has put one there.
// On the old one everything would be lost that is written from now on.
func (b *boltFile) inPlace(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(b.info, info) {
		return errReplaced
	}
	return err
}

// isSystem reports whether an error is of the file system and says nothing about the file's content.
func isSystem(err error) bool {
	var path *fs.PathError
	var call *os.SyscallError
	var number syscall.Errno // bbolt does not wrap those of flock, mmap and fdatasync
	return errors.As(err, &path) || errors.As(err, &call) || errors.As(err, &number)
}

// closeDamaged closes what may be too damaged to be closed; its pages are not written to.
func closeDamaged(db *bolt.DB) error {
	if db == nil {
		return nil
	}
	return guard(db.Close)
}

// check walks the whole tree and looks at the format.
func check(b *boltFile) error {
	info, err := b.file.Stat() // now that nobody else writes
	if err != nil {
		return err
	}
	return b.db.View(func(tx *bolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("the file has %d bytes, its tree %d", info.Size(), tx.Size())
		}
		// Before bbolt walks the tree, which trusts what it reads.
		m, err := pages.Newest(b.file)
		if err != nil {
			return err
		}
		if err := pages.Walk(b.file, m, pages.Visitor{}); err != nil {
			return err
		}
		found, err := readFormat(tx)
		if err != nil {
			return err
		}
		if found > Format {
			return newerFormatError{found: found}
		}
		// All messages must be read, or the check does not end.
		for problem := range tx.Check() {
			err = errors.Join(err, problem)
		}
		if err != nil {
			return err
		}
		for _, name := range buckets() {
			b := tx.Bucket([]byte(name))
			if b == nil {
				return fmt.Errorf("bucket %s is missing", name)
			}
			if err := b.ForEach(func(_, _ []byte) error { return nil }); err != nil {
				return fmt.Errorf("bucket %s: %w", name, err)
			}
		}
		// Distrust is the one fact that stands by its key alone; under a damaged one it must not get lost.
		return tx.Bucket([]byte(bucketMeta)).ForEach(func(k, _ []byte) error {
			if !slices.Contains([]string{metaFormat, metaDistrust, metaScanned, metaKey}, string(k)) {
				return fmt.Errorf("bucket meta: unknown key %q", k)
			}
			return nil
		})
	})
}

func readFormat(tx *bolt.Tx) (int, error) {
	meta := tx.Bucket([]byte(bucketMeta))
	if meta == nil {
		return 0, errors.New("bucket meta is missing")
	}
	found, err := strconv.Atoi(string(meta.Get([]byte(metaFormat))))
	if err != nil || found < 1 {
		return 0, errors.New("the format is not readable")
	}
	return found, nil
}

// create makes a new store under a temporary name and gives it its own when it is whole, so that no
// crash leaves a part of one.
func create(path string, o Options, distrust *Distrust) (*boltFile, error) {
	temporary := path + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var b boltFile
	if err := b.open(temporary, o, os.O_CREATE); err != nil {
		return nil, err
	}
	err := b.db.Update(func(tx *bolt.Tx) error {
		for _, name := range buckets() {
			if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
				return err
			}
		}
		if distrust != nil {
			if err := put(tx, bucketMeta, []byte(metaDistrust), distrust); err != nil {
				return err
			}
		}
		return tx.Bucket([]byte(bucketMeta)).Put([]byte(metaFormat), []byte(strconv.Itoa(Format)))
	})
	if err := errors.Join(err, b.db.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(temporary))
	}
	crashpoint.Hit(crashpoint.StoreTemporary)
	if err := os.Rename(temporary, path); err != nil {
		return nil, err
	}
	crashpoint.Hit(crashpoint.StoreRenamed)
	if err := syncDir(path); err != nil {
		return nil, err
	}
	return &b, b.open(path, o, 0)
}

// setAside moves a damaged file away under a name that is free.
func setAside(path string, now time.Time) (string, error) {
	base := path + asideInfix + now.UTC().Format("20060102T150405Z")
	to := base
	for n := 1; ; n++ {
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			break
		}
		to = fmt.Sprintf("%s-%d", base, n)
	}
	if err := os.Rename(path, to); err != nil {
		return "", err
	}
	crashpoint.Hit(crashpoint.SetAside)
	return to, syncDir(path)
}

func syncDir(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// guard runs f and makes an error of a panic, of a fault in the file's memory map as well: bbolt
// trusts what it reads, and a damaged page leads it anywhere.
func guard(f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v", ErrUnreadable, p)
		}
	}()
	return f()
}
