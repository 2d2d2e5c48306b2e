package offline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
)

// compactSuffix is that of the file that Compact makes. The next call replaces one that a crash left.
const compactSuffix = ".compact"

const batchBytes = 4 << 20

// ErrDamaged is the error of Compact for a file with a damaged structure: compaction would lose a part of it.
var ErrDamaged = errors.New("records: file damaged")

// A Compaction has the size of the file in bytes before and after compaction.
type Compaction struct{ Before, After int64 }

// Compact replaces the file at path by one that has the same values without free pages, with the same mode and owner.
// It keeps values that cannot be decoded: they make images need proof.
func Compact(ctx context.Context, path string) (c Compaction, err error) {
	file, err := boltfile.Lock(ctx, path, false, 0)
	if err == nil {
		c, err = compact(path, file)
	}
	if err != nil {
		return Compaction{}, fmt.Errorf("compact store: %w", err)
	}
	return c, nil
}

func compact(path string, file *os.File) (c Compaction, err error) {
	from, damage, err := records.OpenLocked(file, boltfile.Options{})
	switch {
	case err != nil:
		return c, err
	case damage != nil:
		return c, fmt.Errorf("%w: %w", ErrDamaged, damage)
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	temporary := path + compactSuffix
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	defer func() {
		if err != nil {
			if gone := os.Remove(temporary); !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}()
	size, err := write(from, temporary)
	if err != nil {
		return c, err
	}
	if c, err = finish(file, temporary, size); err != nil {
		return c, err
	}
	crashpoint.Hit(crashpoint.CompactWritten)
	if err := os.Rename(temporary, path); err != nil {
		return c, err
	}
	crashpoint.Hit(crashpoint.CompactRenamed)
	return c, disk.SyncFolder(filepath.Dir(path))
}

func write(from *boltfile.File, path string) (size int64, err error) {
	to, err := boltfile.Create(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	to.DB.NoSync = true // until all is written
	to.DB.AllocSize = to.DB.Info().PageSize
	err = errors.Join(
		from.View(func(*bolt.Tx) error { return bolt.Compact(to.DB, from.DB, batchBytes) }),
		to.View(func(tx *bolt.Tx) error { size = tx.Size(); return nil }),
		to.DB.Sync(),
	)
	return size, err
}

// finish cuts the new file to its size, verifies that it has the content of the old one, and sets the mode and owner.
func finish(from *os.File, path string, size int64) (c Compaction, err error) {
	to, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if err := to.Truncate(size); err != nil {
		return c, err
	}
	want, err := digest(from)
	if err != nil {
		return c, err
	}
	got, err := digest(to)
	if err != nil {
		return c, err
	}
	if !bytes.Equal(want, got) {
		return c, errors.New("the new file does not hold the values of the old one; the old one is left as it was")
	}
	before, err := from.Stat()
	if err != nil {
		return c, err
	}
	if owner, ok := before.Sys().(*syscall.Stat_t); ok {
		if err := to.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return c, err
		}
	}
	return Compaction{before.Size(), size}, errors.Join(to.Chmod(before.Mode().Perm()), to.Sync())
}

// digest returns equal values for sound files with the same buckets, sequences, keys and values.
func digest(file io.ReaderAt) ([]byte, error) {
	sum := sha256.New()
	add := func(format string, parts ...any) error {
		_, err := fmt.Fprintf(sum, format, parts...)
		return err
	}
	err := boltfile.Walk(file, boltfile.Visitor{
		Bucket: func(name string, sequence uint64) error { return add("bucket %q %d\n", name, sequence) },
		Value:  func(bucket string, key, value []byte) error { return add("%q %q %q\n", bucket, key, value) },
	})
	return sum.Sum(nil), err
}
