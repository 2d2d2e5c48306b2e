package policyfiles

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// Limits of a folder.
const (
	maxFiles = 1000
	maxFile  = 1 << 20
	maxTotal = 16 << 20 // bounds the memory, and the work of each Poll

	scanTries = 3 // of a folder whose ..data is replaced in the meantime
)

// A File is a policy file that was read.
type File = restriction.File

// contents are what the paths hold at one moment, including errors.
type contents struct {
	files               []File
	ignored             []string
	labels, trustedRoot []byte // the contents of the files
	errs                []error
	hash                string // of the files; names are without the folder
}

func scan(p Paths) *contents {
	var c *contents
	for try, stable := 0, false; !stable && try < scanTries; try++ {
		c, stable = scanFolder(p)
	}
	var labelsErr, rootErr error
	c.labels, labelsErr = readOther(p.NamespaceLabels, p.AnyOwner)
	c.trustedRoot, rootErr = readOther(p.TrustedRoot, p.AnyOwner)
	c.errs = slices.DeleteFunc(append(c.errs, labelsErr, rootErr), func(err error) bool { return err == nil })
	return c
}

// sum identifies contents, also those that cannot be used.
func (c *contents) sum() [sha256.Size]byte {
	h := sha256.New()
	add(h, []byte(c.hash), c.labels, c.trustedRoot)
	for _, name := range c.ignored {
		add(h, []byte(name))
	}
	for _, err := range c.errs {
		add(h, []byte(err.Error()))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// add hashes fields with their lengths, so that no other fields have the same hash.
func add(h hash.Hash, fields ...[]byte) {
	for _, field := range fields {
		_, _ = fmt.Fprintf(h, "%d:%s", len(field), field) // a hash returns no error
	}
}

// scanFolder reads a folder. stable is false if ..data was replaced in the meantime: the files may be of two versions.
func scanFolder(p Paths) (c *contents, stable bool) {
	c = &contents{}
	path := p.Folder
	root, err := os.OpenRoot(path)
	if err != nil {
		c.errs = append(c.errs, folderError(path, err))
		return c, true
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	before, _ := root.Readlink("..data")
	if err := c.readFolder(root, p); err != nil {
		c.errs = append(c.errs, folderError(path, err))
	}
	if after, _ := root.Readlink("..data"); after != before {
		c.errs = append(c.errs, fmt.Errorf("%s: ..data was replaced while the folder was read", path))
		return c, false
	}
	return c, true
}

func folderError(path string, err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: p.Op, Path: path, Err: p.Err}
	}
	return fmt.Errorf("%s: %w", path, err)
}

func (c *contents) readFolder(root *os.Root, p Paths) error {
	info, err := root.Stat(".")
	if err == nil && !p.AnyOwner {
		err = checkFolder(root, info, p.Volume)
	}
	if err != nil {
		return err
	}
	entries, err := fs.ReadDir(root.FS(), ".") // by name
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		policy := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name()))
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case e.IsDir() || !policy:
			c.ignored = append(c.ignored, e.Name())
		default:
			names = append(names, e.Name())
		}
	}
	if len(names) > maxFiles {
		return fmt.Errorf("%d policy files; at most %d are read", len(names), maxFiles)
	}
	return c.readFiles(root, p, names)
}

func (c *contents) readFiles(root *os.Root, p Paths, names []string) error {
	h, total := sha256.New(), 0
	for _, name := range names {
		data, err := readIn(root, name, p.AnyOwner)
		if err != nil {
			c.errs = append(c.errs, fmt.Errorf("%s: %w", filepath.Join(p.Folder, name), err))
			continue
		}
		if total += len(data); total > maxTotal {
			return fmt.Errorf("policy files have more than %d MiB together", maxTotal>>20)
		}
		add(h, []byte(name), data)
		c.files = append(c.files, File{Name: filepath.Join(p.Folder, name), Data: data})
	}
	c.hash = fmt.Sprintf("%x", h.Sum(nil))
	return nil
}

// readIn reads one policy file. Its errors are without the path.
func readIn(root *os.Root, name string, anyOwner bool) ([]byte, error) {
	// Without O_NONBLOCK the opening of a named pipe waits for a writer, for ever.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		if target, linkErr := root.Readlink(name); linkErr == nil {
			return nil, fmt.Errorf("symbolic link to %s: %w; it must lead to a file inside the folder", target, err)
		}
		return nil, err
	}
	return read(f, maxFile, anyOwner)
}

// read returns the content of a regular file that only its owner can write, and closes it; see Paths.AnyOwner.
func read(f *os.File, limit int, anyOwner bool) ([]byte, error) {
	defer func() { _ = f.Close() }() // nothing was written to it
	info, err := f.Stat()
	switch {
	case err == nil && !info.Mode().IsRegular():
		err = errors.New("not a regular file")
	case err == nil && !anyOwner:
		err = checkOwner(info)
	}
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if len(content) > limit {
		return nil, fmt.Errorf("more than %d MiB", limit>>20)
	}
	return content, err
}

// checkFolder is checkOwner for a folder; see Paths.Volume.
func checkFolder(root *os.Root, folder fs.FileInfo, volume bool) error {
	if volume {
		if data, err := root.Stat("..data"); err == nil {
			return errors.Join(disk.CheckOwner(folder), checkOwner(data))
		}
	}
	return checkOwner(folder)
}

// checkOwner returns an error if another user than root, and than that of the process, can change a file or a folder.
func checkOwner(info fs.FileInfo) error {
	if err := disk.CheckOwner(info); err != nil {
		return err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("mode %#o: writable by others than the owner; run chmod go-w", info.Mode().Perm())
	}
	return nil
}
