package records

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// bbolt's check follows what it reads, in a goroutine of its own: a page that leads out of the file,
// round in a circle or through four billion pages takes the process with it. This walk reads the same
// tree with bounds and comes first. It also holds the pages to the layout that bbolt gives them, one
// element right after the other, so that no wrong count or size hides a key.

// The layout of bbolt's file; numbers are in the byte order of the machine.
const (
	treeHead        = 16 // of a page: ID, flags, count, overflow
	treeElement     = 16
	treeBucketHead  = 16 // root, sequence
	treeMetaRoot    = treeHead + 16
	treeMetaFree    = treeMetaRoot + treeBucketHead
	treeBranch      = 1
	treeLeaf        = 2
	treeFreelist    = 16
	treeBucketEntry = 1
)

// A tree walks the pages of a bbolt file.
type tree struct {
	file io.ReaderAt
	size uint64 // of a page
	seen []bool // by page ID
}

// checkTree walks the tree of the file's meta page.
func checkTree(file io.ReaderAt, pageSize, pages, meta int) error {
	t := tree{file: file, size: uint64(pageSize), seen: make([]bool, pages)} //nolint:gosec // bbolt has checked the meta page
	head := make([]byte, treeMetaFree+8)
	if err := t.read(head, int64(meta)*int64(pageSize)); err != nil {
		return err
	}
	if err := t.free(binary.NativeEndian.Uint64(head[treeMetaFree:])); err != nil {
		return fmt.Errorf("free list: %w", err)
	}
	return t.walk(binary.NativeEndian.Uint64(head[treeMetaRoot:]))
}

// free takes the pages of the free list off those that may be referenced.
func (t *tree) free(id uint64) error {
	page, err := t.page(id)
	if err != nil {
		return err
	}
	ids, count := page[treeHead:], uint64(binary.NativeEndian.Uint16(page[10:]))
	if count == math.MaxUint16 { // the first one counts the others
		ids, count = ids[8:], binary.NativeEndian.Uint64(ids)
	}
	if binary.NativeEndian.Uint16(page[8:]) != treeFreelist || count > uint64(len(ids)/8) {
		return errors.New("wrong head")
	}
	for i := range count {
		free := binary.NativeEndian.Uint64(ids[8*i:])
		if free < 2 || free >= uint64(len(t.seen)) || t.seen[free] {
			return fmt.Errorf("page %d is out of bounds or referenced twice", free)
		}
		t.seen[free] = true
	}
	return nil
}

// page reads a page with all that overflows from it.
func (t *tree) page(id uint64) ([]byte, error) {
	high := uint64(len(t.seen))
	if id < 2 || id >= high {
		return nil, fmt.Errorf("page %d is out of bounds", id)
	}
	head := make([]byte, treeHead)
	at := int64(id * t.size) //nolint:gosec // id is in bounds
	if err := t.read(head, at); err != nil {
		return nil, err
	}
	more := uint64(binary.NativeEndian.Uint32(head[12:]))
	if binary.NativeEndian.Uint64(head) != id || id+more >= high {
		return nil, fmt.Errorf("page %d has a wrong head", id)
	}
	for i := id; i <= id+more; i++ {
		if t.seen[i] {
			return nil, fmt.Errorf("page %d is referenced twice", i)
		}
		t.seen[i] = true
	}
	page := make([]byte, (1+more)*t.size)
	return page, t.read(page, at)
}

// read fills b. What the disk cannot read is damage, not an error of the file system.
func (t *tree) read(b []byte, at int64) error {
	if _, err := t.file.ReadAt(b, at); err != nil {
		return fmt.Errorf("%d bytes at %d: %v", len(b), at, err)
	}
	return nil
}

func (t *tree) walk(id uint64) error {
	page, err := t.page(id)
	if err != nil {
		return err
	}
	if err := t.elements(page); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// elements walks what a page leads to. The page may be one that lies in a value.
func (t *tree) elements(page []byte) error {
	flags, count := binary.NativeEndian.Uint16(page[8:]), uint64(binary.NativeEndian.Uint16(page[10:]))
	if flags != treeBranch && flags != treeLeaf {
		return fmt.Errorf("unexpected flags %x", flags)
	}
	var last []byte
	end := treeHead + count*treeElement // where the next key begins
	if end > uint64(len(page)) {
		return errors.New("more elements than there is room for")
	}
	for i := range count {
		at := treeHead + i*treeElement
		e := page[at : at+treeElement]
		var entry uint32
		var pos, keySize, valueSize uint64
		if flags == treeBranch {
			pos, keySize = number(e), number(e[4:])
		} else {
			entry, pos, keySize, valueSize = binary.NativeEndian.Uint32(e), number(e[4:]), number(e[8:]), number(e[12:])
		}
		if at+pos != end || end+keySize+valueSize > uint64(len(page)) || entry > treeBucketEntry {
			return fmt.Errorf("element %d is misplaced", i)
		}
		key, value := page[end:end+keySize], page[end+keySize:end+keySize+valueSize]
		end += keySize + valueSize
		if len(key) == 0 || bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("key %d is out of order", i)
		}
		last = key
		var err error
		if flags == treeBranch {
			err = t.walk(binary.NativeEndian.Uint64(e[8:]))
		} else if entry == treeBucketEntry {
			err = t.bucket(value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket walks the bucket of a value: its root, or the page that follows if it is a small one.
func (t *tree) bucket(value []byte) error {
	if len(value) < treeBucketHead {
		return errors.New("a bucket has no head")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return t.walk(root)
	}
	page := value[treeBucketHead:]
	if len(page) < treeHead || binary.NativeEndian.Uint16(page[8:]) != treeLeaf {
		return errors.New("a bucket has no page")
	}
	return t.elements(page)
}

func number(b []byte) uint64 { return uint64(binary.NativeEndian.Uint32(b)) }
