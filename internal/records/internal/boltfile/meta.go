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

type meta struct {
	pageSize   uint64
	pages      uint64 // that the file has, used and free
	txID       uint64 // of the transaction that wrote it
	root, free uint64
}

func parseMeta(page []byte) (meta, error) {
	if len(page) < metaEnd {
		return meta{}, errors.New("the file is too short")
	}
	sum := fnv.New64a()
	_, _ = sum.Write(page[pageHead:metaSum]) // a hash never fails
	m := meta{
		pageSize: u32(page[metaSize:]), pages: u64(page[metaPages:]), txID: u64(page[metaTxID:]),
		root: u64(page[metaRoot:]), free: u64(page[metaFree:]),
	}
	switch {
	case u32(page[pageHead:]) != magic || u32(page[metaVersion:]) != version:
		return meta{}, errors.New("not a bbolt file")
	case u64(page[metaSum:]) != sum.Sum64():
		return meta{}, errors.New("the checksum of a meta page is wrong")
	case m.pageSize < minPageSize || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0:
		return meta{}, fmt.Errorf("pages of %d bytes", m.pageSize)
	case m.pages < 3 || m.pages > 1<<62/m.pageSize:
		return meta{}, fmt.Errorf("%d pages", m.pages)
	}
	return m, nil
}

// newest returns the meta page that bbolt would choose.
func newest(file io.ReaderAt) (meta, error) {
	m, err := metaAt(file, 0)
	if err == nil {
		second, err := metaAt(file, m.pageSize)
		switch {
		case IsSystem(err):
			return meta{}, err
		case err == nil && second.txID > m.txID:
			return second, nil
		}
		return m, nil
	}
	if IsSystem(err) {
		return meta{}, err
	}
	// The first page does not contain the position of the second one.
	for size := uint64(minPageSize); size <= maxPageSize; size *= 2 {
		if second, err := metaAt(file, size); err == nil && second.pageSize == size {
			return second, nil
		}
	}
	return meta{}, err
}

// checkMetas returns the damage of the meta pages of a file. bbolt ignores a damaged one: if that is the newer one, the
// last transaction, perhaps a revocation, would be lost.
func checkMetas(file io.ReaderAt, m meta) error {
	for id := range uint64(2) {
		if _, err := metaAt(file, id*m.pageSize); err != nil {
			return fmt.Errorf("meta page %d: %w", id, err)
		}
	}
	return nil
}

func metaAt(file io.ReaderAt, at uint64) (meta, error) {
	page := make([]byte, metaEnd)
	n, err := file.ReadAt(page, int64(at)) //nolint:gosec // one of the first two pages
	if err != nil && !errors.Is(err, io.EOF) {
		return meta{}, unread(err, len(page), at)
	}
	return parseMeta(page[:n])
}

// unread describes a failed read. The end of the file is damage, and an error of the file system is not.
func unread(err error, n int, at uint64) error {
	return fmt.Errorf("read %d bytes at %d: %w", n, at, err)
}

func u32(b []byte) uint64 { return uint64(binary.NativeEndian.Uint32(b)) }
func u64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
