package boltfile_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
	"github.com/pullgate/pullgate/internal/testkit"
)

func TestErrorOfTheSystemIsNoDamage(t *testing.T) {
	for _, err := range []error{
		syscall.ENOMEM, syscall.ENOLCK, os.NewSyscallError("flock", syscall.EINTR), &os.PathError{Err: syscall.EIO},
	} {
		if !boltfile.IsSystem(fmt.Errorf("open: %w", err)) {
			t.Errorf("IsSystem(%v) = false; want true", err)
		}
	}
}

// file returns the path of a file with this content.
func file(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.db")
	testkit.Must(t, os.WriteFile(path, content, 0o600))
	return path
}

// fault reads a memory map beyond the end of its file, like a read of a disk that fails.
func fault(t *testing.T) {
	t.Helper()
	f := testkit.Value(os.Open(file(t, []byte("short"))))(t)
	defer func() { _ = f.Close() }()
	memory := testkit.Value(syscall.Mmap(int(f.Fd()), 0, 2*os.Getpagesize(), syscall.PROT_READ, syscall.MAP_SHARED))(t)
	defer func() { _ = syscall.Munmap(memory) }()
	t.Error("read", memory[os.Getpagesize()])
}

func openFile(path string, o boltfile.Options) (f *boltfile.File, damage, err error) {
	file, err := boltfile.Lock(context.Background(), path, false, 0)
	if err != nil {
		return nil, nil, err
	}
	return boltfile.OpenLocked(file, o)
}

func TestFaultWhileASoundFileIsOpenedIsNotDamage(t *testing.T) {
	content := write(t, fill("many", 200, "value"))
	path := file(t, content)
	f, damage, err := openFile(path, boltfile.Options{Check: func(*bolt.Tx) error { fault(t); return nil }})
	if f != nil || damage != nil || err == nil || !strings.Contains(err.Error(), "a read of the file failed") {
		t.Errorf("Open = %v, %v, %v; want an error that is not damage", f, damage, err)
	}
	f, damage, err = openFile(path, boltfile.Options{}) // the disk works again, and no lock is held
	testkit.Must(t, errors.Join(damage, err))
	testkit.Must(t, f.Close())

	// The same fault in a file that is shorter than its tree.
	testkit.Must(t, os.WriteFile(path, content[:len(content)/2], 0o600))
	if _, damage, err := openFile(path, boltfile.Options{}); damage == nil || err != nil {
		t.Errorf("Open of half a file = %v, %v; want damage", damage, err)
	}
}

// bbolt keeps its locks after a panic where it begins a transaction. The next call must not wait for them.
func TestNoCallWaitsAfterAPanic(t *testing.T) {
	path, panics := file(t, write(t, fill("many", 200, "value"))), 0
	f, damage, err := openFile(path, boltfile.Options{OnPanic: func(value any, _ []byte) {
		if panics++; !boltfile.FailedRead(value) {
			t.Errorf("panic %v; want a failed read", value)
		}
	}})
	testkit.Must(t, errors.Join(damage, err))
	testkit.Must(t, os.Truncate(path, 0))
	nothing := func(*bolt.Tx) error { return nil }
	for n, call := range []func() error{
		func() error { return f.Update(nothing) }, func() error { return f.Update(nothing) },
		func() error { return f.View(nothing) }, f.Close,
	} {
		if err := call(); !errors.Is(err, boltfile.ErrUnreadable) {
			t.Errorf("call %d = %v; want ErrUnreadable", n, err)
		}
	}
	if panics != 1 {
		t.Errorf("%d panics; want 1", panics)
	}
}
