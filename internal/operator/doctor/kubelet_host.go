package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

// maxSize bounds what is read of one file; units and configurations have a few lines.
const maxSize = 1 << 20

// A Host is the machine to inspect. The zero value is the one that this program runs on.
type Host struct {
	// Root is the folder that replaces /; "" is / itself.
	Root string
	// Command runs a program and returns what it wrote to stdout; nil runs it on this machine.
	Command func(ctx context.Context, name string, args ...string) ([]byte, error)

	changed map[string][]byte
}

// Run runs a program and returns what it wrote to stdout. An error of the default Command ends with what the program
// wrote to stderr.
func (h Host) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	if h.Command != nil {
		return h.Command(ctx, name, args...)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // systemctl and journalctl, which the callers name
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		output := strings.Join(strings.Fields(stderr.String()), " ")
		return stdout.Bytes(), fmt.Errorf("%s: %w: %s", name, err, output)
	}
	return stdout.Bytes(), nil
}

// With returns the host as it would be if these files, by their absolute paths, had this content; nil stands for a
// file that is absent. Processes and units are as they are.
func (h Host) With(files map[string][]byte) Host {
	all := maps.Clone(h.changed)
	if all == nil {
		all = map[string][]byte{}
	}
	maps.Copy(all, files)
	h.changed = all
	return h
}

// Path returns where a file of the host is.
func (h Host) Path(path string) string { return filepath.Join("/", h.Root, path) }

// ReadFile returns the content of a regular file. One of more than 1 MiB is an error.
func (h Host) ReadFile(path string) ([]byte, error) {
	if content, ok := h.changed[filepath.Clean(path)]; ok {
		if content == nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		return content, nil
	}
	return disk.Read(h.Path(path), maxSize)
}

// files returns the paths of all files below a folder as filepath.WalkDir meets them, which is how a kubelet reads
// its drop-ins. An absent folder has none.
func (h Host) files(dir string) ([]string, error) {
	var all []string
	root := h.Path(dir)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if path := filepath.Join(dir, rel); err == nil && !h.isChanged(path) {
			all = append(all, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for path, content := range h.changed {
		if content != nil && strings.HasPrefix(path, filepath.Clean(dir)+"/") {
			all = append(all, path)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	return all, nil
}

func (h Host) isChanged(path string) bool {
	_, ok := h.changed[path]
	return ok
}

func (h Host) exists(path string) bool {
	if content, ok := h.changed[filepath.Clean(path)]; ok {
		return content != nil
	}
	_, err := os.Stat(h.Path(path))
	return err == nil
}
