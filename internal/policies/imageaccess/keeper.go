package imageaccess

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"slices"

	"github.com/pullgate/pullgate/internal/mechanics/crashpoint"
	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

// A Keeper makes sets the ones in force. It keeps on disk which Shares and Lends are, so that a file that is removed
// while the program does not run is noticed. It is used by one goroutine.
type Keeper struct {
	path  string
	apply func(s *Set, ended func(repository string) bool) error
	used  bool
	kept  []kept // what the file has; it was read if used is true
	// unwritten says that the file still has rights that have ended, which is noted.
	unwritten bool
	lost      *Set // in force while the file cannot be read; all rights are noted as ended
	noted     bool // that is on disk
}

// maxKept is the size of the file on disk, which is smaller than the policy files.
const maxKept = 64 << 20

const keptVersion = 1

type keptFile struct {
	Version int    `json:"version"`
	Files   []kept `json:"files"`
}

// kept is a file that gives a right.
type kept struct {
	Name   string   `json:"name"`
	Hash   string   `json:"hash"` // of what it says
	Images []string `json:"images"`
}

// NewKeeper returns a keeper with a file at a path. apply makes a set the one in force, also if it returns an error
// because it could not note that rights to the repositories of ended have ended; ended is nil if none have.
func NewKeeper(path string, apply func(s *Set, ended func(repository string) bool) error) *Keeper {
	return &Keeper{path: path, apply: apply}
}

// Use makes a set the one in force: rights are on disk before they are in force, and are removed from there after they
// have ended. After an error no right is in force that the set does not give, and the caller calls Use again.
func (k *Keeper) Use(next *Set) error {
	if !k.used {
		if err := k.read(); err != nil {
			return errors.Join(err, k.useLost(next))
		}
		k.used = true
	}
	before, to := k.kept, next.kept()
	isIn := func(list []kept) func(kept) bool {
		return func(one kept) bool {
			return slices.ContainsFunc(list, func(x kept) bool { return reflect.DeepEqual(x, one) })
		}
	}
	gone := slices.DeleteFunc(slices.Clone(before), isIn(to))
	added := slices.DeleteFunc(slices.Clone(to), isIn(before))
	var failed error
	if len(added) > 0 {
		if failed = k.write(slices.Concat(before, added)); failed != nil {
			next = next.without(func(f *File) bool { return !isIn(before)(f.kept()) })
		}
		crashpoint.Hit(crashpoint.AccessAdded)
	}
	var ended func(string) bool
	if len(gone) > 0 {
		ended = endedBy(gone)
	}
	if err := k.apply(next, ended); err != nil {
		return errors.Join(failed, err)
	}
	if len(gone) > 0 { // it is noted, and need not be again if the file cannot be written
		k.kept, k.unwritten = slices.DeleteFunc(slices.Clone(k.kept), isIn(gone)), true
		crashpoint.Hit(crashpoint.AccessEnded)
	}
	if failed == nil && k.unwritten {
		return k.write(k.kept)
	}
	return failed
}

// useLost makes a set the one in force without its Shares and Lends, because the file cannot be read: which rights were
// in force before is not known, so all are noted as ended, once.
func (k *Keeper) useLost(next *Set) error {
	if k.noted && next == k.lost {
		return nil
	}
	var ended func(string) bool
	if !k.noted {
		ended = func(string) bool { return true }
	}
	err := k.apply(next.without(func(*File) bool { return true }), ended)
	k.lost, k.noted = next, k.noted || err == nil
	return err
}

func endedBy(gone []kept) func(repository string) bool {
	var patterns []pattern
	for _, g := range gone {
		for _, text := range g.Images {
			p, err := parsePattern(text)
			if err != nil { // another version wrote it
				return func(string) bool { return true }
			}
			patterns = append(patterns, p)
		}
	}
	return func(repository string) bool {
		t := targetOf(repository)
		return slices.ContainsFunc(patterns, func(p pattern) bool { return p.matches(t) })
	}
}

func (f *File) gives() bool { return f.Grant != Fence && !f.Audit }

func (f *File) kept() kept {
	said, _ := json.Marshal([]any{f.Grant, f.From}) // it can always be encoded
	sum := sha256.Sum256(said)
	return kept{f.Name, hex.EncodeToString(sum[:]), f.Images}
}

func (s *Set) kept() (all []kept) {
	for _, f := range s.Files() {
		if f.gives() {
			all = append(all, f.kept())
		}
	}
	return all
}

// without returns a set without those Shares and Lends that drop selects.
func (s *Set) without(drop func(*File) bool) *Set {
	if s == nil {
		return nil
	}
	return newSet(slices.DeleteFunc(slices.Clone(s.files), func(f *File) bool { return f.gives() && drop(f) }), s.warnings)
}

// read reads the file. A damaged one is read as if all rights to all images had ended: what it had is not known.
func (k *Keeper) read() error {
	data, err := disk.Read(k.path, maxKept)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil && !errors.Is(err, disk.ErrTooLarge):
		return fmt.Errorf("read the rights in force: %w", err)
	}
	var file keptFile
	damaged := func(one kept) bool { return one.Name == "" || one.Hash == "" || one.Images == nil }
	if err != nil || json.Unmarshal(data, &file) != nil || file.Version != keptVersion ||
		slices.ContainsFunc(file.Files, damaged) {
		file.Files = []kept{{Name: "damaged", Images: []string{""}}}
	}
	k.kept = file.Files
	return nil
}

func (k *Keeper) write(all []kept) error {
	data, err := json.Marshal(keptFile{keptVersion, append([]kept{}, all...)})
	if err == nil {
		err = disk.Write(k.path, disk.Options{Replace: true}, func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("write the rights in force: %w", err)
	}
	k.kept, k.unwritten = all, false
	return nil
}
