package offline

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
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

// compactSuffix follows a store's path in the name of the file that Compact makes. If a crash leaves such a file, the
// next call replaces it.
const compactSuffix = ".compact"

// batchBytes is approximately how much one transaction writes; bbolt keeps it in memory.
const batchBytes = 4 << 20

// A Compaction has the size of the file in bytes before and after compaction.
type Compaction struct{ Before, After int64 }

// Compact replaces the file at path by one that has the same values without free pages, with the same mode and owner.
// It keeps a value that cannot be decoded, because that value makes an image need proof. It returns ErrDamaged for a
// file with a damaged structure, and ErrNewerFormat for a file of a newer format.
func Compact(ctx context.Context, path string) (c Compaction, err error) {
	err = locked(ctx, path, syscall.LOCK_EX, func(f *os.File) error {
		c, err = compact(ctx, path, f)
		return err
	})
	if err != nil {
		return Compaction{}, fmt.Errorf("compact store: %w", err)
	}
	return c, nil
}

func compact(ctx context.Context, path string, f *os.File) (c Compaction, err error) {
	v, err := records.VerifyFile(ctx, f)
	if err != nil {
		return c, err
	}
	for _, p := range v.Problems {
		if ofTree(p) {
			return c, fmt.Errorf("%w: %s", ErrDamaged, p.What)
		}
	}
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
	if err := write(ctx, f, temporary); err != nil {
		return c, err
	}
	if err := finish(f, temporary, &c); err != nil {
		return c, err
	}
	crashpoint.Hit(crashpoint.CompactWritten)
	if err := os.Rename(temporary, path); err != nil {
		return c, err
	}
	crashpoint.Hit(crashpoint.CompactRenamed)
	return c, disk.SyncFolder(filepath.Dir(path))
}

// write writes the values of one file to a new file.
func write(ctx context.Context, from *os.File, path string) (err error) {
	to, err := boltfile.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	to.DB.NoSync = true // until all is written
	to.DB.AllocSize = to.DB.Info().PageSize
	m, err := boltfile.Newest(from)
	if err != nil {
		return err
	}
	b := batch{to: to}
	err = boltfile.Walk(from, m, boltfile.Visitor{
		Bucket: func(name string, sequence uint64) error {
			return errors.Join(ctx.Err(), b.add(func(tx *bolt.Tx) error {
				bucket, err := tx.CreateBucket([]byte(name))
				if err != nil {
					return err
				}
				return bucket.SetSequence(sequence)
			}, len(name)))
		},
		Value: func(bucket string, key, value []byte) error {
			key, value = bytes.Clone(key), bytes.Clone(value)
			return errors.Join(ctx.Err(), b.add(func(tx *bolt.Tx) error {
				into := tx.Bucket([]byte(bucket))
				into.FillPercent = 1 // the keys come in order
				return into.Put(key, value)
			}, len(key)+len(value)))
		},
	})
	return errors.Join(err, b.flush(), to.DB.Sync())
}

// A batch collects changes and makes them in one transaction.
type batch struct {
	to      *boltfile.File
	changes []func(*bolt.Tx) error
	bytes   int
}

func (b *batch) add(change func(*bolt.Tx) error, size int) error {
	b.changes = append(b.changes, change)
	if b.bytes += size; b.bytes < batchBytes {
		return nil
	}
	return b.flush()
}

func (b *batch) flush() error {
	err := b.to.Update(func(tx *bolt.Tx) (err error) {
		for i := 0; i < len(b.changes) && err == nil; i++ {
			err = b.changes[i](tx)
		}
		return err
	})
	b.changes, b.bytes = nil, 0
	return err
}

// finish verifies that the new file has the content of the old one, and sets the same mode and owner.
func finish(from *os.File, path string, c *Compaction) (err error) {
	to, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	want, err := digest(from)
	if err != nil {
		return err
	}
	got, err := digest(to)
	if err != nil {
		return err
	}
	if !bytes.Equal(want, got) {
		return errors.New("the new file does not hold the values of the old one; the old one is left as it was")
	}
	m, err := boltfile.Newest(to)
	if err != nil {
		return err
	}
	if err := to.Truncate(int64(m.Pages) * int64(m.PageSize)); err != nil { // bbolt allocates more than it uses
		return err
	}
	if damage, err := records.Examine(path); damage != nil || err != nil {
		return errors.Join(damage, err)
	}
	before, err := from.Stat()
	if err != nil {
		return err
	}
	if owner, ok := before.Sys().(*syscall.Stat_t); ok {
		if err := to.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	after, err := to.Stat()
	if err != nil {
		return err
	}
	c.Before, c.After = before.Size(), after.Size()
	return errors.Join(to.Chmod(before.Mode().Perm()), to.Sync())
}

// digest returns equal values for files with the same buckets, sequences, keys and values.
func digest(file io.ReaderAt) ([]byte, error) {
	m, err := boltfile.Newest(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	add := func(parts ...[]byte) {
		for _, p := range parts {
			_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p)))) // a hash never fails
			_, _ = sum.Write(p)
		}
	}
	err = boltfile.Walk(file, m, boltfile.Visitor{
		Bucket: func(name string, sequence uint64) error {
			add([]byte("bucket"), []byte(name), binary.BigEndian.AppendUint64(nil, sequence))
			return nil
		},
		Value: func(bucket string, key, value []byte) error {
			add([]byte("value"), []byte(bucket), key, value)
			return nil
		},
	})
	return sum.Sum(nil), err
}
