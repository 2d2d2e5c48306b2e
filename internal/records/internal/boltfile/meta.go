package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// The layout of bbolt's file; numbers are in the byte order of the machine.
const (
	pageHead    = 16 // ID, flags, count, overflow
	metaVersion = pageHead + 4
	metaSize    = pageHead + 8 // of a page
	metaRoot    = pageHead + 16
	metaFree    = metaRoot + bucketHead
	metaPages   = metaFree + 8
	metaTxID    = metaFree + 16
	metaSum     = metaFree + 24
	metaEnd     = metaSum + 8

	magic   = 0xED0CDAED
	version = 2

	minPageSize = 1 << 10
	maxPageSize = 1 << 24
)

// A Meta is one of the two pages at the beginning of a file. The newer one that is sound counts.
type Meta struct {
	PageSize int
	Pages    int    // that the file has, used and free
	TxID     uint64 // of the transaction that wrote it

	root, free uint64
}

// ParseMeta reads a meta page; it needs only the beginning of the page.
func ParseMeta(page []byte) (Meta, error) {
	if len(page) < metaEnd {
		return Meta{}, errors.New("the file is too short")
	}
	sum := fnv.New64a()
	_, _ = sum.Write(page[pageHead:metaSum]) // a hash never fails
	size := u32(page[metaSize:])
	m := Meta{
		PageSize: int(size), Pages: int(u64(page[metaPages:])), TxID: u64(page[metaTxID:]), //nolint:gosec // checked below
		root: u64(page[metaRoot:]), free: u64(page[metaFree:]),
	}
	switch {
	case u32(page[pageHead:]) != magic || u32(page[metaVersion:]) != version:
		return Meta{}, errors.New("not a bbolt file")
	case u64(page[metaSum:]) != sum.Sum64():
		return Meta{}, errors.New("the checksum of a meta page is wrong")
	case size < minPageSize || size > maxPageSize || size&(size-1) != 0:
		return Meta{}, fmt.Errorf("pages of %d bytes", size)
	case m.Pages < 3 || uint64(m.Pages) > 1<<62/size:
		return Meta{}, fmt.Errorf("%d pages", m.Pages)
	}
	return m, nil
}

// Newest returns the meta page that bbolt would choose.
func Newest(file io.ReaderAt) (Meta, error) {
	m, err := metaAt(file, 0)
	if err == nil {
		if second, err := metaAt(file, int64(m.PageSize)); err == nil && second.TxID > m.TxID {
			return second, nil
		}
		return m, nil
	}
	if IsSystem(err) {
		return Meta{}, err
	}
	// The first page does not contain the position of the second one.
	for size := int64(minPageSize); size <= maxPageSize; size *= 2 {
		if second, err := metaAt(file, size); err == nil && int64(second.PageSize) == size {
			return second, nil
		}
	}
	return Meta{}, err
}

// CheckMetas returns the damage of the meta pages of a file to which no process writes. bbolt ignores a damaged one.
// That may be the newer one: then the last transaction, perhaps a revocation, would be lost.
func CheckMetas(file io.ReaderAt, m Meta) error {
	for id := range 2 {
		if _, err := metaAt(file, int64(id*m.PageSize)); err != nil {
			return fmt.Errorf("meta page %d: %w", id, err)
		}
	}
	return nil
}

func metaAt(file io.ReaderAt, at int64) (Meta, error) {
	page := make([]byte, metaEnd)
	n, err := file.ReadAt(page, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return Meta{}, unread(err, len(page), at)
	}
	return ParseMeta(page[:n])
}

// unread describes a failed read. The end of the file is damage, and an error of the file system is not.
func unread(err error, n int, at int64) error {
	return fmt.Errorf("read %d bytes at %d: %w", n, at, err)
}

func u32(b []byte) uint64 { return uint64(binary.NativeEndian.Uint32(b)) }
func u64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
