package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

const (
	element    = 16
	bucketHead = 16 // root, sequence

	branchPage  = 1
	leafPage    = 2
	metaPage    = 4
	freePage    = 16
	bucketEntry = 1
)

// A Visitor has functions that a walk calls. A nil function is not called; an error of a function ends the walk.
type Visitor struct {
	// Bucket is called for each bucket before its content. The name of a nested bucket is both names with a slash.
	Bucket func(name string, sequence uint64) error
	// Value is called for each value, in the order of the keys, with the name of its bucket. The key and the value are
	// valid until it returns.
	Value func(bucket string, key, value []byte) error
	// Damage is called for each part that cannot be walked. If it is nil, the walk returns the first damage. An error of
	// the file system is not damage: it ends the walk.
	Damage func(error) error
}

type walker struct {
	file    io.ReaderAt
	size    uint64 // of a page
	seen    []bool // by page ID
	visitor Visitor
	damages int
}

// Walk walks the tree of a file and its free pages, and checks both meta pages. No process may write to the file.
func Walk(file io.ReaderAt, v Visitor) error {
	m, err := newest(file)
	if err == nil {
		err = checkMetas(file, m)
	}
	return walk(file, m, err, v)
}

// walk walks what a meta page refers to. damage is that of the meta pages; m is the zero value if none can be read.
func walk(file io.ReaderAt, m meta, damage error, v Visitor) error {
	w := &walker{file: file, size: m.pageSize, visitor: v}
	if err := w.damage(damage); err != nil || m.pages == 0 {
		return err
	}
	end := int64(m.pages * m.pageSize) //nolint:gosec // parseMeta has checked it
	if _, err := file.ReadAt(make([]byte, 1), end-1); err != nil {
		return w.damage(fmt.Errorf("the file is shorter than its %d pages: %w", m.pages, err))
	}
	w.seen = make([]bool, m.pages)
	if err := w.damage(w.metas()); err != nil {
		return err
	}
	if err := w.damage(w.free(m.free)); err != nil {
		return err
	}
	if err := w.walk(m.root, "", nil, nil); err != nil {
		return err
	}
	lost := 0
	for _, seen := range w.seen[2:] {
		if !seen {
			lost++
		}
	}
	if lost > 0 && w.damages == 0 { // otherwise the loss follows from damage that was reported
		return w.damage(fmt.Errorf("%d pages are neither used nor free", lost))
	}
	return nil
}

// damage reports damage, nil for none. It returns an error if the walk must end.
func (w *walker) damage(err error) error {
	if err == nil {
		return nil
	}
	w.damages++
	if w.visitor.Damage == nil || IsSystem(err) {
		return err
	}
	return w.visitor.Damage(err)
}

// metas checks the heads of the meta pages, which their checksums do not cover.
func (w *walker) metas() error {
	for id := range uint64(2) {
		head, err := w.read(id, pageHead)
		if err != nil {
			return err
		}
		if u64(head) != id || binary.NativeEndian.Uint16(head[8:]) != metaPage {
			return fmt.Errorf("meta page %d has a wrong head", id)
		}
	}
	return nil
}

func (w *walker) free(id uint64) error {
	page, err := w.page(id)
	if err != nil {
		return fmt.Errorf("free list: %w", err)
	}
	ids, count := page[pageHead:], uint64(binary.NativeEndian.Uint16(page[10:]))
	if count == math.MaxUint16 { // the first one counts the others
		ids, count = ids[8:], u64(ids)
	}
	if binary.NativeEndian.Uint16(page[8:]) != freePage || count > uint64(len(ids)/8) {
		return errors.New("free list: wrong head")
	}
	for i := range count {
		free := u64(ids[8*i:])
		if free < 2 || free >= uint64(len(w.seen)) || w.seen[free] {
			return fmt.Errorf("free list: page %d is out of bounds or referenced twice", free)
		}
		w.seen[free] = true
	}
	return nil
}

func (w *walker) page(id uint64) ([]byte, error) {
	high := uint64(len(w.seen))
	if id < 2 || id >= high {
		return nil, fmt.Errorf("page %d is out of bounds", id)
	}
	page, err := w.read(id, w.size)
	if err != nil {
		return nil, err
	}
	more := u32(page[12:])
	if u64(page) != id || id+more >= high {
		return nil, fmt.Errorf("page %d has a wrong head", id)
	}
	for i := id; i <= id+more; i++ {
		if w.seen[i] {
			return nil, fmt.Errorf("page %d is referenced twice", i)
		}
		w.seen[i] = true
	}
	if more == 0 {
		return page, nil
	}
	return w.read(id, (1+more)*w.size)
}

func (w *walker) read(id, n uint64) ([]byte, error) {
	b := make([]byte, n)
	if _, err := w.file.ReadAt(b, int64(id*w.size)); err != nil { //nolint:gosec // in bounds
		return nil, unread(err, len(b), id*w.size)
	}
	return b, nil
}

// walk walks a page whose first key must be low unless that is nil, and whose keys must be below high unless that is
// nil. bbolt would read a page whose first key is above low, but its next write there would damage the tree further.
func (w *walker) walk(id uint64, bucket string, low, high []byte) error {
	page, err := w.page(id)
	if err != nil {
		return w.damage(err)
	}
	return w.elements(page, fmt.Sprintf("page %d", id), bucket, low, high)
}

type entry struct {
	key, value []byte
	child      uint64 // of a branch page
	bucket     bool   // the value is a bucket
}

// elements walks what the elements of a page refer to. The page may be part of a value.
func (w *walker) elements(page []byte, where, bucket string, low, high []byte) error {
	entries, branch, damage := parse(page, low, high)
	if damage == nil && len(entries) == 0 && len(page) > pageHead && bucket != "" {
		// bbolt stores an empty bucket in the value that names it, with a page that has only a head.
		damage = errors.New("no elements where there is room for some")
	}
	for i, e := range entries {
		var err error
		switch {
		case branch:
			below := high
			if i+1 < len(entries) {
				below = entries[i+1].key
			}
			err = w.walk(e.child, bucket, e.key, below)
		case e.bucket:
			err = w.bucket(e.value, where, join(bucket, e.key))
		case w.visitor.Value != nil:
			err = w.visitor.Value(bucket, e.key, e.value)
		}
		if err != nil {
			return err
		}
	}
	if damage != nil {
		return w.damage(fmt.Errorf("%s: %w", where, damage))
	}
	return nil
}

// parse reads the elements of a page, up to the first one that does not have bbolt's layout.
func parse(page, low, high []byte) (entries []entry, branch bool, err error) {
	flags, count := binary.NativeEndian.Uint16(page[8:]), uint64(binary.NativeEndian.Uint16(page[10:]))
	if flags != branchPage && flags != leafPage {
		return nil, false, fmt.Errorf("unexpected flags %x", flags)
	}
	branch = flags == branchPage
	end := pageHead + count*element // where the next key begins
	if end > uint64(len(page)) {
		return nil, branch, errors.New("more elements than there is room for")
	}
	last, first := low, true
	entries = make([]entry, 0, count)
	for i := range count {
		at := pageHead + i*element
		head := page[at : at+element]
		var kind, pos, keySize, valueSize uint64
		var e entry
		if branch {
			pos, keySize, e.child = u32(head), u32(head[4:]), u64(head[8:])
		} else {
			kind, pos, keySize, valueSize = u32(head), u32(head[4:]), u32(head[8:]), u32(head[12:])
		}
		if at+pos != end || end+keySize+valueSize > uint64(len(page)) || kind > bucketEntry {
			return entries, branch, fmt.Errorf("element %d is misplaced", i)
		}
		e.bucket = kind == bucketEntry
		e.key, e.value = page[end:end+keySize:end+keySize], page[end+keySize:end+keySize+valueSize:end+keySize+valueSize]
		end += keySize + valueSize
		order := bytes.Compare(last, e.key)
		if len(e.key) == 0 || order > 0 || first && low != nil && order != 0 || order == 0 && !first ||
			high != nil && bytes.Compare(e.key, high) >= 0 {
			return entries, branch, fmt.Errorf("key %d is out of order", i)
		}
		last, first = e.key, false
		entries = append(entries, e)
	}
	return entries, branch, nil
}

// bucket walks the bucket of a value: its root, or, for a small bucket, the page that follows.
func (w *walker) bucket(value []byte, where, name string) error {
	if len(value) < bucketHead {
		return w.damage(fmt.Errorf("%s: a bucket has no head", where))
	}
	if w.visitor.Bucket != nil {
		if err := w.visitor.Bucket(name, u64(value[8:])); err != nil {
			return err
		}
	}
	if root := u64(value); root != 0 {
		return w.walk(root, name, nil, nil)
	}
	page := value[bucketHead:]
	if len(page) < pageHead || binary.NativeEndian.Uint16(page[8:]) != leafPage {
		return w.damage(fmt.Errorf("%s: a bucket has no page", where))
	}
	return w.elements(page, where, name, nil, nil)
}

func join(bucket string, name []byte) string {
	if bucket == "" {
		return string(name)
	}
	return bucket + "/" + string(name)
}
